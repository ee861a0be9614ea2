"""Layers of decoders of today: shared heads with rotary positions, gates, experts."""

import numpy as np
import pytest

from shardwright import nn
from shardwright.compiler.driver import compile_graph
from shardwright.cost_model.cluster import cluster
from shardwright.ir.errors import ModelError
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import TensorType
from shardwright.operators.models.optimizer import Optimizer
from shardwright.planner.options import CompileOptions
from shardwright.runtime import LocalCommunicator, initialize
from shardwright.tracing import InputSpec, trace
from tests.equivalence import assert_equal, trained
from tests.extent import ANY_PLAN
from tests.random_plans import profile_for, random_program
from tests.shardwright.programs import outputs_of

CPU = cluster("cpu")
BATCH, LENGTH, HIDDEN, INNER, EXPERTS = 4, 8, 8, 12, 4


class Layer(nn.Cell):
    """A decoder layer with experts, and its loss."""

    def __init__(self) -> None:
        self.norm = nn.RMSNorm(HIDDEN)
        self.attention = nn.GroupedQueryAttention(HIDDEN, 4, 2)
        self.experts = nn.RoutedExperts(HIDDEN, INNER, EXPERTS)

    def construct(self, x):
        x = x + self.attention(self.norm(x))
        x = x + self.experts(x)
        return (x * x).mean() + self.experts.balance * 0.01


def specification(name: str = "x") -> InputSpec:
    return InputSpec(name, TensorType("float32", (BATCH, LENGTH, HIDDEN)))


def silu(x):
    return x / (1 + np.exp(-x))


def test_every_token_through_all_experts_is_their_weighted_sum():
    cell = nn.RoutedExperts(HIDDEN, INNER, EXPERTS, top_k=EXPERTS)
    definition = trace(cell, [specification()])
    x = np.random.default_rng(0).normal(size=(BATCH, LENGTH, HIDDEN))
    found = outputs_of(definition, {"x": x})[0]
    held = initialize(definition.graph, 0, LocalCommunicator(Mesh(())), float_dtype="float64")
    router, gate, up, down = (
        held[name][0] for name in ("router.weight", "gate.weight", "up.weight", "down.weight")
    )
    scores = np.exp(x @ router.T)
    scores /= scores.sum(-1, keepdims=True)
    expected = sum(
        scores[..., i, None] * ((silu(x @ gate[i]) * (x @ up[i])) @ down[i]) for i in range(EXPERTS)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.long
def test_random_plans_of_a_layer_with_experts_compute_the_same():
    graph = trace(Layer(), [specification()]).graph
    alone = trained(compile_graph(graph, CPU, 1, CompileOptions(mode="stand_alone")).program)
    for seed in range(3):
        random = np.random.default_rng(seed)
        program = random_program(graph, profile_for(8), random, Optimizer())
        assert_equal(trained(program), alone)


def test_experts_that_are_split_are_reached_by_an_exchange_all_to_all():
    graph = trace(Layer(), [specification()]).graph
    pins = {
        node.name: ((2, 1, 1, 1), (2, 1, 1))
        for node in graph.nodes
        if node.operator == "grouped_matmul"
    }
    assert len(pins) == 3
    pins |= {n.name: ((2, 1, 1), (2, 1, 1)) for n in graph.nodes if n.operator == "dispatch"}
    compiled = compile_graph(graph, CPU, 2, CompileOptions(pins=pins, **ANY_PLAN))
    assert any(node.operator == "all_to_all" for node in compiled.program.nodes)
    alone = compile_graph(graph, CPU, 1, CompileOptions(mode="stand_alone")).program
    assert_equal(trained(compiled.program), trained(alone))


class Routed(nn.Cell):
    """Experts alone, and the losses of their router."""

    def __init__(self, **options) -> None:
        self.experts = nn.RoutedExperts(HIDDEN, INNER, 8, **options)

    def construct(self, x):
        x = x + self.experts(x)
        return (x * x).mean() + self.experts.balance * 0.01 + self.experts.z_loss * 0.001


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_losses_of_the_router_and_its_bias_are_those_of_one_device(micro_batches):
    """Balance is of a micro-batch, on all ranks; the bias follows the loads of the whole step."""
    cell = Routed(scores="sigmoid", groups=4, top_groups=2, selection_bias=True, scale=2.5)
    graph = trace(cell, [InputSpec("x", TensorType("float32", (8, LENGTH, HIDDEN)))]).graph
    how = CompileOptions(mode="stand_alone", micro_batches=micro_batches)
    alone = trained(compile_graph(graph, CPU, 1, how).program)
    plan = f"data=4,expert=4,micro_batch={2 // micro_batches}"
    split = trained(compile_graph(graph, CPU, 4, CompileOptions(plan=plan)).program)
    assert_equal(split, alone)
    whole = trained(compile_graph(graph, CPU, 1, CompileOptions(mode="stand_alone")).program)
    bias = "experts.selection_bias"
    np.testing.assert_array_equal(alone[bias], whole[bias])
    assert np.abs(alone[bias]).max() > 0


def test_a_sequence_may_be_split_between_the_ranks_of_experts():
    graph = trace(Routed(), [InputSpec("x", TensorType("float32", (2, LENGTH, HIDDEN)))]).graph
    pins = {n.name: ((1, 4, 1), (1, 4, 1)) for n in graph.nodes if n.operator == "dispatch"}
    products = [n.name for n in graph.nodes if n.operator == "grouped_matmul"]
    pins |= dict.fromkeys(products, ((4, 1, 1, 1), (4, 1, 1)))
    compiled = compile_graph(graph, CPU, 4, CompileOptions(pins=pins, **ANY_PLAN))
    assert any(node.operator == "all_to_all" for node in compiled.program.nodes)
    alone = compile_graph(graph, CPU, 1, CompileOptions(mode="stand_alone")).program
    assert_equal(trained(compiled.program), trained(alone))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scores": "relu"}, "no scores are called `relu`"),
        ({"groups": 3}, "8 experts do not make 3 equal groups"),
        ({"groups": 4, "top_groups": 5}, "in 5 of 4 groups of experts"),
        ({"top_k": 3, "groups": 4}, "through 3 experts, 1 groups of 2 have fewer"),
        ({"gated": False, "activation": "swigluoai"}, "`gated` is False"),
    ],
)
def test_routers_that_contradict_themselves_are_refused(options, message):
    with pytest.raises(ModelError, match=message):
        nn.RoutedExperts(HIDDEN, INNER, 8, **options)


def test_gates_multiply():
    cell = nn.GatedFeedForward(HIDDEN, INNER)
    definition = trace(cell, [specification()])
    x = np.random.default_rng(0).normal(size=(BATCH, LENGTH, HIDDEN))
    held = initialize(definition.graph, 0, LocalCommunicator(Mesh(())), float_dtype="float64")
    gate, up, down = (held[f"{name}.weight"][0] for name in ("gate", "up", "down"))
    expected = (silu(x @ gate.T) * (x @ up.T)) @ down.T
    np.testing.assert_allclose(outputs_of(definition, {"x": x})[0], expected, rtol=1e-9)


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(ModelError, match="4 heads of queries and 3 of keys"):
        nn.GroupedQueryAttention(HIDDEN, 4, 3)
    with pytest.raises(ModelError, match="through 5 of 4 experts"):
        nn.RoutedExperts(HIDDEN, INNER, 4, top_k=5)
