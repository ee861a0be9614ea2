"""Experts over the ranks of attention: their mesh, their programs, what is refused."""

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import proofs
import pytest
from proof_mutants import _after, _alike, _with

import shardwright as sw
from shardwright import nn
from shardwright.compiler.driver import compile_graph
from shardwright.cost_model.cluster import cluster
from shardwright.dataflow.cotangents import gradient_name
from shardwright.ir.errors import OptionError
from shardwright.ir.graph import Node
from shardwright.ir.types import TensorType
from shardwright.models import load_model
from shardwright.operators.models.optimizer import Optimizer
from shardwright.planner.options import CompileOptions
from shardwright.proof import UpdateRule, prove_program
from shardwright.search.named_plan import NamedPlan
from shardwright.search.plan_axes import PlanAxes
from shardwright.tracing import InputSpec, trace
from tests.equivalence import assert_equal, trained
from tests.extent import crossed, first
from tests.zoo_sizes import SMALL

CPU, POD = cluster("cpu"), cluster("h100-pod:figures=datasheet")
BATCH, LENGTH, HIDDEN, INNER, EXPERTS = 4, 8, 8, 8, 4


class Layer(nn.Cell):
    """A decoder layer with experts, a normalized output, and its losses."""

    def __init__(self) -> None:
        self.norm = nn.RMSNorm(HIDDEN)
        self.attention = nn.GroupedQueryAttention(HIDDEN, 4, 2)
        self.last = nn.RMSNorm(HIDDEN)
        self.experts = nn.RoutedExperts(HIDDEN, INNER, EXPERTS, router_bias=True, has_bias=True)
        self.out = nn.Dense(HIDDEN, 4)

    def construct(self, x):
        x = x + self.attention(self.norm(x))
        x = x + self.experts(self.last(x))
        x = self.out(x)
        return (x * x).mean() + self.experts.balance * 0.01 + self.experts.z_loss * 0.001


UP = gradient_name("experts.up.weight")
ROUTER = np.zeros((EXPERTS, HIDDEN))
ROUTINGS = {
    "random": {},
    "all to one rank": {"experts.router.bias": np.array([60.0, 30.0, 0.0, 0.0])},
    "an empty expert": {"experts.router.bias": np.array([0.0, 0.0, -60.0, 0.0])},
    "ties": {"experts.router.weight": ROUTER, "experts.router.bias": ROUTER[:, 0]},
}
FOLDED = (
    "tensor=2,data=2,expert_tensor=1,expert=4,sequence_parallel,zero=1",
    "context=2,data=2,expert=4,zero=3",
    "tensor=2,context=2,expert_tensor=1,expert=2,sequence_parallel,zero=1,micro_batch=2",
    "tensor=2,data=2,expert_tensor=4,sequence_parallel,zero=1",
    "tensor=4,expert_tensor=2,expert=2,sequence_parallel",
    "tensor=4,expert_tensor=1,expert=2,sequence_parallel,zero=3",
    "context=2,ring,data=2,expert_tensor=2,expert=2,micro_batch=1",
    "tensor=2,data=2,expert_tensor=1,sequence_parallel,zero=3,micro_batch=1",
    "context=4,expert=2,zero=1",
    "data=4,expert_tensor=2,zero=2,micro_batch=1",
)


@cache
def graph_of_layer():
    return trace(Layer(), [InputSpec("x", TensorType("float32", (BATCH, LENGTH, HIDDEN)))]).graph


@cache
def alone(routing, micro_batches):
    how = CompileOptions(mode="stand_alone", micro_batches=micro_batches)
    program = compile_graph(graph_of_layer(), CPU, 1, how).program
    return trained(program, initial=ROUTINGS[routing])


@pytest.mark.long
@pytest.mark.parametrize(("routing", "plan"), first(10, crossed(ROUTINGS, FOLDED)))
def test_a_folded_plan_has_the_loss_and_gradients_of_one_device(routing, plan):
    compiled = compile_graph(graph_of_layer(), CPU, 4, CompileOptions(plan=plan))
    passes = NamedPlan.parse(plan).passes(BATCH, 4)
    found = trained(compiled.program, initial=ROUTINGS[routing])
    assert_equal(found, alone(routing, passes))
    if routing == "an empty expert":
        assert not np.any(found[f"0.{UP}"][2])
        assert np.any(found[f"0.{UP}"][3])


@pytest.mark.long
@pytest.mark.parametrize(
    "plan",
    first(
        2,
        [
            "pipeline=2,tensor=2,data=2,expert_tensor=1,expert=4,sequence_parallel,zero=1,"
            "micro_batch=1",
            "tensor=2,context=2,data=2,expert_tensor=1,expert=8,sequence_parallel,zero=3",
            "tensor=2,data=4,shard=2,expert_tensor=1,expert=2,sequence_parallel",
        ],
    ),
)
def test_a_folded_plan_of_a_whole_model_is_proven(plan):
    how = {"optimizer": "adam", "precision": "bfloat16"}
    verdict = sw.verify(sw.compile(SMALL["mixtral"], 8, plan=plan, **how), steps=1)
    assert verdict.equal
    assert verdict.proof.proven
    assert verdict.max_relative_error < 1e-9


@pytest.mark.parametrize(
    ("text", "devices", "mesh", "levels"),
    [
        ("expert=16", 64, "data=4 x expert_pod=2 x expert_node=8", [1, 1, 0]),
        ("tensor=4,expert_tensor=1,expert=8,sequence_parallel", 32, "data=4 x expert=2 x "
         "tensor_expert=4", [1, 0, 0]),
        ("tensor=4,expert_tensor=1,expert=2,sequence_parallel", 8, "data=2 x tensor_copies=2 x "
         "tensor_expert=2", [0, 0, 0]),
        ("tensor=2,context=4,expert=2,sequence_parallel", 32, "data=4 x context=2 x "
         "context_expert=2 x tensor=2", [1, 0, 0, 0]),
        ("tensor=2,expert_tensor=4,expert=2,sequence_parallel", 16, "data=2 x expert=2 x "
         "data_tensor=2 x tensor=2", [1, 0, 0, 0]),
        ("tensor=8,expert_tensor=2,expert=2,sequence_parallel", 8, "tensor_copies=2 x "
         "tensor_expert=2 x tensor=2", [0, 0, 0]),
    ],
)  # fmt: skip
def test_expert_ranks_are_the_nearest_behind_those_within_an_expert(text, devices, mesh, levels):
    plan = NamedPlan.parse(text)
    made = plan.mesh(POD, devices)
    assert str(made) == mesh
    assert [axis.level for axis in made.axes] == levels
    axes = PlanAxes.of(made)
    on = plan.on(devices)
    assert made.extent(axes.tensor) == on.tensor
    assert made.extent(axes.context) == on.context
    assert made.extent(axes.data) == on.data
    assert made.extent(axes.expert) == on.expert
    assert made.extent(axes.of_experts) == on.of_experts
    assert made.extent(axes.expert_storage) == on.expert_data


@pytest.mark.long
def test_states_of_experts_are_divided_over_their_own_data_ranks():
    plan = "tensor=4,data=2,expert_tensor=1,expert=2,sequence_parallel,zero=1"
    stored = sw.compile(SMALL["mixtral"], 8, plan=plan).plan.document.parameters
    block = "decoder.blocks.0."
    assert stored[f"{block}feed_forward.gate.weight"].slice_shape == (1, 16, 24)  # 2 x 4 ranks
    assert stored[f"{block}attention.projection.weight"].slice_shape == (8, 4)  # 4 x 2 ranks


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (
            "data=4,expert=4,tensor=2",
            "`expert=4` of the plan does not divide the 6 experts of the model; use a divisor of 6",
        ),
        (
            "data=8,expert=8",
            "`expert=8` of the plan does not divide the 6 experts of the model; use a divisor of 6",
        ),
        (
            "tensor=4,data=2,expert=3",
            "`expert_tensor=4` * `expert=3` of the plan does not divide the 8 ranks of a stage, "
            "`tensor=4` * `data=2`; use degrees whose product divides 8",
        ),
    ],
)
def test_expert_ranks_that_do_not_divide_the_experts_are_refused(plan, message):
    model = SMALL["mixtral"] + ",experts=6"
    with pytest.raises(OptionError) as caught:
        sw.compile(model, 8, plan=plan)
    assert str(caught.value) == message


def test_a_model_without_experts_has_none_to_divide():
    for item in ("expert=2", "expert_tensor=2"):
        with pytest.raises(OptionError, match=f"`{item}` of the plan divides nothing: the model"):
            sw.compile(SMALL["llama"], 4, plan=f"data=4,{item}")


OF_EXPERTS = ("dispatch", "combine", "grouped_matmul", "grouped_outer", "routing_weight_gradient")


def mutants_of_experts(program):
    """Yield small changes of the operators of experts, two nodes of each."""
    for operator in OF_EXPERTS:
        for node in [n for n in program.nodes if n.operator == operator][:2]:
            result = replace(node.results[0], name=f"{node.name}.negative")
            yield node, _after(program, node.name, Node("neg", (node.name,), (result,)))
            for i, name in enumerate(node.operands):
                for other in _alike(program, name, node)[-2:]:
                    operands = (*node.operands[:i], other, *node.operands[i + 1 :])
                    yield node, _with(program, node, replace(node, operands=operands))
            if operator in ("dispatch", "combine") and len(node.operands) == 3:
                dropped = replace(node, operands=node.operands[:2])
                yield node, _with(program, node, dropped)
            if "transposed" in node.attributes:
                turned = {**node.attributes, "transposed": not node.attributes["transposed"]}
                yield node, _with(program, node, replace(node, attributes=turned))


@pytest.mark.long
def test_wrong_mutants_of_operators_of_experts_in_a_folded_plan_are_refused():
    definition = load_model(next(model for model in proofs.SMALL if model.startswith("mixtral")))
    plan = "tensor=2,data=2,expert_tensor=1,expert=4,sequence_parallel,zero=1"
    how = CompileOptions(plan=plan, optimizer=Optimizer("sgd"))
    program = compile_graph(definition.graph, CPU, 4, how).program
    rule = UpdateRule("sgd", Optimizer("sgd").settings)
    highs = {spec.name: spec.high or 2 for spec in definition.inputs}
    expected = proofs.trained(program, 2, highs, definition.initial)
    assert prove_program(definition.graph, program, rule).proven
    wrong = Counter()
    for node, mutant in mutants_of_experts(program):
        if proofs.differs(expected, mutant, highs, definition.initial):
            wrong[node.operator] += 1
            found = prove_program(definition.graph, mutant, rule)
            assert found.proven is False, (node.name, proofs.changes(program, mutant))
    assert {*wrong} == {*OF_EXPERTS}
    assert wrong.total() > 15
