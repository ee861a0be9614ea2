"""Programs that compute some tensors again compute what the whole program computes."""

from dataclasses import replace

import numpy as np
import pytest

from shardwright import nn
from shardwright.compiler.driver import compile_graph
from shardwright.cost_model.cluster import cluster
from shardwright.ir.errors import ShardwrightError
from shardwright.ir.graph import Graph
from shardwright.ir.text import parse, to_text
from shardwright.ir.types import TensorType
from shardwright.operators.models.optimizer import Optimizer
from shardwright.operators.verify import verify
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.recompute import Recompute, light_parts
from shardwright.planner.options import CompileOptions
from shardwright.search.heuristics.completion import complete
from shardwright.search.space.builder import build_search_space
from shardwright.tensor import Tensor
from shardwright.tracing import Definition, InputSpec, trace
from shardwright.zoo import load
from tests.equivalence import assert_equal, trained
from tests.extent import ANY_PLAN, crossed, first, long_after
from tests.random_graphs import random_graph
from tests.random_plans import emitted, profile_for
from tests.zoo_sizes import SMALL

CPU = cluster("cpu")
MODELS = ("mlp", "gpt", "llama", "mixtral", "resnet18-cifar", "bert")


def alone(graph: Graph) -> Graph:
    options = CompileOptions(mode="stand_alone", recompute="none")
    return compile_graph(graph, CPU, 1, options).program


def marked(graph: Graph, random: np.random.Generator, share: float) -> Graph:
    """Return a graph in which random operators are recomputed."""
    names = (n.name for n in graph.nodes if n.operands and random.random() < share)
    return replace(graph, recomputed=tuple(names))


def recomputes(program: Graph) -> int:
    return sum(node.provenance.role == "recompute" for node in program.nodes)


@pytest.mark.long
def test_random_plans_of_random_programs() -> None:
    profile, random, found = profile_for(8), np.random.default_rng(0), 0
    for seed in first(36, range(60)):
        graph = marked(random_graph(seed, nodes=7), random, random.random())
        space = build_search_space(graph, profile)
        strategies = {
            choice.name: choice.options[int(random.integers(len(choice.options)))]
            for choice in space.choices
            if choice.kind == "operator"
        }
        decisions = space.decisions(complete(space, strategies))  # type: ignore[arg-type]
        decisions = replace(decisions, recomputed=frozenset(graph.recomputed))
        program = emitted(graph, decisions, profile, Optimizer("sgd"))
        found += recomputes(program)
        assert_equal(trained(program), trained(alone(replace(graph, recomputed=()))))
    assert found > 50


@pytest.mark.parametrize("name", long_after(3, MODELS))
def test_models_with_random_marks_on_one_device(name: str) -> None:
    definition, random = load(SMALL[name]), np.random.default_rng(1)
    highs = {spec.name: spec.high for spec in definition.inputs if spec.high}
    graph = Canonicalize().run(definition.graph)
    whole = trained(alone(graph), 2, highs, definition.initial)
    for share in (0.3, 1.0):
        program = alone(marked(graph, random, share))
        assert recomputes(program)
        assert_equal(trained(program, 2, highs, definition.initial), whole)


class Block(nn.Cell):
    def __init__(self) -> None:
        self.first, self.second = nn.Dense(8, 12, activation="gelu"), nn.Dense(12, 8)

    def construct(self, x: Tensor) -> Tensor:
        return x + self.second(self.first(x))


class Network(nn.Cell):
    def __init__(self, block: Block) -> None:
        self.block, self.head = block, nn.Dense(8, 3)

    def construct(self, x: Tensor) -> Tensor:
        return self.head(self.block(x))


def network(*, recomputed: bool) -> Definition:
    cell = Network(Block().recompute() if recomputed else Block())
    labels = InputSpec("y", TensorType("int32", (4,)), 3)
    specs = (InputSpec("x", TensorType("float32", (4, 8))), labels)
    return trace(cell, specs, loss_fn=nn.CrossEntropyLoss())


def test_a_cell_saves_what_it_returns_and_recomputes_the_rest() -> None:
    graph = network(recomputed=True).graph
    operators = [graph.producers[name].operator for name in graph.recomputed]
    assert operators == ["matmul", "add", "gelu", "matmul", "add"]
    assert parse(to_text(graph)) == graph
    assert network(recomputed=False).graph == replace(graph, recomputed=())


@pytest.mark.parametrize(
    ("precision", "search"),
    first(3, crossed(["float32", "bfloat16"], ["exact", "data_parallel", "fully_sharded"])),
)
def test_plans_of_marked_cells(search: str, precision: str) -> None:
    how = ANY_PLAN if search == "exact" else {}
    options = CompileOptions(search=search, precision=precision, **how)
    programs = [
        compile_graph(network(recomputed=marked).graph, CPU, 4, options).program
        for marked in (True, False)
    ]
    found = [trained(program, 2, {"y": 3}) for program in programs]
    assert_equal(*found)
    assert recomputes(programs[0]) > recomputes(programs[1])  # parameters may be regathered


WRONG = {
    "mp_comm_recompute": (
        False,
        "`mp_comm_recompute` is False, expected True; leave it out: what a recomputed operator "
        "reads is communicated again",
    ),
    "parallel_optimizer_comm_recompute": (
        True,
        "`parallel_optimizer_comm_recompute` is True, expected False; leave it out: the search "
        "decides it",
    ),
    "recompute_slice_activation": (
        3,
        "`recompute_slice_activation` is 3, expected True or False",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_of_recompute(name: str) -> None:
    value, message = WRONG[name]
    with pytest.raises(ShardwrightError) as caught:
        Block().recompute(**{name: value})
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("positional", "named", "message"),
    [
        (
            (True,),
            {},
            "`recompute` takes its arguments by name, found `True`; write `recompute()` to "
            "recompute the cell, and leave the call out not to",
        ),
        (
            ("full", 1),
            {},
            "`recompute` takes its arguments by name, found `'full', 1`; write `recompute()` to "
            "recompute the cell, and leave the call out not to",
        ),
        (
            (),
            {"mode": True},
            "`recompute` has no argument `mode`; expected mp_comm_recompute, "
            "parallel_optimizer_comm_recompute or recompute_slice_activation",
        ),
        (
            (),
            {"mp_comm_recomput": True},
            "`recompute` has no argument `mp_comm_recomput`; did you mean `mp_comm_recompute`?",
        ),
    ],
)
def test_unknown_arguments_of_recompute(positional, named, message) -> None:
    with pytest.raises(ShardwrightError) as caught:
        Block().recompute(*positional, **named)
    assert str(caught.value) == message


@pytest.mark.parametrize("sums", [False, True])
def test_the_rule_of_operators_saves_attention_and_every_other_product(sums: bool) -> None:
    graph = load("llama:layers=2,hidden=16,heads=2,kv_heads=1,inner=32,vocabulary=8").graph
    marked = set(Recompute("operators", sums=sums).run(graph).recomputed)
    assert marked < set(Recompute("full").run(graph).recomputed)
    products = ("matmul", "scaled_dot_product_attention")
    block = [n for n in graph.nodes if n.scope.startswith("blocks/0") and n.operator in products]
    kept = [node.scope.rpartition("/")[2] for node in block if node.name not in marked]
    again = [node.scope.rpartition("/")[2] for node in block if node.name in marked]
    projection = ["projection"] if sums else []
    assert kept == ["query", "value", "attention", *projection, "gate", "down"]
    assert again == (["key", "up"] if sums else ["key", "projection", "up"])


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            "full",
            "`full` recomputes the operators of repeated blocks, and the model has none (in graph "
            "mlp); leave `recompute` at `search`, or mark cells with `cell.recompute()`",
        ),
        (
            "selective",
            "`selective` recomputes the core of attention, and the model has no attention (in "
            "graph mlp); leave `recompute` at `search`, or mark cells with `cell.recompute()`",
        ),
    ],
)
def test_rules_that_mark_nothing_are_refused(rule: str, message: str) -> None:
    graph = load(SMALL["mlp"]).graph
    with pytest.raises(ShardwrightError) as caught:
        compile_graph(graph, CPU, 2, CompileOptions(recompute=rule))
    assert str(caught.value) == message


def test_marks_that_the_cost_model_does_not_price_are_refused() -> None:
    graph = network(recomputed=True).graph
    options = CompileOptions(cost_model="mindspore")
    with pytest.raises(ShardwrightError, match="is marked as recomputed, and the search does not"):
        compile_graph(graph, CPU, 4, options)


@pytest.mark.parametrize("line", ["recompute nothing", "recompute a\n  recompute a"])
def test_wrong_marks_of_a_graph(line: str) -> None:
    text = f"graph g {{\n  input x: f32[4]\n  a: f32[4] = relu(x)\n  {line}\n  return a\n}}\n"
    with pytest.raises(ShardwrightError, match=r"has no operator `nothing`|`a` is named twice"):
        verify(parse(text))


@pytest.mark.parametrize(("model", "rule"), [("mixtral", "layernorm+moe_act"), ("gpt", "")])
def test_a_mixture_has_light_parts(model: str, rule: str) -> None:
    assert light_parts(load(SMALL[model]).graph) == rule
