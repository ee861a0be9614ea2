"""Triangular equations and Cholesky factors of matrices that are larger than the examples."""

import numpy as np
import pytest

from shardwright import nn
from shardwright.ir.errors import IRError
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import TensorType
from shardwright.operators.info import Array, operator_info, whole_kernel
from shardwright.parameter import Parameter
from shardwright.passes.differentiate import Differentiate
from shardwright.runtime import Executor, LocalCommunicator, initialize
from shardwright.tensor import Tensor, apply
from shardwright.tracing import InputSpec, trace


def run(name: str, *arrays: Array, **attributes: bool) -> Array:
    kinds = [TensorType(x.dtype.name, x.shape) for x in arrays]
    return whole_kernel(operator_info(name, kinds, attributes), *arrays)[0]


def positive(*shape: int) -> Array:
    half = np.random.default_rng(0).normal(size=shape)
    return half @ np.swapaxes(half, -1, -2) + np.eye(shape[-1])


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("unit", [False, True])
def test_only_the_triangle_is_read(lower: bool, transposed: bool, unit: bool) -> None:
    a, b = positive(5, 5), np.arange(10.0).reshape(5, 2)
    x = run("solve_triangular", a, b, lower=lower, transposed=transposed, unit_diagonal=unit)
    triangle = np.tril(a) if lower else np.triu(a)
    if unit:
        np.fill_diagonal(triangle, 1)
    np.testing.assert_allclose((triangle.T if transposed else triangle) @ x, b, atol=1e-9)


@pytest.mark.parametrize(("dtype", "digits"), [("float64", 12), ("float32", 5), ("float16", 2)])
def test_factors_multiply_to_the_matrix(dtype: str, digits: int) -> None:
    matrices = positive(3, 4, 4).astype(dtype)
    factor = run("cholesky", matrices)
    assert factor.dtype == dtype
    np.testing.assert_array_equal(factor, np.tril(factor))
    product = factor.astype("float64") @ np.swapaxes(factor, -1, -2).astype("float64")
    np.testing.assert_allclose(product, matrices, rtol=10.0**-digits, atol=10.0**-digits)


@pytest.mark.parametrize("name", ["cholesky", "solve_triangular"])
def test_matrices_are_square(name: str) -> None:
    with pytest.raises(IRError, match="expected square matrices"):
        run(name, *[np.ones((2, 3))] * (1 + (name != "cholesky")))


class Factored(nn.Cell):
    """Sum the factor of a weight, each element weighed."""

    def __init__(self) -> None:
        self.a = Parameter("zeros", shape=(4, 4), dtype="float64")

    def construct(self, weights: Tensor) -> Tensor:
        return (apply("cholesky", self.a) * weights).sum()


def test_the_gradient_of_a_factor_is_the_central_difference() -> None:
    definition = trace(Factored(), [InputSpec("weights", TensorType("float64", (4, 4)))])
    a, weights = positive(4, 4), np.random.default_rng(1).normal(size=(4, 4))
    (name,) = (parameter.name for parameter in definition.graph.parameters)
    graph, communicator = Differentiate().run(definition.graph), LocalCommunicator(Mesh(()))
    state = initialize(graph, 0, communicator, definition.initial, "float64") | {name: {0: a}}
    executor = Executor(graph, communicator, float_dtype="float64")
    outputs = executor.step({"weights": weights}, state).outputs
    slope = np.zeros((4, 4))
    for i, j in np.ndindex(4, 4):
        step = np.zeros((4, 4))
        step[i, j] = step[j, i] = 1e-6 / (1 + (i != j))
        above, below = (np.linalg.cholesky(a + s * step) for s in (1, -1))
        slope[i, j] = ((above - below) * weights).sum() / 2e-6
    np.testing.assert_allclose(outputs[f"{name}.grad"][0], slope, atol=1e-6)
