"""Windows as the columns of matrices, a bounded number at a time."""

from collections.abc import Iterator
from math import prod

import numpy as np

from shardwright.operators.info import Array
from shardwright.operators.rule import Shape
from shardwright.operators.windows.geometry import Index, Windows

_ELEMENTS_AT_ONCE = 1 << 19


def sample_blocks(samples: int, elements: int) -> Iterator[slice]:
    """Yield slices of the samples that bound the number of elements."""
    step = max(1, _ELEMENTS_AT_ONCE // elements)
    for start in range(0, samples, step):
        yield slice(start, min(start + step, samples))


def _row_blocks(count: Shape, elements_per_window: int) -> Iterator[slice]:
    """Yield slices of the windows along the first dimension of the space."""
    step = max(1, _ELEMENTS_AT_ONCE // (elements_per_window * prod(count[1:])))
    for start in range(0, count[0], step):
        yield slice(start, min(start + step, count[0]))


def _places(rows: slice, count: Shape) -> slice:
    """Return rows of windows as a slice of all windows in row-major order."""
    behind = prod(count[1:])
    return slice(rows.start * behind, rows.stop * behind)


def columns(
    x: Array, windows: Windows, count: Shape, groups: int
) -> Iterator[tuple[slice, slice, Array]]:
    """Yield blocks of windows as matrices ``[sample, group, channel kernel, window]``.

    Yields
    ------
    tuple of slice, slice, array
        The samples, the windows in row-major order, and the columns.
    """
    rank = len(count)
    column = x.shape[1] * windows.taps
    for samples in sample_blocks(len(x), column * prod(count)):
        found = windows.over(windows.pad(x[samples]), count)
        found = np.moveaxis(found, range(-rank, 0), range(2, 2 + rank))  # [n, c, *kernel, *count]
        for rows in _row_blocks(count, column * (samples.stop - samples.start)):
            index: Index = (..., rows, *(slice(None),) * (rank - 1))
            shape = (samples.stop - samples.start, groups, column // groups, -1)
            yield samples, _places(rows, count), found[index].reshape(shape)


def accumulate_columns(
    total: Array, weight: Array, flat: Array, windows: Windows, count: Shape
) -> None:
    """Add the columns ``weight @ flat`` to the padded spaces they were taken from.

    Parameters
    ----------
    total : array
        Padded spaces ``[sample, channel, *padded]``; changed in place.
    weight : array
        ``[group, channel kernel, contracted]``.
    flat : array
        ``[sample, group, contracted, window]``.
    windows, count
        The windows, and their number along each dimension.
    """
    rank, channels = len(count), total.shape[1]
    places = windows.over(total, count, writeable=True)
    for rows in _row_blocks(count, len(total) * channels * windows.taps):
        height = rows.stop - rows.start
        made = np.matmul(weight, flat[..., _places(rows, count)])
        made = made.reshape(len(total), channels, windows.taps, height, *count[1:])
        for number, tap in enumerate(np.ndindex(*windows.kernel)):
            inner = (slice(None),) * (rank - 1)
            places[(slice(None), slice(None), rows, *inner, *tap)] += made[:, :, number]
