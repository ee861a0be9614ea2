"""What recipes of low precision make of numbers, against their definitions number by number."""

from itertools import product
from math import frexp, inf, isnan

import ml_dtypes
import numpy as np
import pytest

from shardwright.ir.errors import IRError
from shardwright.ir.graph import Value
from shardwright.ir.types import TensorType
from shardwright.operators.builder import Builder
from shardwright.operators.info import Linearization, operator_info
from shardwright.operators.linear.quantized import rounded
from shardwright.operators.models.recipes import RECIPES, Recipe, Scaling
from shardwright.runtime import Executor, LocalCommunicator

# Bits of the fraction, the least exponent of a normal number, and the greatest number.
FORMATS = {
    "float8_e4m3fn": (3, -6, 448.0),
    "float8_e5m2": (2, -14, 57344.0),
    "float4_e2m1fn": (1, 0, 6.0),
}
RANDOM = np.random.default_rng(0)


def nearest(x: float, element: str) -> float:
    """Return the nearest number of a type, of two the even one, and no greater than its most."""
    bits, least, most = FORMATS[element]
    exponent = max(frexp(x)[1] - 1, least) if x else least
    unit = 2.0 ** (exponent - bits)
    found = round(x / unit) * unit  # Python rounds halves to even
    return min(max(found, -most), most)


def scale_of(largest: float, whole: float, scaling: Scaling) -> float:
    """Return the scale of a block with a largest number, of a tensor with another."""
    most = FORMATS[scaling.element][2]
    scale = float(np.float32(largest) / np.float32(most))
    if not scale:
        return 1.0
    if scaling.scale == "e4m3":
        tensor = float(np.float32(np.float32(whole) / np.float32(6.0 * 448.0)))
        return nearest(float(np.float32(scale) / np.float32(tensor)), "float8_e4m3fn") * tensor
    if scaling.scale in ("float32", "float32_before"):
        return scale
    return next(2.0**power for power in range(-126, 128) if 2.0**power >= scale)


def one_by_one(x: np.ndarray, scaling: Scaling) -> np.ndarray:
    """Return the numbers of a matrix ``[row, depth]``, block by block and number by number."""
    x, found = np.asarray(x, np.float32), np.zeros(x.shape, np.float32)
    across, depth = scaling.across or x.shape[0], scaling.depth or x.shape[1]
    whole = float(np.abs(x).max())
    for i, k in product(range(0, x.shape[0], across), range(0, x.shape[1], depth)):
        block = x[i : i + across, k : k + depth]
        scale = np.float32(scale_of(float(np.abs(block).max()), whole, scaling))
        for (a, b), number in np.ndenumerate(block):
            share = float(number / scale) if scale else 0.0
            found[i + a, k + b] = np.float32(nearest(share, scaling.element)) * scale
    return found


def scalings() -> list[Scaling]:
    own = [each for r in RECIPES.values() for each in (r.rows, r.weight, r.gradient)]
    return list(dict.fromkeys(own))


@pytest.mark.parametrize("scaling", scalings(), ids=str)
@pytest.mark.parametrize("shape", [(40, 50), (3, 300), (130, 16)])
def test_numbers_are_those_of_the_definition(scaling: Scaling, shape: tuple[int, int]) -> None:
    x = RANDOM.standard_normal(shape) * 10.0 ** RANDOM.integers(-4, 4, (shape[0], 1))
    x[:, ::7] *= 100.0
    x[0, :5] = 0.0
    x = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(rounded(x, scaling), one_by_one(x, scaling))


@pytest.mark.parametrize("scaling", scalings(), ids=str)
def test_zeros_stay_and_what_is_not_finite_is_seen(scaling: Scaling) -> None:
    x = np.zeros((4, 20), np.float32)
    np.testing.assert_array_equal(rounded(x, scaling), x)
    for bad in (inf, np.nan):
        x[1, 2] = bad
        assert isnan(rounded(x, scaling)[1, 2])
    assert rounded(np.zeros((0, 5), np.float32), scaling).shape == (0, 5)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda own: own.name)
def test_rounding_is_relative_to_the_element_type(recipe: Recipe) -> None:
    """The error is that of the fraction, and a copy of a copy is itself where scales are powers."""
    x = RANDOM.standard_normal((256, 256)).astype(np.float32)
    error = np.linalg.norm(rounded(x, recipe.rows) - x) / np.linalg.norm(x)
    assert 0.005 < error < (0.12 if recipe.name == "nvfp4" else 0.03)
    if recipe.rows.scale in ("float32_power", "e8m0"):
        once = rounded(x, recipe.rows)
        np.testing.assert_array_equal(rounded(once, recipe.rows), once)


def tensor(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float16)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda own: own.name)
@pytest.mark.parametrize("transposed", [True, False])
def test_a_product_and_its_gradients_read_quantized_operands(
    recipe: Recipe, transposed: bool
) -> None:
    """Forward along features, by the rows along outputs, by the weight along tokens."""
    x, w, dy = tensor(2, 40, 48), tensor(64, 48), tensor(2, 40, 64)
    given = w if transposed else w.T
    arrays = {"x": x, "w": given, "dy": dy}
    build = Builder()
    types = {name: TensorType("float16", array.shape) for name, array in arrays.items()}
    a, b, cotangent = (build.input(Value(name, kind)) for name, kind in types.items())
    attributes = {"recipe": recipe.name, "transpose_b": transposed}
    y = build.emit("quantized_matmul", a, b, **attributes)
    info = operator_info("quantized_matmul", [a.type, b.type], attributes)
    found = info.gradient(build, Linearization([a, b], [y], [cotangent]))
    names = tuple(value.name for value in (y, *found) if value is not None)
    step = Executor(build.graph("g", names), LocalCommunicator()).step(arrays, {})
    made = [np.asarray(step.outputs[name][0]) for name in names]
    rows, weight, slope = recipe.rows, recipe.weight, recipe.gradient
    flat, flat_dy = x.reshape(80, 48), dy.reshape(80, 64)

    def check(value: np.ndarray, a: np.ndarray, b: np.ndarray, own: tuple[Scaling, ...]) -> None:
        right = one_by_one(a, own[0]) @ one_by_one(b, own[1]).T
        np.testing.assert_allclose(
            value.reshape(right.shape), right.astype(np.float16), rtol=2e-3, atol=2e-2
        )

    forward, dx, dw = made
    check(forward, flat, w, (rows, weight))
    check(dx, flat_dy, w.T, (slope, weight))
    check(dw if transposed else dw.T, flat_dy.T, flat.T, (slope, rows))


def test_kinds_and_recipes_that_do_not_exist_are_refused() -> None:
    types = [TensorType("bfloat16", (4, 4))] * 2
    with pytest.raises(IRError, match="no recipe is called `fp6`"):
        _ = operator_info("quantized_matmul", types, {"recipe": "fp6"}).result_types
    with pytest.raises(IRError, match="expected each to be one of"):
        _ = operator_info("quantized_matmul", types, {"kinds": ("rows", "bias")}).result_types
    with pytest.raises(IRError, match="`readers` is 0, expected the number of products"):
        _ = operator_info("quantized_matmul", types, {"readers": 0}).result_types
