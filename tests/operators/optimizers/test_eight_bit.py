"""States of 8 bits: the values, the blocks, and an update by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.ir.errors import IRError
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.types import TensorType
from shardwright.operators.dynamic_tree import values_of
from shardwright.operators.info import operator_info, whole_kernel
from shardwright.operators.models.eight_bit import (
    Adam8bitUpdate,
    block_of,
    dequantized,
    quantized,
)

# Of the published map of Dettmers et al.: its size, ends, and the values next to zero.
SIGNED = (-0.99296875, -5.5e-07, 0.0, 5.5e-07, 1.0)
UNSIGNED = (0.0, 3.25e-07, 7.75e-07, 0.996484375, 1.0)


def test_the_values_are_those_of_the_dynamic_tree():
    signed, unsigned = values_of(True), values_of(False)
    assert len(set(signed)) == len(set(unsigned)) == 256
    picked = [signed[0], *signed[126:129], signed[-1]]
    np.testing.assert_allclose(picked, SIGNED, rtol=1e-6)
    np.testing.assert_allclose([*unsigned[:3], *unsigned[-2:]], UNSIGNED, rtol=1e-6)


@given(st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from([(4, 8), (2, 4), (8,), (1, 16)]))
def test_every_number_becomes_the_nearest_value_of_its_block(seed, signed, block):
    random = np.random.default_rng(seed)
    x = random.normal(size=(8, 16)) * 10.0 ** random.integers(-9, 9, (8, 1))
    x = x if signed else x * x
    codes, scale = quantized(x, block, signed)
    found = dequantized(codes, scale, block, signed)
    rows, columns = block if len(block) == 2 else (1, *block)
    for i in range(0, 8, rows):
        for j in range(0, 16, columns):
            part = (slice(i, i + rows), slice(j, j + columns))
            most = np.abs(x[part]).max()
            each = values_of(signed).astype(np.float64) * most
            nearest = np.abs(x[part][..., None] - each).min(axis=-1)
            np.testing.assert_allclose(np.abs(found[part] - x[part]), nearest, atol=1e-12 * most)


def test_a_block_of_zeros_stays_one():
    codes, scale = quantized(np.zeros((2, 4)), (2, 2), True)
    assert not dequantized(codes, scale, (2, 2), True).any()


@pytest.mark.parametrize(
    ("shape", "block"),
    [
        ((64, 64), (16, 16)),
        ((50257, 768), (1, 256)),
        ((8, 512), (8, 32)),
        ((4096, 3), (256, 1)),
        ((7, 64, 40), (32, 8)),
        ((4096,), (256,)),
        ((63, 64), None),
        ((4000,), None),
        ((4100,), None),
        ((65, 63), None),
    ],
)
def test_blocks_have_256_numbers_and_divide_the_tensor(shape, block):
    assert block_of(shape) == block


def test_a_layout_that_cuts_blocks_gives_up_its_minor_axes():
    mesh = Mesh((MeshAxis("x", 2), MeshAxis("y", 4)))
    tensor = TensorType("float32", (96, 64))  # 6 x 4 blocks of 16 x 16
    split = Layout((("x", "y"), ()))
    assert Adam8bitUpdate.fitted(split, tensor, mesh) == Layout((("x",), ()))
    fits = Layout((("x",), ("y",)))
    assert Adam8bitUpdate.fitted(fits, tensor, mesh) == fits


def test_the_parameter_steps_by_exact_means():
    random = np.random.default_rng(0)
    p, g = random.normal(size=(2, 4, 6))
    m, v = random.normal(size=(4, 6)), random.uniform(size=(4, 6))
    block = (2, 3)
    states = (*quantized(m, block, True), *quantized(v, block, False))
    operands = (p, g, *states, np.array(3))
    types = [TensorType(str(x.dtype), x.shape) for x in operands]
    settings = {"learning_rate": 0.1, "weight_decay": 0.2, "block": block}
    found = whole_kernel(operator_info("adam8bit_update", types, settings), *operands)
    mean = 0.9 * dequantized(*states[:2], block, True) + 0.1 * g
    square = 0.999 * dequantized(*states[2:], block, False) + 0.001 * g**2
    change = mean / (1 - 0.9**3) / (np.sqrt(square / (1 - 0.999**3)) + 1e-8)
    np.testing.assert_allclose(found[0], p - 0.1 * (change + 0.2 * p), rtol=1e-12)
    np.testing.assert_array_equal(found[1], quantized(mean, block, True)[0])
    np.testing.assert_array_equal(found[3], quantized(square, block, False)[0])


def test_blocks_that_do_not_divide_are_refused():
    types = [TensorType("float32", (4, 6))] * 2
    states = [TensorType("uint8", (4, 6)), TensorType("float32", (2, 2))] * 2
    operands = [*types, *states, TensorType("int64", ())]
    with pytest.raises(IRError) as caught:
        operator_info("adam8bit_update", operands, {"block": (4, 4)})
    assert str(caught.value) == (
        "adam8bit_update: blocks of (4, 4) do not divide a tensor of (4, 6)"
    )
