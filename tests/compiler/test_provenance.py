"""Where every node of a compiled program comes from, and what an operator costs by that."""

from dataclasses import replace
from itertools import pairwise

import pytest

import shardwright as sw
from shardwright.compiler.driver import CompileOptions, compile_graph
from shardwright.compiler.plans.accounting import operator_costs
from shardwright.compiler.plans.compiled import Compiled
from shardwright.compiler.reasons import collectives
from shardwright.cost_model.cluster import Cluster, cluster
from shardwright.ir.graph import Graph, Node
from shardwright.ir.provenance import Provenance
from shardwright.ir.text import node_text, parse
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.info import operator_class
from shardwright.operators.models.optimizer import Optimizer
from shardwright.passes.canonicalize import Canonicalize
from tests.any_operators import any_graph
from tests.extent import ANY_PLAN, crossed, first
from tests.random_graphs import random_graph
from tests.zoo_sizes import SMALL

CPU = cluster("cpu")
OF_NO_OPERATOR = ("seed", "accumulation", "update")
PHASES = ("forward", "backward", "update")
MOVES = ("redistribution", "gradient_redistribution", "recompute", "fusion")
ADAM = Optimizer("adam", {"learning_rate": 0.01})


def check_nodes(source: Graph, program: Graph, of_model: frozenset[str]) -> None:
    """Check that the provenance of every node speaks of the model, and agrees with the node."""
    operators = {node.name for node in source.nodes}
    made = set(program.values)
    for node in program.nodes:
        origin, text = node.provenance, node_text(node)
        assert origin.operator or origin.role in OF_NO_OPERATOR, text
        assert not origin.operator or origin.operator in operators, text
        assert not origin.tensor or origin.tensor in source.values, text
        assert not origin.target or origin.target in made, text
        if issubclass(operator_class(node.operator), Communication):
            assert origin.role in (*MOVES, "mirror") or node.name in of_model, text
            assert origin.tensor or node.name in of_model, text
    phases = [PHASES.index(node.provenance.phase) for node in program.nodes]
    assert all(a <= b for a, b in pairwise(phases)), "forward, then backward, then update"


def check_parameters(source: Graph, program: Graph) -> None:
    """Check that weights and buffers are the model's, and states belong to weights."""
    mine = {p.name: p for p in source.parameters}
    for parameter in program.parameters:
        if parameter.name in mine:
            assert parameter.role == mine[parameter.name].role != "state"
        else:
            assert parameter.role == "state"
            assert not parameter.weight or mine[parameter.weight].role == "weight"


def check(compiled: Compiled, machine: Cluster) -> None:
    """Check provenance after every pass, and that the costs of operators are those of the step."""
    collective = [n for n in compiled.source if issubclass(kind(n), Communication)]
    of_model = frozenset(node.name for node in collective)
    for record in compiled.passes.records[1:]:
        check_nodes(compiled.source, record.graph, of_model)
    check_parameters(compiled.source, compiled.program)
    costs = operator_costs(compiled, machine)
    assert sum(cost.seconds for cost in costs) == pytest.approx(compiled.step_seconds, rel=1e-9)
    sent = [sum(volume.count for volume in cost.communication.values()) for cost in costs]
    assert sum(sent) == len(collectives(compiled, machine))


def kind(node: Node) -> type:
    return operator_class(node.operator)


OPTIONS = [
    {"optimizer": "adam", "loss_scale": 128.0, "fusion": 64.0, **ANY_PLAN},
    {"mode": "data_parallel", "fusion": 64.0},
    {"mode": "stand_alone", "optimizer": "momentum"},
    {"search": "fully_sharded", "optimizer_parallel": True, "mesh": "2x2"},
    {"cost_model": "mindspore", **ANY_PLAN},
]


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "options"), first(10, crossed(["lenet5", "gpt", "mixtral", "unet"], OPTIONS))
)
def test_every_node_comes_from_an_operator_of_the_model(model, options):
    devices = 1 if options.get("mode") == "stand_alone" else 4
    compilation = sw.compile(SMALL[model], devices, cluster="cpu", **options)
    check(compilation.compiled, compilation.cluster)


@pytest.mark.parametrize("network", ["split_batch", "split_layers"])
def test_programs_written_by_hand(network):
    model = __file__.replace("compiler/test_provenance.py", f"tools/hybrid_model.py:{network}")
    compilation = sw.compile(model, 4, cluster="cpu", mode="hybrid_parallel", optimizer="adam")
    check(compilation.compiled, compilation.cluster)


@pytest.mark.filterwarnings("ignore:trainable parameters get no update")
@pytest.mark.parametrize("search", ["exact", "tensor_parallel", "fully_sharded"])
@pytest.mark.parametrize("seed", first(2, range(4)))
def test_random_programs(seed, search):
    options = CompileOptions(search=search, optimizer=ADAM, fusion=64.0, loss_scale=2.0, **ANY_PLAN)
    for graph in (random_graph(seed, 6), any_graph(seed)):
        check(compile_graph(graph, CPU, 4, options), CPU)


def test_equal_operators_become_one_and_so_does_what_belongs_to_them():
    text = """
graph g {
  input x: f32[4, 4]
  parameter w: f32[4, 4]
  a: f32[4, 4] = matmul(x, w)
  b: f32[4, 4] = matmul(x, w)
  c: f32[4, 4] = identity(b)
  d: f32[4, 4] = tanh(c) from c as backward
  e: f32[4, 4] = tanh(a) from b as accumulation of c
  return d, e
}
"""
    graph = Canonicalize().run(parse(text))
    assert [(n.name, n.provenance.operator, n.provenance.tensor) for n in graph] == [
        ("a", "a", ""),
        ("d", "a", ""),
    ]


def test_a_weight_that_is_gathered_for_forward_and_again_for_backward():
    compilation = sw.compile(SMALL["mlp"], 4, cluster="cpu", search="fully_sharded", mesh="4")
    nodes = compilation.plan.program.nodes
    gathered = [n.provenance for n in nodes if n.operator == "all_gather"]
    assert gathered[0].text("") == "from matmul_0 as redistribution of layer1.weight"
    again = [origin for origin in gathered if origin.role == "recompute"]
    assert [origin.text("") for origin in again] == [
        "from matmul_2 as recompute of layer3.weight",
        "from matmul_1 as recompute of layer2.weight",
    ]


def test_no_meaning_depends_on_provenance():
    plan = sw.compile(SMALL["mlp"], 4, cluster="cpu", optimizer="adam", fusion=64.0).plan
    nodes = tuple(replace(node, provenance=Provenance()) for node in plan.program)
    parameters = tuple(replace(p, role="weight", weight="") for p in plan.program.parameters)
    stripped = replace(plan, program=replace(plan.program, nodes=nodes, parameters=parameters))
    assert sw.prove(stripped).proven
    assert sw.verify(stripped, 1).equal
