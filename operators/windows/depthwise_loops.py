"""Depthwise convolutions as loops, which numba compiles where it is installed.

Each plane (one channel of one sample) is copied to a scratch buffer that stays in the cache, where
the elements under one tap of the kernel, over all windows, are one run. Knows no windows: positions
are numbers.
"""

from typing import Any, NamedTuple

import numpy as np

from shardwright.ir.optional import compiled_at_first_call, is_installed
from shardwright.operators.info import Array

COMPILED = is_installed("numba")
"""Whether the loops are compiled; uncompiled they are too slow to call."""


class Places(NamedTuple):
    """The positions of the elements of a plane and of its windows in scratch buffers.

    Both are rows of equal width, each contiguous.

    Attributes
    ----------
    elements, element_width : array, int
        The first position of each row of the plane in the buffer, which is zero elsewhere.
    dropped : array
        Positions that are cleared after the rows are copied.
    copies : int
        Number of copies of the rows in the buffer.
    windows, window_width : array, int
        The first position of each row of windows in a run.
    starts : array
        The first position of the run of each tap.
    length : int
        Length of a run.
    size : int
        Size of the buffer.
    """

    elements: Array
    element_width: int
    dropped: Array
    copies: int
    windows: Array
    window_width: int
    starts: Array
    length: int
    size: int


def _put(values: Any, starts: Any, width: int, buffer: Any) -> None:
    """Copy rows of values to their positions in a buffer."""
    if width == 1:
        for k in range(len(starts)):
            buffer[starts[k]] = values[k]
    else:
        for k in range(len(starts)):
            to, row = buffer[starts[k] : starts[k] + width], values[k * width : (k + 1) * width]
            for j in range(width):
                to[j] = row[j]


def _lay(values: Any, starts: Any, width: int, dropped: Any, copies: int, buffer: Any) -> None:
    """Copy a plane to its positions in a buffer, as often as `copies` says."""
    if copies == 1:
        _put(values, starts, width, buffer)
    else:  # each is one row
        for k in range(copies):
            to = buffer[starts[k] : starts[k] + width]
            for j in range(width):
                to[j] = values[j]
        for k in range(len(dropped)):
            buffer[dropped[k]] = 0


def _take(buffer: Any, starts: Any, width: int, values: Any) -> None:
    """Copy rows of values out of a buffer."""
    if width == 1:
        for k in range(len(starts)):
            values[k] = buffer[starts[k]]
    else:
        for k in range(len(starts)):
            row, to = buffer[starts[k] : starts[k] + width], values[k * width : (k + 1) * width]
            for j in range(width):
                to[j] = row[j]


def _weigh(x: Any, starts: Any, w: Any, sums: Any) -> None:
    """Set `sums` to the weighted sum of the runs of all taps: nine, three or one per pass.

    Runs are sliced here, since numba counts references of arrays that a function returns.
    """
    n, t = len(sums), 0
    sums[:] = 0
    while t + 9 <= len(w):
        a, b = x[starts[t] : starts[t] + n], x[starts[t + 1] : starts[t + 1] + n]
        c, d = x[starts[t + 2] : starts[t + 2] + n], x[starts[t + 3] : starts[t + 3] + n]
        e, f = x[starts[t + 4] : starts[t + 4] + n], x[starts[t + 5] : starts[t + 5] + n]
        g, h = x[starts[t + 6] : starts[t + 6] + n], x[starts[t + 7] : starts[t + 7] + n]
        k = x[starts[t + 8] : starts[t + 8] + n]
        u0, u1, u2, u3, u4 = w[t], w[t + 1], w[t + 2], w[t + 3], w[t + 4]
        u5, u6, u7, u8 = w[t + 5], w[t + 6], w[t + 7], w[t + 8]
        for i in range(n):
            left = a[i] * u0 + b[i] * u1 + c[i] * u2 + d[i] * u3 + e[i] * u4
            sums[i] += left + f[i] * u5 + g[i] * u6 + h[i] * u7 + k[i] * u8
        t += 9
    while t + 3 <= len(w):
        a, b = x[starts[t] : starts[t] + n], x[starts[t + 1] : starts[t + 1] + n]
        c = x[starts[t + 2] : starts[t + 2] + n]
        u0, u1, u2 = w[t], w[t + 1], w[t + 2]
        for i in range(n):
            sums[i] += a[i] * u0 + b[i] * u1 + c[i] * u2
        t += 3
    while t < len(w):
        a, u0 = x[starts[t] : starts[t] + n], w[t]
        for i in range(n):
            sums[i] += a[i] * u0
        t += 1


# Sums in any order, so that the loops vectorize.
_compiled = compiled_at_first_call(
    need="a compiled convolution",
    fastmath={"reassoc", "contract"},
    called=(_put, _lay, _take, _weigh),
)


@_compiled
def forward(x: Any, w: Any, out: Any, places: Any) -> None:
    """Convolve ``[n, c, element]`` by ``[c, m, tap]`` to ``[n, c, m, window]``."""
    elements, width, dropped, copies, windows, span, starts, length, size = places
    plane, total = np.zeros(size, x.dtype), np.zeros(length, x.dtype)
    direct = span == length
    for n in range(x.shape[0]):
        for c in range(x.shape[1]):
            _lay(x[n, c], elements, width, dropped, copies, plane)
            for m in range(w.shape[1]):
                if direct:
                    _weigh(plane, starts, w[c, m], out[n, c, m])
                else:
                    _weigh(plane, starts, w[c, m], total)
                    _take(total, windows, span, out[n, c, m])


@_compiled
def transposed(y: Any, w: Any, out: Any, places: Any) -> None:
    """Compute the transpose of `forward`: ``[n, c, m, window]`` to ``[n, c, element]``."""
    elements, width, _, _, windows, span, starts, length, size = places
    plane, spread = np.zeros(size, y.dtype), np.zeros(length, y.dtype)
    for n in range(y.shape[0]):
        for c in range(y.shape[1]):
            plane[:] = 0
            for m in range(y.shape[2]):
                _put(y[n, c, m], windows, span, spread)
                for t in range(len(starts)):
                    factor, a = w[c, m, t], plane[starts[t] : starts[t] + length]
                    for i in range(length):
                        a[i] += spread[i] * factor
            _take(plane, elements, width, out[n, c])


@_compiled
def weight_gradient(x: Any, y: Any, total: Any, places: Any) -> None:
    """Add the gradient of `forward` by its weight to ``[c, m, tap]``."""
    elements, width, dropped, copies, windows, span, starts, length, size = places
    plane, spread = np.zeros(size, x.dtype), np.zeros(length, y.dtype)
    for n in range(x.shape[0]):
        for c in range(x.shape[1]):
            _lay(x[n, c], elements, width, dropped, copies, plane)
            for m in range(y.shape[2]):
                _put(y[n, c, m], windows, span, spread)
                for t in range(len(starts)):
                    a = plane[starts[t] : starts[t] + length]
                    product = spread[0] * a[0]
                    for i in range(1, length):
                        product += spread[i] * a[i]
                    total[c, m, t] += product
