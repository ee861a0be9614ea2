"""What choosing among plans of one model by their predicted steps costs, as measured."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.measurements.rows import Row, groups
from shardwright.compiler.fit.simplest import kinds

Floats = NDArray[np.float64]
_FEWEST = 4  # plans of a group whose choice is judged
_FEW = 5  # groups of a source, of which each has a row
_HEAD = """## Choice

Groups of plans of one model on as many devices, with one batch. The regret is how much longer the
chosen plan was measured to take than the best of its group. **Simplest** is what `fit` chooses: the
plan with the fewest kinds of parallelism of those that are not told from the fastest predicted one.

| source | group | plans | fastest: regret | simplest: regret | rank correlation | of data sheet |
|---|---|---|---|---|---|---|"""


def choices(rows: Sequence[Row], model: Floats, peaks: Floats, apart: float) -> list[str]:
    """Return the lines of the page.

    Parameters
    ----------
    rows : sequence of Row
        The rows.
    model, peaks : array
        Their predicted steps, and those by data sheets.
    apart : float
        By which share of the faster one predicted steps have to differ to be told apart.
    """
    measured = np.array([row.seconds for row in rows])
    lines = [_HEAD]
    large = [group for group in groups(rows) if len(group) >= _FEWEST]
    for source in dict.fromkeys(rows[group[0]].source for group in large):
        own = [group for group in large if rows[group[0]].source == source]
        found = np.array(
            [
                (
                    *regrets([rows[i] for i in group], model[group], apart),
                    _rank(measured[group], model[group]),
                    _regret(measured[group], int(np.argmin(peaks[group]))),
                )
                for group in own
            ]
        )
        for group, each in zip(own if len(own) <= _FEW else (), found, strict=False):
            row = rows[group[0]]
            name = f"hidden {dict(row.sizes)['hidden']}, {row.layers} layers, {row.devices}"
            lines.append(f"| {source} | {name} | {len(group)} | {_cells(each)} |")
        if len(own) > 1:
            count, most = sum(map(len, own)), f"{100 * found[:, 0].max():.1f} %"
            cells = _cells(found.mean(axis=0)).split(" | ")
            cells[0] += f", most {most}"
            cells[1] += f", most {100 * found[:, 1].max():.1f} %"
            lines.append(f"| {source} | mean of {len(own)} | {count} | {' | '.join(cells)} |")
    return lines


def regrets(rows: Sequence[Row], predicted: Floats, apart: float) -> tuple[float, float]:
    """Return the regret of the plan of a group that is predicted fastest, and of the simplest."""
    measured = np.array([row.seconds for row in rows])
    near = np.flatnonzero(predicted < predicted.min() * (1 + apart))
    first = min(near, key=lambda i: (kinds(rows[i].plan), predicted[i]))
    return _regret(measured, int(np.argmin(predicted))), _regret(measured, int(first))


def _regret(measured: Floats, chosen: int) -> float:
    return float(measured[chosen] / measured.min() - 1)


def _rank(measured: Floats, predicted: Floats) -> float:
    """Return Spearman's correlation."""
    first, second = (np.argsort(np.argsort(x)).astype(float) for x in (measured, predicted))
    return float(np.corrcoef(first, second)[0, 1])


def _cells(found: Floats) -> str:
    fastest, simplest, rank, bare = found
    return f"{100 * fastest:.1f} % | {100 * simplest:.1f} % | {rank:.2f} | {100 * bare:.1f} %"
