"""The strategies that MindSpore's own tests assert, found by the search that compiles."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from shardwright import zoo
from shardwright.compiler.driver import compile_graph
from shardwright.compiler.plans.accounting import split_counts
from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.mindspore.costs import Era, MindSporeCosts, mesh_of_binary_axes
from shardwright.cost_model.mindspore.profile import MindSporeProfile
from shardwright.ir.graph import Graph, Value
from shardwright.ir.layout import Layout
from shardwright.ir.types import TensorType
from shardwright.operators.builder import Builder
from shardwright.operators.info import SplitCounts, operator_info
from shardwright.planner.options import CompileOptions
from shardwright.search.driver import search
from shardwright.search.space.builder import build_search_space
from tests.random_graphs import multilayer_perceptron

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "mindspore_strategies.json").read_text())


def graph_of(lines: list[str]) -> Graph:
    """Build the graph that a vector writes as ``m = matmul(x[128,32], y[32,64])``."""
    build, known = Builder(), {}
    for line in lines:
        name, operator, arguments = re.fullmatch(r"(\w+) = (\w+)\((.*)\)", line).groups()  # type: ignore[union-attr]
        operands = []
        for word, _, shape in re.findall(r"(\w+)(\[([\d,]+)\])?(?=,|$| )", arguments):
            if shape:
                value = Value(word, TensorType("float32", tuple(map(int, shape.split(",")))))
                known[word] = build.input(value)
            if word in known:
                operands.append(known[word])
        attributes: dict[str, Any] = {"permutation": (1, 0)} if operator == "transpose" else {}
        known[name] = build.emit(operator, *operands, name=name, **attributes)
    return build.graph("vector", (name,))


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda vector: vector["name"])
@pytest.mark.parametrize("mode", ["exact", "dynamic_programming"])
def test_published_strategies(vector: dict[str, Any], mode: str) -> None:
    graph, mesh = graph_of(vector["graph"]), mesh_of_binary_axes(vector["devices"])
    profile = MindSporeProfile(MindSporeCosts(era=vector["era"]), mesh)
    input_layouts = {}
    if vector["era"] == "2025":
        input_layouts = {v.name: Layout.replicated(v.type.rank) for v in graph.inputs}
    space = build_search_space(graph, profile, input_layouts=input_layouts)
    result = search(space, mode)
    strategies = space.decisions(result.assignment).strategies
    for name, expected in vector["expected"].items():
        node = graph.producers[name]
        types = [value.type for value in graph.operand_values(node)]
        info = operator_info(node.operator, types, node.attributes)
        counts = info.split_counts(strategies[name], mesh)
        assert [list(count) for count in counts] == expected
    assert round(result.cost) == vector["cost"]
    assert result.status == "optimal"


class Vector(Builder):
    """A builder whose parameters and inputs are told by name and shape."""

    def given(self, name: str, *shape: int, dtype: str = "float32") -> Value:
        return self.input(Value(name, TensorType(dtype, shape)))

    def weight(self, name: str, *shape: int, dtype: str = "float32") -> Value:
        return self.parameter(Value(name, TensorType(dtype, shape)))

    def found(
        self,
        era: Era,
        devices: int,
        mode: str,
        pins: dict[str, SplitCounts] | None = None,
        *,
        elementwise_follow: bool = False,
    ) -> tuple[dict[str, Any], float]:
        """Search from inputs that are whole in 2025; return the split counts and the cost."""
        unread = [v.name for node in self.nodes for v in node.results if not self.is_read(v)]
        graph, mesh = self.graph("vector", tuple(unread)), mesh_of_binary_axes(devices)
        input_layouts = {v.name: Layout.replicated(v.type.rank) for v in graph.inputs}
        costs = MindSporeCosts(era=era, elementwise_follow=elementwise_follow)
        profile = MindSporeProfile(costs, mesh)
        input_layouts = input_layouts if era == "2025" else {}
        space = build_search_space(graph, profile, input_layouts=input_layouts, pins=pins)
        result = search(space, mode)
        strategies = space.decisions(result.assignment).strategies
        counts = {}
        for node in graph.nodes:
            types = [value.type for value in graph.operand_values(node)]
            info = operator_info(node.operator, types, node.attributes)
            counts[node.name] = info.split_counts(strategies[node.name], mesh)
        return counts, result.cost

    def is_read(self, value: Value) -> bool:
        return any(value.name in node.operands for node in self.nodes)


MODES = pytest.mark.parametrize("mode", ["exact", "dynamic_programming"])


@MODES
def test_weights_weigh_as_in_mindspore(mode: str) -> None:
    # The strategies and the cost that MindSpore 2.7.0 logs.
    net = Vector()
    first = net.emit("matmul", net.given("x", 128, 32), net.given("y", 32, 64), name="m0")
    second = net.emit("matmul", first, net.weight("w", 64, 64), name="m1")
    net.emit("add", second, net.weight("b", 64), name="add")
    counts, cost = net.found("2025", 16, mode)
    assert counts == {
        "m0": ((8, 1), (1, 1)),
        "m1": ((8, 1), (1, 2)),
        "add": ((8, 2), (2,)),
    }
    assert cost == pytest.approx(44_416)


@MODES
def test_transposes_after_products_in_2025(mode: str) -> None:
    net = Vector()
    first = net.emit("matmul", net.given("x", 128, 32), net.given("y", 32, 64), name="m0")
    second = net.emit("matmul", first, net.given("b", 64, 64), name="m1")
    turned = net.emit("transpose", second, name="t0", permutation=(1, 0))
    net.emit("transpose", turned, name="t1", permutation=(1, 0))
    counts, cost = net.found("2025", 16, mode)
    assert counts["m0"] == counts["m1"] == ((16, 1), (1, 1))
    assert (counts["t0"], counts["t1"]) == (((16, 1),), ((1, 16),))
    assert round(cost) == 48_125


@MODES
@pytest.mark.parametrize("devices", [1, 8])
def test_two_losses_are_split_by_samples(mode: str, devices: int) -> None:
    net, shape = Vector(), (8, 8, 8, 8)
    wide = net.emit("mul", net.given("x", *shape), net.weight("wide", *shape), name="mul0")
    wide = net.emit("mul", wide, net.weight("l", *shape), name="mul1")
    found = net.emit("relu", wide, name="relu")
    net.emit("reduce_sum", found, name="sum", axis=-1)
    net.emit("reduce_mean", found, name="mean", axis=-1)
    counts, _ = net.found("r1.0", devices, mode)
    split = (devices, 1, 1, 1)
    assert counts == {
        "mul0": (split, split),
        "mul1": (split, split),
        "relu": (split,),
        "sum": (split,),
        "mean": (split,),
    }


def test_columns_of_a_product_that_are_wanted_by_rows() -> None:
    net = Vector()
    product = net.emit("matmul", net.given("x", 256, 128), net.weight("w", 128, 256), name="matmul")
    scores = net.emit("transpose", product, name="transpose", permutation=(1, 0))
    label = net.given("label", 256, dtype="int32")
    truth = net.emit("one_hot", label, depth=256, name="one_hot")
    loss = net.emit("softmax_cross_entropy", scores, truth, name="loss")
    graph = net.graph("vector", (net.emit("reduce_sum", loss).name,))
    pins: dict[str, SplitCounts] = {
        "matmul": ((1, 1), (1, 8)),
        "transpose": ((8, 1),),
        "loss": ((8, 1), (8, 1)),
    }
    options = CompileOptions(
        mode="semi_auto_parallel", pins=pins, result_pins={"one_hot": ((8, 1),)}
    )
    compiled = compile_graph(graph, cluster("cpu"), 8, options)
    assert {name: split_counts(compiled)[name] for name in pins} == pins
    assert split_counts(compiled)["one_hot"] == ((8,),)
    first = next(n for n in compiled.program.nodes if n.operator == "all_to_all")
    assert first.operands == ("matmul",)


def test_the_emitted_program_has_the_cost_of_the_search() -> None:
    options = CompileOptions(cost_model="mindspore")
    compiled = compile_graph(multilayer_perceptron(), cluster("cpu"), 8, options)
    assert compiled.result is not None
    assert compiled.result.status == "optimal"


# MindSpore's search gives all readers of a table one layout, unless their strategies differ.
@pytest.mark.parametrize(
    ("mode", "pins", "moves"),
    [
        ("exact", {}, False),
        ("tensor_parallel", {}, True),
        ("fully_sharded", {}, True),
        ("exact", {"gather_0": ((8, 1), (1, 1)), "matmul_4": ((1, 1, 8), (1, 8))}, True),
    ],
)
def test_a_parameter_that_two_read_costs_what_the_search_said(
    mode: Any, pins: dict[str, SplitCounts], moves: bool
) -> None:
    graph = zoo.load("gpt:layers=1,hidden=64,heads=4,batch=8,sequence=32,vocabulary=256").graph
    options = CompileOptions(cost_model="mindspore", search=mode, pins=pins)
    partitioned = compile_graph(graph, cluster("cpu"), 8, options).passes.after("partition")
    readers = [node.operator for node, _ in partitioned.uses["embedding.embedding_table"]]
    assert readers == (["redistribute"] * 2 if moves else ["gather", "matmul"])


@MODES
@pytest.mark.parametrize("follow", [False, True])
def test_a_weight_with_two_readers_lies_as_both_take_it(mode: str, follow: bool) -> None:
    # MindSpore's own test lets functions of one tensor follow.
    net = Vector()
    weight = net.weight("w", 64, 64, dtype="float16")
    casts = [net.emit("cast", weight, name=f"cast{i}", dtype="float32") for i in (1, 2)]
    first = net.emit("matmul", net.given("x", 64, 64), casts[0], name="m1")
    second = net.emit("matmul", net.given("z", 64, 64), casts[1], name="m2")
    net.emit("matmul", second, first, name="m3")
    counts, _ = net.found("r1.0", 8, mode, elementwise_follow=follow)
    rows = ((8, 1), (1, 1))
    assert counts["cast1"] == counts["cast2"] == ((1, 1),)
    assert counts["m2"] == counts["m3"] == rows
    assert counts["m1"] == (rows if follow else ((4, 1), (1, 2)))


@pytest.mark.parametrize("searched", ["exact", "dynamic_programming"])
def test_a_parameter_of_two_readers_is_stored_as_finely_as_it_can_be_read(searched: str) -> None:
    """MindSpore cannot redistribute slices of unequal size: 6 rows are split by 2 only."""
    build = Builder()
    x = build.input(Value("x", TensorType("float64", (8, 6))))
    w = build.parameter(Value("w", TensorType("float64", (6, 6))))
    hidden = build.emit("matmul", build.emit("tanh", build.emit("matmul", x, w)), w)
    graph = build.graph("twice", (build.emit("reduce_sum", hidden).name,))
    options = CompileOptions(search=searched, cost_model="mindspore", optimizer_parallel=True)  # type: ignore[arg-type]
    found = compile_graph(graph, cluster("cpu"), 8, options)
    assert found.decisions is not None
    assert found.decisions.stored["w"].counts(found.mesh) == (2, 2)
