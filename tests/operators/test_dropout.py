import numpy as np
import pytest

from shardwright.ir.attributes import Attribute
from shardwright.ir.types import TensorType
from shardwright.operators.info import Array, operator_info, whole_kernel


def dropped(x: Array, step: int = 0, **attributes: Attribute) -> Array:
    types = [TensorType("float64", x.shape), TensorType("int64", ())]
    return whole_kernel(operator_info("dropout", types, attributes), x, np.array(step))[0]


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.9])
def test_the_rate_is_kept_and_the_mean_too(rate: float) -> None:
    y = dropped(np.ones((300, 300)), rate=rate)
    assert (y == 0).mean() == pytest.approx(rate, abs=0.01)
    assert y.mean() == pytest.approx(1, abs=0.03)
    assert set(np.unique(y)) <= {0.0, 1 / (1 - rate)}


def test_steps_uses_and_seeds_drop_other_elements() -> None:
    x = np.ones(64)
    masks = [
        dropped(x),
        dropped(x, step=1),
        dropped(x, key="other"),
        dropped(x, seed=1),
    ]
    assert len({mask.tobytes() for mask in masks}) == 4
    assert np.array_equal(masks[0], dropped(x))
