import numpy as np
import pytest

from shardwright.ir.attributes import Attribute
from shardwright.ir.errors import IRError
from shardwright.ir.types import TensorType, numpy_dtype
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


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_random_numbers_are_uniform_and_less_than_one(dtype: str) -> None:
    types = [TensorType(dtype, (400, 400)), TensorType("int64", ())]
    zeros = np.zeros((400, 400), numpy_dtype(dtype))
    info = operator_info("random_uniform", types, {"key": "k"})
    numbers, others = (whole_kernel(info, zeros, np.array(step))[0] for step in (0, 1))
    assert numbers.dtype == zeros.dtype
    wide = numbers.astype(np.float64)
    assert 0 <= wide.min() <= wide.max() < 1
    assert wide.mean() == pytest.approx(0.5, abs=0.01)
    assert wide.var() == pytest.approx(1 / 12, abs=0.002)
    assert not np.array_equal(numbers, others)


def test_random_numbers_are_no_integers() -> None:
    types = [TensorType("int64", (2,)), TensorType("int64", ())]
    with pytest.raises(IRError, match="expected floating point"):
        _ = operator_info("random_uniform", types, {}).result_types
