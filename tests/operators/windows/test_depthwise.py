"""Depthwise convolutions, compiled and not, against a sum over taps."""

from itertools import product

import numpy as np
import pytest

from shardwright.operators.windows import depthwise, depthwise_loops
from shardwright.operators.windows.geometry import Windows

RANDOM = np.random.default_rng(0)
WINDOWS = [
    Windows((3,), (2,), ((1, 1),), (1,)),
    Windows((3, 2), (1, 1), ((1, 1), (0, 1)), (1, 1)),
    Windows((5, 3), (2, 3), ((2, 2), (1, 0)), (1, 2)),
    Windows((2, 2, 2), (1, 2, 1), ((0, 0), (1, 1), (0, 1)), (1, 1, 2)),
]


@pytest.fixture(params=["loops", "runs", "channels last"])
def compiled(request, monkeypatch):
    loops = request.param == "loops"
    if loops and not depthwise_loops.COMPILED:
        pytest.skip("numba is not installed")
    monkeypatch.setattr(depthwise_loops, "COMPILED", loops)
    if request.param == "channels last":
        monkeypatch.setattr(depthwise, "_FEW_PLACES", 10_000)
        monkeypatch.setattr(depthwise, "_MANY_CHANNELS", 2)  # of the three
        monkeypatch.setattr(depthwise, "_ELEMENTS_AT_ONCE", 1)


def taps(windows, size):
    """Give each tap with the elements that it meets in a padded space."""
    counts = windows.count(size)
    for number, tap in enumerate(product(*map(range, windows.kernel))):
        steps = zip(tap, windows.dilation, windows.stride, counts, strict=True)
        yield number, tuple(slice(t * d, t * d + (c - 1) * s + 1, s) for t, d, s, c in steps)


@pytest.mark.parametrize("sizes", [(7, 6, 8), (12, 13, 5)])
@pytest.mark.parametrize("several", [1, 2])
@pytest.mark.parametrize("windows", WINDOWS, ids=lambda w: f"{len(w.kernel)}d{w.stride}")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_all_three_are_sums_over_taps(compiled, windows, several, sizes, dtype):
    size = sizes[: len(windows.kernel)]
    x = RANDOM.normal(size=(2, 3, *size)).astype(dtype)
    w = RANDOM.normal(size=(3 * several, 1, *windows.kernel)).astype(dtype)
    y = RANDOM.normal(size=(2, 3 * several, *windows.count(size))).astype(dtype)
    padded, weight = windows.pad(x).astype("float64"), w.reshape(3, several, -1)
    cotangent = y.reshape(2, 3, several, *y.shape[2:])
    forward = np.zeros(cotangent.shape)
    transposed, gradient = np.zeros(padded.shape), np.zeros(weight.shape)
    for number, tap in taps(windows, size):
        met = padded[(..., *tap)]
        factor = weight[:, :, number].reshape(3, several, *(1,) * len(size))
        forward += met[:, :, None] * factor
        transposed[(..., *tap)] += (cotangent * factor).sum(2)
        others = (0, *range(3, 3 + len(size)))
        gradient[:, :, number] = (met[:, :, None] * cotangent).sum(others)
    near = {"rtol": 1e-4 if dtype == "float32" else 1e-10, "atol": 1e-5}
    inner = windows.interior(size)
    np.testing.assert_allclose(depthwise.forward(x, w, windows), forward.reshape(y.shape), **near)
    back = depthwise.transposed(y, w, windows, x.shape)
    np.testing.assert_allclose(back, transposed[inner], **near)
    np.testing.assert_allclose(depthwise.weight_gradient(x, y, windows), gradient, **near)
