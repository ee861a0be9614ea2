"""Strategies that MindSpore 2.7 asserts for its faster searches where an operator is configured."""

import pytest

from shardwright.compiler.driver import compile_graph
from shardwright.compiler.plans.accounting import split_counts
from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.mindspore.costs import mesh_of_binary_axes
from shardwright.ir.graph import Value
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.types import TensorType
from shardwright.operators.builder import Builder
from shardwright.operators.info import SplitCounts
from shardwright.planner.options import CompileOptions

RACKS = cluster("ascend910-racks:figures=datasheet")


class Net(Builder):
    """A builder that makes inputs and weights of a shape."""

    def given(self, name: str, *shape: int, dtype: str = "float32") -> Value:
        return self.input(Value(name, TensorType(dtype, shape)))

    def weight(self, name: str, *shape: int) -> Value:
        return self.parameter(Value(name, TensorType("float32", shape)))

    def strategies(
        self, last: Value, search: str, pins: dict[str, SplitCounts], mesh: Mesh
    ) -> dict[str, SplitCounts]:
        graph = self.graph("net", (self.emit("reduce_sum", last).name,))
        options = CompileOptions(search=search, pins=pins)
        return split_counts(compile_graph(graph, RACKS, mesh.size, options, mesh))


def propagated(
    net: Net, last: Value, pins: dict[str, SplitCounts], shape: tuple[int, ...]
) -> dict[str, SplitCounts]:
    mesh = Mesh(tuple(MeshAxis(f"a{i}", n) for i, n in enumerate(shape)))
    return net.strategies(last, "sharding_propagation", pins, mesh)


def recursive(
    net: Net, last: Value, pins: dict[str, SplitCounts] | None = None
) -> dict[str, SplitCounts]:
    return net.strategies(last, "recursive_programming", pins or {}, mesh_of_binary_axes(8))


# Sharding propagation


def test_a_product_takes_the_split_of_its_first_operand() -> None:
    net = Net()
    first = net.emit("abs", net.given("x", 128, 96), name="abs")
    last = net.emit("mul", first, net.given("y", 128, 1), name="mul")
    found = propagated(net, last, {"abs": ((4, 2),)}, (4, 2))
    assert found["mul"] == ((4, 2), (4, 1))


def test_a_matrix_product_follows_a_sum() -> None:
    net = Net()
    x = net.given("x", 128, 96)
    last = net.emit("add", x, net.emit("relu", x, name="relu"), name="add")
    last = net.emit("matmul", last, net.given("y", 96, 96), name="matmul")
    found = propagated(net, last, {"relu": ((4, 2),)}, (4, 2))
    assert found["add"] == ((4, 2), (4, 2))
    assert found["matmul"] == ((4, 2), (2, 1))


def test_a_split_goes_back_to_what_is_read() -> None:
    net = Net()
    relu = net.emit("relu", net.given("x", 128, 96), name="relu")
    last = net.emit("matmul", relu, net.given("y", 96, 96), name="matmul")
    found = propagated(net, last, {"matmul": ((2, 1), (1, 4))}, (4, 2))
    assert found["relu"] == ((2, 1),)


def test_a_sum_of_a_column_follows_the_wider_operand() -> None:
    net = Net()
    first = net.emit("abs", net.given("x", 128, 96), name="x_in")
    column = net.emit("abs", net.given("y", 96, 1), name="y_in")
    weights = {
        n: net.emit("abs", net.weight(n, 128, 96), name=f"{n}_in") for n in ("gamma", "beta")
    }
    left = net.emit("relu", net.emit("add", first, weights["gamma"], name="add0"), name="relu1")
    right = net.emit("relu", column, name="relu2")
    product = net.emit("matmul", left, right, name="matmul")
    beside = net.emit("relu", weights["beta"], name="relu3")
    last = net.emit("add", product, beside, name="add1")
    pins: dict[str, SplitCounts] = {name: ((4, 2),) for name in ("x_in", "gamma_in", "beta_in")}
    found = propagated(net, last, {**pins, "y_in": ((2, 1),)}, (4, 2))
    assert found["add0"] == ((4, 2), (4, 2))
    assert found["matmul"] == ((4, 2), (2, 1))
    assert found["add1"] == ((4, 1), (4, 2))


def test_an_operator_waits_for_all_that_reach_it() -> None:
    net = Net()
    operands = [net.emit("abs", net.given(n, 128, 96), name=f"{n}_in") for n in "xy"]
    summed = net.emit("add", *operands, name="add")
    column = net.emit("relu", net.weight("beta", 96, 1), name="relu1")
    product = net.emit("matmul", summed, column, name="matmul")
    alpha = net.emit("abs", net.weight("alpha", 128, 96), name="alpha_in")
    last = net.emit("div", product, net.emit("relu", alpha, name="relu2"), name="div")
    pins: dict[str, SplitCounts] = {f"{name}_in": ((4, 2),) for name in ("x", "y", "alpha")}
    found = propagated(net, last, pins, (4, 2))
    assert found["add"] == ((4, 2), (4, 2))
    assert found["matmul"] == ((4, 2), (2, 1))
    assert found["div"] == ((4, 1), (4, 2))


def test_attention_follows_its_operands() -> None:
    # MindSpore's `FlashAttentionScore` takes [batch, sequence, hidden]; here 4 heads stand apart.
    net = Net()
    heads = []
    for name in "qkv":
        x = net.emit("abs", net.given(name, 4, 8, 96), name=f"{name}_in")
        x = net.emit("reshape", x, shape=(4, 8, 4, 24), name=f"{name}_heads")
        heads.append(net.emit("transpose", x, permutation=(0, 2, 1, 3)))
    last = net.emit("scaled_dot_product_attention", *heads, name="attention")
    pins: dict[str, SplitCounts] = {f"{name}_in": ((2, 1, 4),) for name in "qkv"}
    found = propagated(net, last, pins, (2, 4))
    assert [found[f"{name}_heads"] for name in "qkv"] == [((2, 1, 4),)] * 3
    assert found["attention"] == ((2, 4, 1, 1),) * 3


# Recursive programming


# With MS_INTERFERED_SAPP=1; what comes without it is in `test_mindspore_networks.py`.
def test_a_product_after_one_that_is_pinned() -> None:
    net = Net()
    first = net.emit("matmul", net.given("x", 32768, 1024), net.weight("y", 1024, 1024), name="m1")
    last = net.emit("matmul", first, net.weight("z", 1024, 1024), name="m0")
    found = recursive(net, last, {"m1": ((1, 1), (1, 8))})
    assert found["m0"] == ((1, 8), (8, 1))
    assert found["m1"] == ((1, 1), (1, 8))


@pytest.mark.parametrize(
    ("table", "indices", "axis", "expected"),
    [
        ((64, 64), (64, 64), 0, ((1, 1), (8, 1))),
        ((1000, 128), (2, 1024), 0, ((4, 1), (2, 1))),
        ((63, 512), (2, 3), 0, ((1, 1), (2, 1))),
        ((6, 128), (1, 5), 0, ((2, 1), (1, 1))),
        ((6, 12, 8), (2, 5), 0, ((1, 1, 1), (2, 1))),
        ((64, 128), (2, 1024, 4), 0, ((1, 1), (2, 1, 1))),
        ((64, 128), (3, 5, 8), 0, ((8, 1), (1, 1, 1))),
        ((64,), (6, 4), 0, ((1,), (2, 1))),
        ((2, 128), (8, 4), 1, ((2, 1), (4, 1))),
        ((64, 128), (8,), 1, ((8, 1), (1,))),
    ],
)
def test_a_lookup_is_cut_by_its_shapes(
    table: tuple[int, ...], indices: tuple[int, ...], axis: int, expected: SplitCounts
) -> None:
    net = Net()
    operands = net.given("x", *table), net.given("i", *indices, dtype="int32")
    last = net.emit("gather", *operands, name="gather", axis=axis)
    assert recursive(net, last)["gather"] == expected


# What MindSpore 2.7.0 answers for [i, k] times a weight of [k, j] on 8 devices.
@pytest.mark.parametrize(
    ("i", "k", "j", "expected"),
    [
        (128, 128, 2048, ((8, 1), (1, 1))),
        (128, 128, 16_384, ((4, 1), (1, 2))),
        (128, 128, 65_536, ((2, 1), (1, 4))),
        (160, 320, 3_200_000, ((1, 1), (1, 8))),
    ],
)
def test_a_product_is_cut_by_rows_until_the_weight_is_too_wide(
    i: int, k: int, j: int, expected: SplitCounts
) -> None:
    net = Net()
    x = net.emit("relu", net.given("x", i, k))
    last = net.emit("matmul", x, net.weight("w", k, j), name="matmul")
    assert recursive(net, last)["matmul"] == expected


def test_a_slice_of_a_weight_is_cut_as_its_reader_wants_it() -> None:
    net = Net()
    whole = {"begin": (0, 0, 0), "size": (128, 64, 32)}
    part = net.emit("slice", net.weight("w", 256, 64, 32), name="slice", **whole)
    weight = net.emit("reshape", part, shape=(128, 2048))
    last = net.emit("matmul", net.given("x", 128, 128), weight, name="matmul")
    found = recursive(net, last)
    assert found["slice"] == ((1, 1, 1),)
    assert found["matmul"] == ((8, 1), (1, 1))


def test_lookups_in_a_weight_that_a_product_also_reads() -> None:
    net = Net()
    indices = net.given("indices", 16, 1024, dtype="int32")
    indices = net.emit("add", indices, indices)
    tables = net.weight("one", 40_000, 5120), net.weight("two", 40_000, 5120)
    products = []
    for number, table in enumerate(tables):
        found = net.emit("gather", table, indices, name=f"gather{number}")
        rows = net.emit("reshape", found, shape=(16_384, 5120))
        products.append(net.emit("matmul", rows, table, transpose_b=True))
    strategies = recursive(net, net.emit("add", *products))
    assert strategies["gather0"] == strategies["gather1"] == ((1, 1), (8, 1))
