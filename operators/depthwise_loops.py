"""Depthwise convolutions as loops, which numba compiles where it is installed.

Each plane, one channel of one sample, goes into a scratch buffer that stays in the cache. There the
elements which one tap of the kernel meets in all windows are one run, and the plane is done with
before the next one begins. Knows nothing of windows: places are given as numbers.
"""

import importlib
import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeVar

import numpy as np

from shardwright.operators.info import Array

Function = TypeVar("Function", bound=Callable[..., None])

COMPILED = importlib.util.find_spec("numba") is not None
"""Whether the loops are fast; without numba they are not worth calling."""


class Places(NamedTuple):
    """Where the elements of a plane and of its windows lie in scratch buffers.

    Both come in rows of equal width that lie there in one piece.

    Attributes
    ----------
    elements, element_width : array, int
        For each row of the plane where it begins in the buffer, which has zeros elsewhere.
    windows, window_width : array, int
        For each row of windows where it begins in a run.
    starts : array
        For each tap where its run begins in the buffer.
    length : int
        Length of a run.
    size : int
        Size of the buffer.
    """

    elements: Array
    element_width: int
    windows: Array
    window_width: int
    starts: Array
    length: int
    size: int


def _put(values: Any, starts: Any, width: int, buffer: Any) -> None:
    """Put rows of values where they lie in a buffer."""
    if width == 1:
        for k in range(len(starts)):
            buffer[starts[k]] = values[k]
    else:
        for k in range(len(starts)):
            to, row = buffer[starts[k] : starts[k] + width], values[k * width : (k + 1) * width]
            for j in range(width):
                to[j] = row[j]


def _take(buffer: Any, starts: Any, width: int, values: Any) -> None:
    """Take rows of values out of a buffer."""
    if width == 1:
        for k in range(len(starts)):
            values[k] = buffer[starts[k]]
    else:
        for k in range(len(starts)):
            row, to = buffer[starts[k] : starts[k] + width], values[k * width : (k + 1) * width]
            for j in range(width):
                to[j] = row[j]


@cache
def _numba() -> Any:
    """Return numba, which from then on knows the functions that the loops call."""
    numba = importlib.import_module("numba")
    for function in (_put, _take):
        numba.extending.register_jitable(function)
    return numba


def _compiled(function: Function) -> Function:
    """Compile a function when it is first called, and keep the machine code for later processes."""

    @cache
    def fast() -> Any:
        # Sums may be taken in any order, so that several are taken at once.
        order = {"reassoc", "contract"}
        options = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": order}
        return _numba().njit(**options)(function)

    def call(*arguments: object) -> None:
        fast()(*arguments)

    return call  # type: ignore[return-value]


@_compiled
def forward(x: Any, w: Any, out: Any, places: Any) -> None:
    """Convolve ``[n, c, element]`` by ``[c, m, tap]`` to ``[n, c, m, window]``."""
    elements, width, windows, span, starts, length, size = places
    whole = len(starts) // 3 * 3
    plane, total = np.zeros(size, x.dtype), np.zeros(length, x.dtype)
    for n in range(x.shape[0]):
        for c in range(x.shape[1]):
            _put(x[n, c], elements, width, plane)
            for m in range(w.shape[1]):
                if not whole:
                    total[:] = 0
                for t in range(0, whole, 3):  # three taps in one pass
                    f0, f1, f2 = w[c, m, t], w[c, m, t + 1], w[c, m, t + 2]
                    a = plane[starts[t] : starts[t] + length]
                    b = plane[starts[t + 1] : starts[t + 1] + length]
                    d = plane[starts[t + 2] : starts[t + 2] + length]
                    if t:
                        for i in range(length):
                            total[i] += a[i] * f0 + b[i] * f1 + d[i] * f2
                    else:
                        for i in range(length):
                            total[i] = a[i] * f0 + b[i] * f1 + d[i] * f2
                for t in range(whole, len(starts)):
                    factor, a = w[c, m, t], plane[starts[t] : starts[t] + length]
                    for i in range(length):
                        total[i] += a[i] * factor
                _take(total, windows, span, out[n, c, m])


@_compiled
def transposed(y: Any, w: Any, out: Any, places: Any) -> None:
    """Do the transpose of `forward`: ``[n, c, m, window]`` to ``[n, c, element]``."""
    elements, width, windows, span, starts, length, size = places
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
    elements, width, windows, span, starts, length, size = places
    plane, spread = np.zeros(size, x.dtype), np.zeros(length, y.dtype)
    for n in range(x.shape[0]):
        for c in range(x.shape[1]):
            _put(x[n, c], elements, width, plane)
            for m in range(y.shape[2]):
                _put(y[n, c, m], windows, span, spread)
                for t in range(len(starts)):
                    a = plane[starts[t] : starts[t] + length]
                    product = spread[0] * a[0]
                    for i in range(1, length):
                        product += spread[i] * a[i]
                    total[c, m, t] += product
