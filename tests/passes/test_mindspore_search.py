"""The strategies that MindSpore's own tests assert, found by the search that compiles."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from shardwright import zoo
from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.mindspore import MindSporeCosts, mesh_of_binary_axes
from shardwright.cost_model.mindspore_profile import MindSporeProfile
from shardwright.ir.graph import Graph, Value
from shardwright.ir.layout import Layout
from shardwright.ir.types import TensorType
from shardwright.operators.builder import Builder
from shardwright.operators.info import operator_info
from shardwright.passes.compile import CompileOptions, compile_graph
from shardwright.passes.space_builder import build_search_space
from shardwright.passes.strategy_search import search
from tests.passes.random_graphs import multilayer_perceptron

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
    arrivals = {}
    if vector["era"] == "2025":
        arrivals = {v.name: Layout.replicated(v.type.rank) for v in graph.inputs}
    space = build_search_space(graph, profile, arrivals=arrivals)
    result = search(space, mode)  # type: ignore[arg-type]
    strategies = space.decisions(result.assignment).strategies
    for name, expected in vector["expected"].items():
        node = graph.producers[name]
        types = [value.type for value in graph.operand_values(node)]
        info = operator_info(node.operator, types, node.attributes)
        counts = info.split_counts(strategies[name], mesh)
        assert [list(count) for count in counts] == expected
    assert round(result.cost) == vector["cost"]
    assert result.status == "optimal"


def test_the_emitted_program_has_the_cost_of_the_search() -> None:
    options = CompileOptions(cost_model="mindspore")
    compiled = compile_graph(multilayer_perceptron(), cluster("cpu"), 8, options)
    assert compiled.result is not None
    assert compiled.result.status == "optimal"


@pytest.mark.parametrize("mode", ["tensor_parallel", "fully_sharded"])
def test_a_parameter_that_is_brought_to_a_second_reader_costs_what_the_search_said(mode) -> None:
    graph = zoo.load("gpt:layers=1,hidden=64,heads=4,batch=8,sequence=32,vocabulary=256").graph
    options = CompileOptions(cost_model="mindspore", search=mode)
    compiled = compile_graph(graph, cluster("cpu"), 8, options)
    table = "embedding.embedding_table"
    partitioned = compiled.passes.after("partition")
    assert any(reader.operator == "redistribute" for reader, _ in partitioned.uses[table])
