"""Weights of 4 bits: the values, rounding, layout and both scales that were published."""

from statistics import NormalDist

import numpy as np
import pytest

from shardwright.ir.errors import IRError
from shardwright.operators.dynamic_tree import SHARING
from shardwright.operators.linear.nf4 import (
    BLOCK,
    VALUES,
    Quantized,
    quantized,
    unpacked,
)


def test_values_are_quantiles_of_normal_numbers() -> None:
    """Dettmers et al., 2023, section 3: eight quantiles above zero, seven below, and zero."""
    last, normal = 0.9677083, NormalDist()
    above = [normal.inv_cdf(p) for p in np.linspace(last, 0.5, 9)[:-1]]
    below = [-normal.inv_cdf(p) for p in np.linspace(last, 0.5, 8)[:-1]]
    right = np.sort([*above, 0.0, *below]) / max(above)
    np.testing.assert_allclose(VALUES, right, atol=1e-6)


def in_turn(own: Quantized, outputs: int, inputs: int, eight: np.ndarray) -> np.ndarray:
    """Return a weight element by element, as the flat layout of bitsandbytes has it."""
    flat = own.codes.reshape(-1)
    nested, offset = own.nested.view(np.float32), own.offset.view(np.float32)
    found = np.zeros(outputs * inputs, np.float32)
    for i in range(len(found)):
        code = flat[i // 2] >> 4 if i % 2 == 0 else flat[i // 2] & 15
        block = i // BLOCK
        scale = eight[own.scales.reshape(-1)[block]] * nested[block // SHARING] + offset
        found[i] = VALUES[code] * scale
    return found.reshape(outputs, inputs)


def eight_bits() -> np.ndarray:
    """Return the signed values of 8 bits as the paper builds them: a dynamic exponent."""
    found = [0.0, 1.0]
    for i in range(7):
        edges = np.linspace(0.1, 1.0, 2**i + 1)
        means = (edges[:-1] + edges[1:]) / 2
        found += [*(10.0 ** (i - 6) * means), *(-(10.0 ** (i - 6)) * means)]
    return np.sort(np.array(found, np.float32))


@pytest.mark.parametrize("shape", [(3, 64), (10, 2048), (300, 64)])
def test_a_weight_is_unpacked_as_it_was_published(shape: tuple[int, int]) -> None:
    weight = np.random.default_rng(0).normal(0, 0.02, shape)
    own = quantized(weight)
    right = in_turn(own, *shape, eight_bits())
    np.testing.assert_array_equal(unpacked(own), right)
    part = Quantized(own.codes[1:3], own.scales[1:3], own.nested, own.offset)
    np.testing.assert_array_equal(unpacked(part, (1, 0)), right[1:3])


def test_each_element_has_the_nearest_value_of_its_block() -> None:
    weight = np.random.default_rng(1).normal(0, 0.02, (16, 128)).astype(np.float32)
    blocks = weight.reshape(16, 2, BLOCK)
    scale = np.abs(blocks).max(axis=-1, keepdims=True)
    near = VALUES[np.abs(blocks[..., None] / scale[..., None] - VALUES).argmin(-1)] * scale
    found = unpacked(quantized(weight)).reshape(blocks.shape)
    # The scale itself has 8 bits: of 16 * 2 scales, within their range.
    np.testing.assert_allclose(found, near, atol=float(np.ptp(scale)) * 0.02)


def test_zeros_and_one_scale_of_all_blocks_are_exact() -> None:
    assert not unpacked(quantized(np.zeros((2, 64)))).any()
    weight = np.tile(VALUES, (2, 4)) * np.float32(0.25)
    np.testing.assert_array_equal(unpacked(quantized(weight)), weight)


def test_inputs_that_are_no_blocks_are_refused() -> None:
    with pytest.raises(IRError) as error:
        quantized(np.zeros((2, 100)))
    assert error.value.what == "a weight of 4 bits has blocks of 64 inputs, not 100 inputs"
