"""Rotations of pairs, as products of complex numbers."""

import numpy as np
import pytest

from shardwright.ir.errors import IRError
from shardwright.ir.types import TensorType
from shardwright.operators.info import Array, operator_info, whole_kernel


def run(x: Array, **attributes: float | bool) -> Array:
    info = operator_info("rotary_embedding", [TensorType("float64", x.shape)], attributes)
    return whole_kernel(info, x)[0]


@pytest.mark.parametrize("interleaved", [False, True])
def test_pairs_turn_like_complex_numbers(interleaved: bool) -> None:
    x = np.random.default_rng(0).standard_normal((2, 5, 8))
    pairs = x[..., ::2] + 1j * x[..., 1::2] if interleaved else x[..., :4] + 1j * x[..., 4:]
    angles = np.arange(5)[:, None] * 100.0 ** (-np.arange(4) / 4)
    turned = pairs * np.exp(1j * angles)
    found = run(x, base=100.0, interleaved=interleaved)
    if interleaved:
        np.testing.assert_allclose(found[..., ::2] + 1j * found[..., 1::2], turned, rtol=1e-12)
    else:
        np.testing.assert_allclose(found[..., :4] + 1j * found[..., 4:], turned, rtol=1e-12)


def test_products_depend_on_the_distance_alone() -> None:
    """What the embedding is for: q at i and k at j meet as if i - j were the position."""
    random = np.random.default_rng(1)
    q, k = random.standard_normal((2, 1, 6))
    products = [float((run(q, start=i + 3) * run(k, start=i)).sum()) for i in (0, 4, 90)]
    np.testing.assert_allclose(products, products[0], rtol=1e-10)


def test_an_odd_number_of_features_is_refused() -> None:
    with pytest.raises(IRError, match="even number of features"):
        run(np.zeros((2, 3)))
