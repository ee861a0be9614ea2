"""The least sums of tables over their first axis: the message of a variable that is eliminated.

Tables are added in the order of their sizes, and each sum is rounded as numpy rounds it: with numba
and without, the same bits.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from shardwright.ir.optional import compiled_at_first_call, is_installed
from shardwright.solver.problem import Array

COMPILED = is_installed("numba")

LARGE = 2**16
"""Sums that are compiled where numba is installed: 0.1 ms of numpy, so that small problems, which
a third of a second of importing numba would double, do without."""

CHUNK = 2**18
"""Entries of one broadcast sum, so that it fits into the cache."""

RUN = 32
"""Least length of the inner loop: by one of a few entries numpy is as fast."""


def least_sums(parts: list[Array], shape: tuple[int, ...]) -> Array:
    """Return the minimum over the first axis of the broadcast sum of float64 tables.

    Parameters
    ----------
    parts : list of arrays
        Each has the axes of the shape, some of length one.
    shape : tuple of int
        Of the sum.

    Examples
    --------
    >>> rows, columns = np.array([[[0.0], [2.0]], [[1.0], [0.0]]]), np.array([[[0.0, 3.0]]] * 2)
    >>> least_sums([rows, columns], (2, 2, 2))
    array([[0., 3.],
           [0., 3.]])
    """
    parts = sorted(parts, key=lambda part: part.size)
    if COMPILED and math.prod(shape) >= LARGE and max(shape[1:], default=0) >= RUN:
        return _compiled(parts, shape)
    entries = math.prod(shape[1:])
    step = max(1, CHUNK // entries)
    best: Array | None = None
    for start in range(0, shape[0], step):
        total: Array = np.zeros(1)
        for part in parts:
            total = total + (part[start : start + step] if part.shape[0] > 1 else part)
        least = np.broadcast_to(total, (total.shape[0], *shape[1:])).min(axis=0)
        best = least if best is None else np.minimum(best, least)
    assert best is not None
    return best


def _compiled(parts: list[Array], shape: tuple[int, ...]) -> Array:
    """Return the same by loops over some axes, the first, and the last ones."""
    total: Array = np.zeros((1,) * len(shape))
    summed = 0
    for part in parts[:-1]:  # sums that are smaller than the shape are made once
        if np.broadcast_shapes(total.shape, part.shape) == shape:
            break
        total = total + part
        summed += 1
    order = [0, *sorted(range(1, len(shape)), key=shape.__getitem__)]  # the longest runs last
    lengths = tuple([shape[axis] for axis in order])
    flat = [_in_three(part.transpose(order), lengths) for part in (total, *parts[summed:])]
    places = np.cumsum([0, *[part.size for part in flat[:-1]]])
    strides = np.array([_strides(part) for part in flat])
    least = np.full((math.prod(lengths[1:-1]), lengths[-1]), np.inf)
    values = np.concatenate([part.ravel() for part in flat])
    _by_loops(values, places, strides, shape[0], least)
    back = np.argsort(order[1:])
    return np.ascontiguousarray(least.reshape(lengths[1:]).transpose(back))


def _in_three(part: Array, shape: tuple[int, ...]) -> Array:
    """Return a table with three axes: the first, those between, which may be none, and the last."""
    between = part.shape[1:-1]
    if any(length > 1 for length in between):
        between = shape[1:-1]
    whole = part.shape[0], *between, part.shape[-1]
    return np.broadcast_to(part, whole).reshape(part.shape[0], math.prod(between), part.shape[-1])


def _strides(part: Array) -> list[int]:
    """Return how far apart entries are along each axis, in a row-major copy; 0 for length one."""
    rows, columns = part.shape[1:]
    steps = rows * columns, columns, 1
    return [step if length > 1 else 0 for step, length in zip(steps, part.shape, strict=True)]


@compiled_at_first_call(need="the compiled elimination")
def _by_loops(values: Any, places: Any, strides: Any, count: Any, least: Any) -> None:
    """Lower ``least[i, j]`` to the minimum over v of the sum of the tables at ``[v, i, j]``."""
    rows, columns = least.shape
    total, final = np.empty(columns), len(places) - 1
    for i in range(rows):
        lowest = least[i]
        for v in range(count):
            for k in range(final):
                place = places[k] + v * strides[k, 0] + i * strides[k, 1]
                if k == 0:
                    total[:] = 0.0
                if strides[k, 2] == 0:
                    total += values[place]
                else:
                    total += values[place : place + columns]
            place = places[final] + v * strides[final, 0] + i * strides[final, 1]
            if strides[final, 2] == 0:
                value = values[place]
                for j in range(columns):
                    lowest[j] = min(lowest[j], total[j] + value)
            else:
                run = values[place : place + columns]
                for j in range(columns):
                    lowest[j] = min(lowest[j], total[j] + run[j])
