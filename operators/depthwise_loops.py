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

    Attributes
    ----------
    elements : array
        For each element of the plane its place in the buffer, which has zeros elsewhere.
    windows : array
        For each window its place in a run.
    starts : array
        For each tap where its run begins in the buffer.
    length : int
        Length of a run.
    size : int
        Size of the buffer.
    """

    elements: Array
    windows: Array
    starts: Array
    length: int
    size: int


def _compiled(function: Function) -> Function:
    """Compile a function when it is first called, and keep the machine code for later processes."""

    @cache
    def fast() -> Any:
        numba = importlib.import_module("numba")
        # Sums may be taken in any order, so that several are taken at once.
        order = {"reassoc", "contract"}
        return numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=order)(function)

    def call(*arguments: object) -> None:
        fast()(*arguments)

    return call  # type: ignore[return-value]


@_compiled
def forward(x: Any, w: Any, out: Any, places: Any) -> None:
    """Convolve ``[n, c, element]`` by ``[c, m, tap]`` to ``[n, c, m, window]``."""
    elements, windows, starts, length, size = places
    taps = len(starts)
    plane, total = np.zeros(size, x.dtype), np.empty(length, x.dtype)
    for n in range(x.shape[0]):
        for c in range(x.shape[1]):
            for e in range(len(elements)):
                plane[elements[e]] = x[n, c, e]
            for m in range(w.shape[1]):
                total[:] = 0
                whole = taps // 3 * 3
                for t in range(0, whole, 3):  # three taps in one pass
                    f0, f1, f2 = w[c, m, t], w[c, m, t + 1], w[c, m, t + 2]
                    a = plane[starts[t] : starts[t] + length]
                    b = plane[starts[t + 1] : starts[t + 1] + length]
                    d = plane[starts[t + 2] : starts[t + 2] + length]
                    for i in range(length):
                        total[i] += a[i] * f0 + b[i] * f1 + d[i] * f2
                for t in range(whole, taps):
                    factor, a = w[c, m, t], plane[starts[t] : starts[t] + length]
                    for i in range(length):
                        total[i] += a[i] * factor
                for o in range(len(windows)):
                    out[n, c, m, o] = total[windows[o]]


@_compiled
def transposed(y: Any, w: Any, out: Any, places: Any) -> None:
    """Do the transpose of `forward`: ``[n, c, m, window]`` to ``[n, c, element]``."""
    elements, windows, starts, length, size = places
    plane, spread = np.zeros(size, y.dtype), np.zeros(length, y.dtype)
    for n in range(y.shape[0]):
        for c in range(y.shape[1]):
            plane[:] = 0
            for m in range(y.shape[2]):
                for o in range(len(windows)):
                    spread[windows[o]] = y[n, c, m, o]
                for t in range(len(starts)):
                    factor, a = w[c, m, t], plane[starts[t] : starts[t] + length]
                    for i in range(length):
                        a[i] += spread[i] * factor
            for e in range(len(elements)):
                out[n, c, e] = plane[elements[e]]


@_compiled
def weight_gradient(x: Any, y: Any, total: Any, places: Any) -> None:
    """Add the gradient of `forward` by its weight to ``[c, m, tap]``."""
    elements, windows, starts, length, size = places
    plane, spread = np.zeros(size, x.dtype), np.zeros(length, y.dtype)
    for n in range(x.shape[0]):
        for c in range(x.shape[1]):
            for e in range(len(elements)):
                plane[elements[e]] = x[n, c, e]
            for m in range(y.shape[2]):
                for o in range(len(windows)):
                    spread[windows[o]] = y[n, c, m, o]
                for t in range(len(starts)):
                    a = plane[starts[t] : starts[t] + length]
                    product = spread[0] * a[0]
                    for i in range(1, length):
                        product += spread[i] * a[i]
                    total[c, m, t] += product
