"""What figures predict of a source that they are not fitted to.

The results are kept, since each takes minutes. They are of the figures in the product's files that
the source is connected with: once those are fitted anew, nothing is known.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measurements.figures import Fitted, concerns
from benchmarks.measurements.predictions import Floats, Prepared, Steps, fitted
from benchmarks.measurements.rows import Row

_KEPT = Path(__file__).with_suffix(".json")
_MOST = 50  # rows of each other source, evenly spaced
_DIGITS = 4  # of a residual
_STEPS = 3  # of the fit, which begins with the figures that are fitted to all


def known_left_out(rows: Sequence[Row], figures: Sequence[Fitted]) -> dict[str, Floats]:
    """Return log(predicted / measured) of the rows of the sources that were left out of a fit."""
    return {source: np.array(one["residuals"]) for source, one in _kept(rows, figures).items()}


def _kept(rows: Sequence[Row], figures: Sequence[Fitted]) -> dict[str, dict[str, Any]]:
    """Return what is kept of the sources whose figures are still those of the files."""
    kept = json.loads(_KEPT.read_text(encoding="utf-8")) if _KEPT.exists() else {}
    return {
        source: one
        for source, one in kept.items()
        if one["figures"] == _digest(_part(rows, figures, source)[1])
    }


def errors_of(residuals: Floats) -> tuple[float, float]:
    """Return the mean error of rows, and that with one factor for all."""
    raw, scaled = (
        float(np.abs(np.exp(found) - 1).mean())
        for found in (residuals, residuals - np.median(residuals))
    )
    return raw, scaled


def leave_out(prepared: Prepared, figures: Sequence[Fitted], source: str) -> Floats:
    """Fit the figures to the other sources, and keep log(predicted / measured) of this one."""
    rows = prepared.rows
    own = [row.source == source for row in rows]
    keep, part = _part(rows, figures, source)
    few = [is_kept and is_few for is_kept, is_few in zip(keep, _few(rows), strict=True)]
    values = [figure.prior for figure in part]
    if any(few):
        values = list(fitted(prepared, part, few, _STEPS).values)
    found = Steps(prepared.only(own), part).residuals(values).round(_DIGITS)
    one = {"figures": _digest(part), "residuals": found.tolist()}
    text = json.dumps({**_kept(rows, figures), source: one})
    _KEPT.write_text(text.replace('}, "', '},\n"') + "\n", encoding="utf-8")
    return found


def _digest(figures: Sequence[Fitted]) -> str:
    told = [(f.name, f.value, f.prior, f.sigma, f.most, f.places, f.scales) for f in figures]
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


def _few(rows: Sequence[Row]) -> list[bool]:
    """Return which rows are among the few of their source."""
    counts, before, found = Counter(row.source for row in rows), Counter[str](), []
    for row in rows:
        number, count = before[row.source], counts[row.source]
        before[row.source] += 1
        most = min(count, _MOST)
        found.append(number * most // count != (number - 1) * most // count)
    return found


def _part(
    rows: Sequence[Row], figures: Sequence[Fitted], source: str
) -> tuple[list[bool], list[Fitted]]:
    """Return the other rows and the figures that a source is connected with by figures."""
    kinds = {row.kind for row in rows if row.source == source}
    others = {row.kind for row in rows if row.source != source}
    while True:
        touched = [any(concerns(figure, *kind) for kind in kinds) for figure in figures]
        more = {
            kind
            for kind in others - kinds
            if any(t and concerns(f, *kind) for f, t in zip(figures, touched, strict=True))
        }
        if not more:
            break
        kinds |= more
    keep = [row.source != source and row.kind in kinds for row in rows]
    return keep, [figure for figure, is_one in zip(figures, touched, strict=True) if is_one]
