"""The comparison of a plan's tensors with those of the single-device program."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

import numpy as np

from shardwright.operators.info import Array


@dataclass(frozen=True)
class Comparison:
    """The result of comparing two sets of tensors.

    Parameters
    ----------
    equal : bool
        Whether every tensor agrees within the tolerance.
    max_relative_error : float
        The greatest relative error; infinite where shapes differ or a tensor is missing or is not
        a number.
    first_difference : str or None
        The first tensor, in the order of the reference, that differs.
    tensors : int
        Number of compared tensors.
    errors : mapping of str to float
        The relative error of each tensor.
    """

    equal: bool
    max_relative_error: float
    first_difference: str | None
    tensors: int
    errors: Mapping[str, float]


def compare(
    reference: Mapping[str, Array],
    plan: Mapping[str, Array],
    tolerance: float,
    scales: Mapping[str, float] | None = None,
) -> Comparison:
    """Compare tensors by name.

    The relative error of a tensor is ``max|a - b| / scale``.

    Parameters
    ----------
    reference, plan : mapping of str to array
        Whole tensors; the first difference is the first in the order of the reference.
    tolerance : float
        Greatest relative error of equal tensors.
    scales : mapping of str to float, optional
        Scale of the error of each tensor; by default its largest magnitude.
    """
    scales = scales or {}
    errors = {
        name: _relative_error(array, plan.get(name), scales.get(name, magnitude(array)))
        for name, array in reference.items()
    }
    errors.update((name, inf) for name in plan if name not in reference)
    different = [name for name, error in errors.items() if not error <= tolerance]
    return Comparison(
        equal=not different,
        max_relative_error=max(errors.values(), default=0.0),
        first_difference=different[0] if different else None,
        tensors=len(errors),
        errors=errors,
    )


def magnitude(array: Array) -> float:
    """Return the largest finite magnitude."""
    finite = np.abs(np.asarray(array, np.float64))
    return float(np.max(finite, initial=0.0, where=np.isfinite(finite)))


def _relative_error(a: Array, b: Array | None, scale: float) -> float:
    if b is None or np.shape(a) != np.shape(b):
        return inf
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    finite = np.isfinite(x)
    # Equal infinities agree; NaN agrees with nothing.
    if not np.array_equal(finite, np.isfinite(y)) or not np.array_equal(x[~finite], y[~finite]):
        return inf
    difference = float(np.max(np.abs(x[finite] - y[finite]), initial=0.0))
    return difference / scale if scale else (inf if difference else 0.0)
