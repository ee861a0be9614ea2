"""Fit figures to published runs, and write what they predict.

``python -m benchmarks.measurements fit`` writes the figures of time to the product's cluster and
software files, ``fit FIGURE`` one of them alone, ``fit-memory`` those of memory. ``left-out
SOURCE`` predicts a source by figures that are fitted to the others, and keeps the errors for
``table``, which writes `measurements.md`, its pictures and the product's intervals of steps. Each
takes minutes, the first time to compile the rows.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.measurements.compared import Compared
from benchmarks.measurements.figures import ALL, Fitted, concerns, write
from benchmarks.measurements.intervals import section as intervals
from benchmarks.measurements.intervals import spreads
from benchmarks.measurements.intervals import write as write_intervals
from benchmarks.measurements.left_out import errors_of, leave_out
from benchmarks.measurements.memory import PROFILES, account_of, section
from benchmarks.measurements.pictures import picture
from benchmarks.measurements.predictions import Prepared, Steps, fitted, parts
from benchmarks.measurements.relatives import follow
from benchmarks.measurements.rows import PUBLISHED, read_rows
from benchmarks.measurements.table import table

_TOLD = 0.9  # of the prior's deviation, below which rows tell a figure
_ASSUMED = "a prior; published steps do not tell it"
_PICTURES = Path(__file__).parent
_TABLE = _PICTURES.with_suffix(".md")


def main() -> int:
    """Fit or write the table."""
    parser = argparse.ArgumentParser(prog="benchmarks.measurements", description=__doc__)
    parser.add_argument("action", choices=("fit", "fit-memory", "left-out", "table"))
    parser.add_argument(
        "name",
        nargs="?",
        help="of left-out the source, of fit a figure alone, as the page calls it",
    )
    parser.add_argument("--rows", type=Path, default=PUBLISHED, help="the published runs, as JSON")
    arguments = parser.parse_args()
    if not arguments.rows.exists():
        print(f"no rows in `{arguments.rows}`: pass the file with --rows", file=sys.stderr)
        return 2
    if arguments.action == "fit-memory":
        for profile in PROFILES:
            _fit_memory(arguments.rows, profile)
        return 0
    rows, left_out = read_rows(arguments.rows)
    figures = [f for f in ALL if any(concerns(f, *r.kind) for r in rows)]
    if arguments.action == "fit" and arguments.name is not None:
        figures = [f for f in figures if f.name == arguments.name]
        rows = [r for r in rows if any(concerns(f, *r.kind) for f in figures)]
        if not rows:
            print(f"no figure `{arguments.name}`", file=sys.stderr)
            return 2
    prepared = Prepared.of(rows)
    if arguments.action == "fit":
        values = _fit(prepared, figures)
        follow()
        found = Steps(prepared, figures).residuals(values)
        print(f"mean absolute error {np.abs(np.exp(found) - 1).mean():.1%} of {len(rows)} rows")
        return 0
    if arguments.action == "left-out":
        sources = list(dict.fromkeys(row.source for row in rows))
        if arguments.name not in sources:
            print(f"no source `{arguments.name}`: {', '.join(sources)}", file=sys.stderr)
            return 2
        raw, scaled = errors_of(leave_out(prepared, figures, arguments.name))
        print(f"{arguments.name}: {raw:.1%}, with one factor {scaled:.1%}")
        return 0
    _write_page(Compared.of(prepared, figures), arguments.rows, left_out)
    return 0


def _write_page(
    compared: Compared, published: Path, left_out: Sequence[tuple[str, str, str]]
) -> None:
    """Write the page, its pictures, and the intervals of steps that the page shows."""
    known = spreads(compared)
    memory, points = section(published)
    about, apart = [*memory, "", *intervals(known)], known["fitted"].apart or 0.0
    text, times = table(compared, left_out, about, apart)
    write_intervals(compared.rows, known)
    _TABLE.write_text(text, encoding="utf-8")
    for name, found, unit in (("time", times, "seconds"), ("memory", points, "GiB")):
        path = _PICTURES / f"{name}.svg"
        path.write_text(picture(found, unit), encoding="utf-8")


def _fit(prepared: Prepared, figures: Sequence[Fitted]) -> Sequence[float]:
    """Fit the figures and write them; those that the rows do not tell are held at their priors."""
    values: dict[str, float] = {}
    for keep, own in parts(prepared.rows, figures):
        first = fitted(prepared, own, keep)
        triples = zip(own, first.values, first.sigmas, strict=True)
        held = [f for f, value, sigma in triples if not is_told(f, value, sigma)]
        found = fitted(prepared, own, keep, held=held)
        for figure, value, sigma in zip(own, found.values, found.sigmas, strict=True):
            _write(prepared, figure, value, None if figure in held else sigma)
            values[figure.name] = value
    return [values[figure.name] for figure in figures]


def is_told(figure: Fitted, value: float, sigma: float) -> bool:
    """Return whether rows tell a figure: they narrow it, or move it by more than a deviation.

    One that is driven far below its prior matters less there, so it is not narrowed any more.
    """
    return sigma <= _TOLD * figure.sigma or abs(math.log(value / figure.prior)) > figure.sigma


def _fit_memory(published: Path, profile: str) -> None:
    """Fit the figures of memory of a profile and write them."""
    account = account_of(published, profile)
    found, rows = account.fitted(), account.rows
    names = ", ".join(dict.fromkeys(row.source for row in rows))
    source = f"{len({row.configuration for row in rows})} published configurations: {names}"
    for figure, value in zip(account.figures, found.values, strict=True):
        print(f"{figure.name:45} {figure.value:.4g} -> {value:.4g}", flush=True)
        write(figure, value, "fitted", source)


def _write(prepared: Prepared, figure: Fitted, value: float, sigma: float | None) -> None:
    """Write a figure to its files, with its deviation if it is fitted."""
    if sigma is None:
        write(figure, figure.prior, "assumed", _ASSUMED)
        return
    own = [r for r in prepared.rows if concerns(figure, *r.kind)]
    names = ", ".join(dict.fromkeys(row.source for row in own))
    write(figure, value, "fitted", f"{len(own)} published steps: {names}")
    print(f"{figure.name:45} {figure.value:.4g} -> {value:.4g} (+-{100 * sigma:.0f} %)", flush=True)


if __name__ == "__main__":
    sys.exit(main())
