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


@pytest.mark.parametrize("name", ["random_uniform", "random_gamma"])
def test_blocks_are_drawn_as_tensors_of_their_own(name: str) -> None:
    def drawn(shape: tuple[int, ...], **attributes: Attribute) -> Array:
        types = [TensorType("float64", shape), TensorType("int64", ())]
        info = operator_info(name, types, {"key": "k", **attributes})
        return whole_kernel(info, np.ones(shape), np.array(2))[0]

    found = drawn((4, 6), seed=3, blocks=(2, 3))
    for i in range(6):
        row, column = 2 * (i // 3), 2 * (i % 3)
        part = found[row : row + 2, column : column + 2]
        assert np.array_equal(part, drawn((2, 2), seed=3 + i))
    types = [TensorType("float64", (4, 6)), TensorType("int64", ())]
    with pytest.raises(IRError, match=r"blocks \(3, 3\) do not divide"):
        _ = operator_info(name, types, {"blocks": (3, 3)}).result_types


@pytest.mark.parametrize("alpha", [0.3, 1.0, 2.5, 30.0])
def test_gamma_numbers_have_the_mean_and_variance_of_their_parameter(alpha: float) -> None:
    types = [TensorType("float64", (300, 300)), TensorType("int64", ())]
    info = operator_info("random_gamma", types, {})
    numbers = whole_kernel(info, np.full((300, 300), alpha), np.array(0))[0]
    assert numbers.min() > 0
    assert numbers.mean() == pytest.approx(alpha, rel=0.03)
    assert numbers.var() == pytest.approx(alpha, rel=0.05)
    wrong = whole_kernel(info, np.full((300, 300), -alpha), np.array(0))[0]
    assert np.isnan(wrong).all()


def test_random_numbers_are_no_integers() -> None:
    types = [TensorType("int64", (2,)), TensorType("int64", ())]
    with pytest.raises(IRError, match="expected floating point"):
        _ = operator_info("random_uniform", types, {}).result_types
