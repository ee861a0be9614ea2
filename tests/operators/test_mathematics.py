import math

import numpy as np
import pytest

from shardwright.operators.elementwise.activation import sigmoid
from shardwright.operators.elementwise.mathematics import erf


def test_erf_is_exact_to_the_last_digits() -> None:
    x = np.concatenate([np.linspace(-7, 7, 5001), np.geomspace(1e-300, 1, 500)])
    expected = np.array([math.erf(value) for value in x])
    np.testing.assert_allclose(erf(x), expected, rtol=1e-15, atol=0)


def test_erf_keeps_single_precision() -> None:
    x = np.linspace(-7, 7, 5001, dtype=np.float32)
    found = erf(x)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [math.erf(value) for value in x], rtol=5e-7)


@pytest.mark.parametrize("x", [-1000.0, -1.0, 0.0, 1.0, 1000.0])
def test_sigmoid_does_not_overflow(x: float) -> None:
    expected = 1 / (1 + math.exp(-x)) if x > -700 else 0.0
    assert sigmoid(np.array(x)) == pytest.approx(expected, abs=1e-16)
