"""The robust choice judged on measured groups: ``python -m benchmarks.robust``, minutes.

Of each group of measured plans of one model on as many devices, the plan of the least predicted
step and that of the least worst-case regret over errors of the figures are compared with the
fastest measured one. The predictions are those of `benchmarks.measurements`.
"""

import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.measurements.figures import ALL, MEASURED, Fitted, concerns
from benchmarks.measurements.predictions import Prepared, Steps
from benchmarks.measurements.rows import PUBLISHED, Row, groups, read_rows
from shardwright.compiler.fit.robust import least_regret

_PAGE = Path(__file__).parent / "robust.md"
_MOST = 0.9  # of an error
_FEWEST = 4  # plans of a group
_ERRORS = (0.1, 0.2)  # of rates of operators; of bandwidths twice, of waits five times as much
_SOURCES = ("vTrain multi", "vTrain single")


def main() -> int:
    """Write the page."""
    if not PUBLISHED.exists():
        print(f"no rows in `{PUBLISHED}`", file=sys.stderr)
        return 2
    rows = [row for row in read_rows(PUBLISHED)[0] if row.source in _SOURCES]
    prepared = Prepared.of(rows)
    known = (*ALL, *MEASURED)
    figures = [f for f in known if any(concerns(f, *r.kind) for r in rows)]
    lines = [
        "# The robust choice on measured groups",
        "",
        "`python -m benchmarks.robust`: groups of plans of one model on as many devices and one",
        "batch, measured by vTrain on A100. Regret is how much slower the chosen plan was measured",
        "than the fastest measured one. The cases are the figures as they are and the corners of",
        "an error of the rate of matrix products, of twice as much of the bandwidth in nodes and",
        "between them, and of five times as much of how far ranks are apart and of host time.",
        "",
        "| groups | error | fastest predicted: mean regret | most | robust: mean regret | most |"
        " other plans chosen |",
        "|---|---|---|---|---|---|---|",
    ]
    for error in _ERRORS:
        table = _cases(prepared, figures, error)
        lines += [_row(rows, table, source, error) for source in _SOURCES]
    _PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
    return 0


def _cases(prepared: Prepared, figures: Sequence[Fitted], error: float) -> np.ndarray:
    """Return the predicted steps, a row for each plan, a column for each case."""
    ends = {
        "matmul": error,
        "node bandwidth": 2 * error,
        "pod bandwidth": 2 * error,
        "skew": 5 * error,
        "host": 5 * error,
    }
    found = [Steps(prepared, figures).seconds([f.value for f in figures])]
    for signs in product((-1, 1), repeat=len(ends)):
        moved = dict(zip(ends, signs, strict=True))
        values = [_moved(figure, ends, moved) for figure in figures]
        found.append(Steps(prepared, figures).seconds(values))
    return np.array(found).T


def _moved(figure: Fitted, ends: dict[str, float], signs: dict[str, int]) -> float:
    for name, error in ends.items():
        if figure.name.endswith(name):
            moved = 1 + signs[name] * min(error, _MOST)
            is_rate = name in ("matmul", "node bandwidth", "pod bandwidth")
            return min(figure.value / moved if is_rate else figure.value * moved, figure.most)
    return figure.value


def _row(rows: Sequence[Row], table: np.ndarray, source: str, error: float) -> str:
    own = [group for group in groups(rows) if rows[group[0]].source == source]
    fastest, robust, other = [], [], 0
    for members in (group for group in own if len(group) >= _FEWEST):
        measured = np.array([rows[i].seconds for i in members])
        steps = table[members]
        first = int(steps[:, 0].argmin())
        chosen = least_regret(steps.tolist()).chosen
        fastest.append(measured[first] / measured.min() - 1)
        robust.append(measured[chosen] / measured.min() - 1)
        other += first != chosen
    cells = [
        f"{100 * x:.1f} %" for x in (np.mean(fastest), max(fastest), np.mean(robust), max(robust))
    ]
    return f"| {source}, {len(fastest)} | {error:.0%} | {' | '.join(cells)} | {other} |"


if __name__ == "__main__":
    sys.exit(main())
