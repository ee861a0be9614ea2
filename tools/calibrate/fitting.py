"""Fits of measured times to a launch and a rate, and to a latency and a bandwidth.

Both are lines of seconds over work. They are fitted by least squares of the relative error, since
small and large work matter alike; neither coefficient is negative.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Sample:
    """A measured time.

    Parameters
    ----------
    fixed, amount : float
        How often the fixed seconds count, and the work: flops or bytes.
    seconds : float
        The time.
    """

    fixed: float
    amount: float
    seconds: float


@dataclass(frozen=True)
class Line:
    """Seconds as a line over work.

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
    """

    fixed: float
    rate: float
    error: float
    samples: int

    @property
    def text(self) -> str:
        """How well it fits, in words."""
        return f"{self.samples} samples, median error {self.error:.1%}"


def fitted(samples: Sequence[Sample]) -> Line:
    """Return the line of least relative error, both of whose coefficients are at least zero.

    Parameters
    ----------
    samples : sequence of Sample
        At least one, with positive seconds.
    """
    rows = np.array([(s.fixed / s.seconds, s.amount / s.seconds) for s in samples])
    scale = np.where(rows.max(axis=0) > 0, rows.max(axis=0), 1.0)
    best, found = np.inf, np.zeros(2)
    for kept in ((0, 1), (0,), (1,)):
        columns = (rows / scale)[:, kept]
        solution = np.linalg.lstsq(columns, np.ones(len(rows)), rcond=None)[0]
        error = float(((columns @ solution - 1) ** 2).sum())
        if (solution >= 0).all() and error < best * (1 - 1e-9):
            best, found = error, np.zeros(2)
            found[list(kept)] = solution
    fixed, slope = (found / scale).tolist()
    errors = np.abs(rows @ np.array([fixed, slope]) - 1)
    most = max(s.amount for s in samples)
    rate = 1 / slope if slope > 0 else max(most, 1.0) * 1e9  # work takes no time that is seen
    return Line(float(fixed), float(rate), float(np.median(errors)), len(samples))
