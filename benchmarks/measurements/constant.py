"""What a constant efficiency predicts, and what others claim, for comparison.

A constant efficiency takes the floating-point operations of a step, with those that are computed
again, over the peak of all devices times one share: the best one for the rows.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.measurements.rows import Row
from shardwright.cost_model.cluster import cluster
from shardwright.operators.models.recipes import RECIPES

Floats = NDArray[np.float64]

CLAIMS = {
    "vTrain multi": "vTrain, profiled kernels: 14.7 %",
    "vTrain single": "vTrain, profiled kernels: 8.4 %",
    "SimuMax": "SimuMax, measured efficiencies: -13.5 to +0.1 %",
}
"""Errors that others publish of their own predictions for a source."""


def flops(row: Row) -> float:
    """Return the floating-point operations of a step: products, three or four times forward.

    Attention is counted over all positions, as those who publish shares of a peak do.
    """
    sizes = dict(row.sizes)
    hidden, sequence, vocabulary = sizes["hidden"], sizes["sequence"], sizes["vocabulary"]
    if row.family == "gpt":
        weights = 12 * hidden**2
    else:
        kept = sizes["kv_heads"] / sizes["heads"]
        weights = round((2 + 2 * kept) * hidden**2) + 3 * hidden * sizes["inner"]
    layers = row.layers * (2 * weights + 4 * sequence * hidden)
    again = row.plan.recompute == "full"
    return row.batch * sequence * ((3 + again) * layers + 3 * 2 * vocabulary * hidden)


def shares(rows: Sequence[Row]) -> Floats:
    """Return the share of the peak of its devices that each row attained."""
    peaks = np.array([_peak(row) for row in rows])
    return np.array([flops(row) / row.seconds for row in rows]) / peaks


def _peak(row: Row) -> float:
    peaks = cluster(row.cluster).device.peak_flops
    recipe = RECIPES.get(row.precision)
    return row.devices * peaks[row.precision if recipe is None else recipe.rate]


def errors(rows: Sequence[Row]) -> dict[str, tuple[float, float]]:
    """Return of each source the error with its best share, and with the best one for all sources.

    That one has the least mean of the errors of the sources.
    """
    found = shares(rows)
    of_rows = np.array([row.source for row in rows])
    sources = list(dict.fromkeys(row.source for row in rows))
    # The sum of |share / constant - 1| is least where the constant is a share of a row.
    table = np.array([_errors(found[of_rows == source], found) for source in sources])
    common = int(table.mean(axis=0).argmin())
    pairs = zip(sources, table, strict=True)
    return {source: (float(own.min()), float(own[common])) for source, own in pairs}


def _errors(own: Floats, constants: Floats) -> Floats:
    """Return the mean error of some rows for each constant."""
    return np.array([np.abs(own / constant - 1).mean() for constant in constants])
