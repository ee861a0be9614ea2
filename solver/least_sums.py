"""The least sums of tables over their first axis: the message of a variable that is eliminated.

Tables are added in the order of their sizes, and each sum is rounded as numpy rounds it: with numba
and without, the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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

ROWS = 16
"""Rows of a result that are lowered together: entries of tables that all rows read come from memory
once for so many. With half and with twice as many, sums take as long, up to 5 %; with one row, 1.5
to 3 times as long."""

RUN = 32
"""Least length of the inner loop: by shorter ones numpy is as fast, or faster.

With half of it, sums of five axes of 16 take 2.5 times as long; with twice as much, those of axes
of 40, 30 and 30 take 1.3 times as long."""


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
    flat = [part.transpose(order) for part in (total, *parts[summed:])]
    if all(part.shape[-1] == 1 for part in flat):
        flat[-1] = np.repeat(flat[-1], lengths[-1], axis=-1)
    places = np.cumsum([0, *[part.size for part in flat[:-1]]])
    strides = [_strides(part) for part in flat]
    starts = [
        _starts(lengths[1:-1], each[1:-1]) + place
        for place, each in zip(places, strides, strict=True)
    ]
    steps = np.array([(each[0], each[-1]) for each in strides])
    least = np.full((math.prod(lengths[1:-1]), lengths[-1]), np.inf)
    values = np.concatenate([part.ravel() for part in flat])
    _by_loops(values, np.array(starts), steps, shape[0], least)
    back = np.argsort(order[1:])
    return np.ascontiguousarray(least.reshape(lengths[1:]).transpose(back))


def _strides(part: Array) -> list[int]:
    """Return how far apart entries are along each axis, in a row-major copy; 0 for length one."""
    apart = [math.prod(part.shape[axis + 1 :]) for axis in range(part.ndim)]
    return [step if length > 1 else 0 for step, length in zip(apart, part.shape, strict=True)]


def _starts(lengths: Sequence[int], strides: Sequence[int]) -> Array:
    """Return where the entries of a row-major copy begin, for every choice of some axes.

    Examples
    --------
    >>> _starts((2, 3), (10, 1))
    array([ 0,  1,  2, 10, 11, 12])
    """
    starts: Array = np.zeros(1, dtype=np.int64)
    for length, stride in zip(lengths, strides, strict=True):
        starts = np.add.outer(starts, stride * np.arange(length)).ravel()
    return starts


@compiled_at_first_call(need="the compiled elimination")
def _by_loops(values: Any, starts: Any, steps: Any, count: Any, least: Any) -> None:
    """Lower ``least[i, j]`` to the minimum over v of the sum of the tables at ``[v, i, j]``.

    The first tables have one entry for all j, and are added once. One has an entry for each.
    """
    rows, columns = least.shape
    total, final = np.empty(columns), len(starts) - 1
    scalars = 0
    while steps[scalars, 1] == 0:
        scalars += 1
    for block in range(0, rows, ROWS):
        for v in range(count):
            for i in range(block, min(block + ROWS, rows)):
                lowest, one = least[i], 0.0
                for k in range(scalars):
                    one += values[starts[k, i] + v * steps[k, 0]]
                place = starts[scalars, i] + v * steps[scalars, 0]
                run = values[place : place + columns]
                if scalars == final:
                    for j in range(columns):
                        lowest[j] = min(lowest[j], one + run[j])
                    continue
                for j in range(columns):
                    total[j] = one + run[j]
                for k in range(scalars + 1, final):
                    place = starts[k, i] + v * steps[k, 0]
                    if steps[k, 1] == 0:
                        total += values[place]
                    else:
                        total += values[place : place + columns]
                place = starts[final, i] + v * steps[final, 0]
                if steps[final, 1] == 0:
                    value = values[place]
                    for j in range(columns):
                        lowest[j] = min(lowest[j], total[j] + value)
                else:
                    run = values[place : place + columns]
                    for j in range(columns):
                        lowest[j] = min(lowest[j], total[j] + run[j])
