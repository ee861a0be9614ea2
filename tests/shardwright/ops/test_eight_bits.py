"""Tensors of eight bits, against whole numbers of numpy."""

import numpy as np
import pytest

from shardwright import ops
from shardwright.ir.errors import ModelError
from tests.shardwright.ops.test_composite import results

RANDOM = np.random.default_rng(0)
WEIGHT = RANDOM.integers(-128, 128, (6, 4)).astype(np.int8)
X = RANDOM.normal(size=(2, 3, 6))


def test_integers_stand_for_numbers():
    x, scale, offset = np.array([50, -20], np.int8), np.array([2.0]), np.array([1.0])
    (found,) = results(ops.AntiQuant(dtype="float32"), x, scale, offset)
    np.testing.assert_array_equal(found, [102, -38])
    (found,) = results(ops.AntiQuant(sqrt_mode=True, dtype="float32"), x, scale, offset)
    np.testing.assert_array_equal(found, [204, -76])


def test_numbers_become_integers_within_eight_bits():
    x, scale, offset = np.array([1.0, 150, -70]), np.array([2.5, 40, 2]), np.array([0.0, 2, 1])
    (found,) = results(ops.QuantV2(), x, scale, offset)
    assert found.dtype == np.int8
    np.testing.assert_array_equal(found, [2, 127, -128])
    (found,) = results(lambda *t: ops.QuantV2()(*t, True), x, scale, offset)
    np.testing.assert_array_equal(found, [6, 127, -128])


@pytest.mark.parametrize("smooth", [False, True])
def test_rows_have_steps_of_their_own(smooth):
    x, by = np.concatenate([X, np.zeros((2, 1, 6))], axis=1), np.arange(1.0, 7)
    integers, step = results(ops.DynamicQuantExt(), x, *([by] if smooth else []))
    scaled = x * by if smooth else x
    np.testing.assert_allclose(step, np.abs(scaled).max(-1) / 127, rtol=1e-6)
    np.testing.assert_array_equal(np.abs(integers).max(-1), [[127, 127, 127, 0]] * 2)
    np.testing.assert_allclose(integers * step[..., None], scaled, atol=step.max() / 2 * 1.001)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("group", [0, 2])
def test_a_product_with_a_weight_of_eight_bits(group, transposed):
    shape = (3, 4) if group else (4,)
    scale, offset, bias = RANDOM.uniform(0.1, 1, shape), RANDOM.normal(size=shape), np.ones(4)
    spread = [t.repeat(2, axis=0) if group else t for t in (scale, offset)]
    expected = X @ ((WEIGHT + spread[1]) * spread[0])
    given = [t.T.copy() for t in (WEIGHT, scale, offset)] if transposed else [WEIGHT, scale, offset]
    product = ops.WeightQuantBatchMatmul(False, transposed, group)
    np.testing.assert_allclose(results(product, X, *given)[0], expected, rtol=1e-6)

    def rounded(x, w, scale, offset, bias):
        half = bias * 0.5
        return product(x, w, scale, offset, half, bias, bias)

    (found,) = results(rounded, X, *given, bias)
    np.testing.assert_array_equal(found, np.clip(np.rint((expected + 1) / 2 + 1), -128, 127))
    assert found.dtype == np.int8


def test_one_scale_for_a_whole_weight():
    for transposed in (False, True):
        weight = WEIGHT.T.copy() if transposed else WEIGHT
        product = ops.WeightQuantBatchMatmul(transpose_weight=transposed)
        (found,) = results(product, X, weight, np.array([0.5]))
        np.testing.assert_allclose(found, X @ (WEIGHT * 0.5), rtol=1e-6)


def test_groups_divide_the_rows():
    with pytest.raises(ModelError, match="6 rows of a weight do not fall into groups of 4"):
        results(ops.WeightQuantBatchMatmul(antiquant_group_size=4), X, WEIGHT, np.ones((2, 4)))


def test_a_product_of_eight_bits_is_exact():
    x = RANDOM.integers(-128, 128, (5, 6)).astype(np.int8)
    scale, rows, bias = (
        np.array([0.5, 0.25, 1, 2]),
        2.0 ** -np.arange(5),
        np.arange(4, dtype=np.int32),
    )
    total = x.astype(int) @ WEIGHT.astype(int)
    product = ops.QuantBatchMatmul(dtype="float32")
    np.testing.assert_array_equal(results(product, x, WEIGHT, scale)[0], total * scale)
    (found,) = results(product, x, WEIGHT, scale, scale, bias, rows)
    np.testing.assert_array_equal(found, (total + bias) * scale * rows[:, None] + scale)
    small = ops.QuantBatchMatmul(transpose_x2=True, dtype="int8")
    (found,) = results(small, x, WEIGHT.T.copy(), np.array([0.01]))
    np.testing.assert_array_equal(found, np.clip(np.rint(np.float32(0.01) * total), -128, 127))
    assert found.dtype == np.int8
