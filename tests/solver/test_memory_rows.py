"""Prices of memory."""

import numpy as np
import pytest

from shardwright.solver.memory_rows import round_prices


@pytest.mark.parametrize("largest", [1e300, 1.0, 1e-290, 1e-310, 5e-324, 0.0])
def test_rounded_prices_are_prices_near_them(largest: float) -> None:
    """Sums of them are exact, however small they are."""
    prices = largest * np.array([1.0, 0.3, 1e-3, 0.0])
    rounded = round_prices(prices)
    assert (rounded >= 0).all()
    assert np.isfinite(rounded).all()
    np.testing.assert_allclose(rounded, prices, rtol=0, atol=max(largest * 2.0**-20, 1e-300))
