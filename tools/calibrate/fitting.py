"""Fits of measured times to a launch and rates, and to a latency and a bandwidth.

Seconds are linear in the work. They are fitted by least squares of the error over the square root
of the time: what takes long counts more, since times are added up, but small work is not lost. No
coefficient is negative.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby
from operator import itemgetter

import numpy as np

from shardwright.cost_model.efficiency.attained import ALIGNED


@dataclass(frozen=True)
class Sample:
    """A measured time.

    Parameters
    ----------
    fixed, amount : float
        How often the fixed seconds count, and the work: flops or bytes.
    seconds : float
        The time.
    traffic : float
        Bytes that are moved besides.
    alignment : int
        As of the work (`cost_model.efficiency.work`).
    """

    fixed: float
    amount: float
    seconds: float
    traffic: float = 0.0
    alignment: int = ALIGNED

    @property
    def is_aligned(self) -> bool:
        """Whether the dimensions of a product are multiples of 8."""
        return self.alignment == ALIGNED


@dataclass(frozen=True)
class Line:
    """Seconds as a linear function of work.

    Parameters
    ----------
    fixed : float
        Seconds without work.
    rate : float
        Work per second.
    error : float
        Median relative error over the samples.
    samples : int
        Number of samples.
    traffic : float
        Bytes per second of what is moved besides; infinite where that takes no time.
    """

    fixed: float
    rate: float
    error: float
    samples: int
    traffic: float = np.inf

    @property
    def text(self) -> str:
        """How well it fits, in words."""
        return f"{self.samples} samples, median error {self.error:.1%}"

    def seconds(self, sample: Sample) -> float:
        """Return the time of the work of a sample."""
        return self.fixed * sample.fixed + sample.amount / self.rate + sample.traffic / self.traffic


def rising(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return points by rising first numbers, the nearest ones whose second numbers do not fall.

    Points of one first number become their mean. Neighbours that fall become their mean, too: that
    is the fit of least squares (pool adjacent violators).
    """
    pools: list[tuple[list[float], float, int]] = []  # first numbers, the sum and the count
    for first, group in groupby(sorted(points), key=itemgetter(0)):
        seconds = [second for _, second in group]
        pool = [first], sum(seconds), len(seconds)
        while pools and pools[-1][1] / pools[-1][2] > pool[1] / pool[2]:
            firsts, total, count = pools.pop()
            pool = [*firsts, *pool[0]], total + pool[1], count + pool[2]
        pools.append(pool)
    return [(first, total / count) for firsts, total, count in pools for first in firsts]


def fitted(samples: Sequence[Sample]) -> Line:
    """Return the function of least error whose coefficients are at least zero.

    Parameters
    ----------
    samples : sequence of Sample
        At least one, with positive seconds.
    """
    seconds = np.array([s.seconds for s in samples])
    work = np.array([(s.fixed, s.amount, s.traffic) for s in samples])
    rows, target = work / np.sqrt(seconds)[:, None], np.sqrt(seconds)
    scale = np.where(rows.max(axis=0) > 0, rows.max(axis=0), 1.0)
    terms = [i for i in range(3) if rows[:, i].any()]
    best, found = np.inf, np.zeros(3)
    for kept in (k for n in range(1, len(terms) + 1) for k in combinations(terms, n)):
        columns = (rows / scale)[:, kept]
        solution = np.linalg.lstsq(columns, target, rcond=None)[0]
        error = float(((columns @ solution - target) ** 2).sum())
        if (solution >= 0).all() and error < best * (1 - 1e-9):
            best, found = error, np.zeros(3)
            found[list(kept)] = solution
    coefficients = found / scale
    errors = np.abs(work @ coefficients / seconds - 1)
    fixed, slope, moved = coefficients.tolist()
    most = max(s.amount for s in samples)
    rate = 1 / slope if slope > 0 else max(most, 1.0) * 1e9  # work takes no time that is seen
    traffic = 1 / moved if moved > 0 else np.inf
    return Line(float(fixed), float(rate), float(np.median(errors)), len(samples), traffic)
