"""Fits figures to measured steps: least squares of the logarithms, robust, with weak priors.

The unknowns are logarithms of figures; a figure may stand in several files. The minimum is
of the sum over rows of w * rho(log(predicted / measured)), where rho is soft-l1, rho(r) =
2 s^2 (sqrt(1 + (r/s)^2) - 1), and over unknowns of ((log x - log prior) / sigma)^2. The steps are
those of Levenberg and Marquardt with reweighted residuals.

References
----------
Triggs, McLauchlan, Hartley and Fitzgibbon, "Bundle adjustment: a modern synthesis", 2000, part 4.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
SCALE = 0.2
"""The residual from which an error counts less than its square: 20 %."""
_DAMPING = 1e-2  # share of the curvature that is added at first; it follows what steps gain


@dataclass(frozen=True)
class Unknown:
    """A figure to fit.

    Parameters
    ----------
    name : str
        Its name.
    prior : float
        The value that is assumed without rows.
    sigma : float
        Standard deviation of the logarithm around it.
    most : float
        Its upper bound: 1 for a share.
    start : float, optional
        Where to begin; by default the prior.
    """

    name: str
    prior: float
    sigma: float
    most: float = np.inf
    start: float | None = None


@dataclass(frozen=True)
class Fit:
    """Fitted figures.

    Parameters
    ----------
    values : tuple of float
        The value of each unknown.
    sigmas : tuple of float
        The standard deviation of the logarithm of each, priors included: where it is that of the
        prior, rows say nothing of the figure.
    objective : float
        The minimized sum.
    """

    values: tuple[float, ...]
    sigmas: tuple[float, ...]
    objective: float


Residuals = Callable[[Sequence[float]], Floats]
Derivatives = Callable[[Sequence[float], float], Floats]


def fit(
    unknowns: Sequence[Unknown],
    residuals: Residuals,
    derivatives: Derivatives,
    weights: Floats,
    steps: int = 20,
) -> Fit:
    """Return the figures of the least sum.

    Parameters
    ----------
    unknowns : sequence of Unknown
        The figures.
    residuals : callable
        Returns log(predicted / measured) of every row, for some values.
    derivatives : callable
        Returns the derivatives of the residuals by the logarithms, rows by unknowns, at the values
        of the last call of `residuals`, given a relative difference.
    weights : array
        The weight of each row.
    steps : int
        Greatest number of steps.
    """
    prior = np.log([unknown.prior for unknown in unknowns])
    sigma = np.array([unknown.sigma for unknown in unknowns])
    most = np.log([unknown.most for unknown in unknowns])
    at = np.log([unknown.start or unknown.prior for unknown in unknowns])
    damping = _DAMPING
    found = residuals(np.exp(at).tolist())
    best = _objective(found, weights) + float((((at - prior) / sigma) ** 2).sum())
    slopes = derivatives(np.exp(at).tolist(), 1e-3)
    for _ in range(steps):
        scaled = weights / np.sqrt(1 + (found / SCALE) ** 2)
        normal = slopes.T @ (scaled[:, None] * slopes) + np.diag(sigma**-2.0)
        gradient = slopes.T @ (scaled * found) + (at - prior) / sigma**2
        damped = normal + damping * np.diag(np.diag(normal))
        tried = _bounded(at, damped, gradient, most)
        errors = residuals(np.exp(tried).tolist())
        value = _objective(errors, weights) + float((((tried - prior) / sigma) ** 2).sum())
        if value >= best:
            damping *= 8
            if damping > 1e4:
                break
            continue
        done = best - value < 1e-4 * best
        at, found, best, damping = tried, errors, value, damping / 4
        if done:
            break
        slopes = derivatives(np.exp(at).tolist(), 1e-3)
    scaled = weights / np.sqrt(1 + (found / SCALE) ** 2)
    covariance = np.linalg.inv(slopes.T @ (scaled[:, None] * slopes) + np.diag(sigma**-2.0))
    sigmas = np.sqrt(np.diag(covariance))
    return Fit(tuple(np.exp(at).tolist()), tuple(sigmas.tolist()), best)


def _bounded(at: Floats, normal: Floats, gradient: Floats, most: Floats) -> Floats:
    """Return the minimum of a quadratic; unknowns that would exceed their bound stay there."""
    tried, free = at.copy(), np.ones(len(at), dtype=bool)
    while free.any():
        fixed = np.where(free, 0.0, most - at)
        right = gradient[free] + normal[np.ix_(free, ~free)] @ fixed[~free]
        tried = at + fixed
        tried[free] -= np.linalg.solve(normal[np.ix_(free, free)], right)
        beyond = free & (tried > most)
        if not beyond.any():
            break
        free &= ~beyond
    return np.asarray(np.minimum(tried, most))


def _objective(residuals: Floats, weights: Floats) -> float:
    return float((weights * 2 * SCALE**2 * (np.sqrt(1 + (residuals / SCALE) ** 2) - 1)).sum())
