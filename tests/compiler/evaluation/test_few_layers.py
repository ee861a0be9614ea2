"""What few layers of each kind tell of a model is what all of its layers tell."""

from dataclasses import replace
from functools import cache

import pytest

from shardwright.compiler.evaluation import repeated
from shardwright.compiler.evaluation.evaluated_model import EvaluatedModel
from shardwright.compiler.evaluation.evaluator import Evaluator
from shardwright.compiler.evaluation.repeated import RepeatedModel
from shardwright.cost_model.efficiency.software import software
from shardwright.models import training_definition
from shardwright.operators.models.optimizer import Optimizer
from shardwright.planner.evaluation.few_layers import few_layers
from shardwright.planner.evaluation.lengthening import NotRepeatedError
from shardwright.planner.options import CompileOptions
from shardwright.search.named_plan import NamedPlan
from tests.compiler.fit.models import CLUSTER

PATTERN = "MEMEM*EMEM*EMEMEM*EMEMEMEM*EMEMEME"
HYBRID = (
    f"nemotron-3-nano:hidden_size=16,hybrid_override_pattern={PATTERN},num_attention_heads=2,"
    "head_dim=8,vocab_size=32,mamba_num_heads=4,mamba_head_dim=8,n_groups=2,ssm_state_size=4,"
    "moe_intermediate_size=12,moe_shared_expert_intermediate_size=12,n_routed_experts=4,"
    "num_experts_per_tok=2,sequence=8"
)
PLANS = (
    "data=2,expert=2,micro_batch=2",
    "data=2,micro_batch=1,recompute=full",
    "tensor=2,data=1,expert=2,expert_tensor=1,micro_batch=2,sequence_parallel",
)


@cache
def evaluator() -> Evaluator:
    graph = training_definition(HYBRID, 8, 1)[0].graph
    asked = CompileOptions(precision="bfloat16", optimizer=Optimizer("adam", {}))
    return EvaluatedModel(graph, CLUSTER, asked, software("megatron-core"))._evaluator(2)


def model(plan: NamedPlan) -> RepeatedModel:
    return evaluator()._in_one_stage(evaluator()._options_of(plan))


@pytest.mark.long
@pytest.mark.parametrize("text", PLANS)
def test_parts_of_few_layers_are_those_of_all(text, monkeypatch):
    plan = NamedPlan.parse(text)
    own = model(plan)
    assert own._few_layers is not None
    assert len(own._few_layers.graph) < 0.6 * len(own.whole)
    found = evaluator().parts(plan)
    monkeypatch.setattr(RepeatedModel, "of_few_layers", lambda self, of: None)
    monkeypatch.setattr(RepeatedModel, "repeated", lambda self, plan, of: None)
    whole = evaluator().parts(plan)
    assert len(found.layers) == len(PATTERN)
    assert (found.layers, found.first, found.last) == (whole.layers, whole.first, whole.last)


def test_every_layer_has_one_with_its_kind_and_neighbours():
    few = model(NamedPlan.parse(PLANS[0]))._few_layers
    assert few is not None
    assert len(few.standing) == len(PATTERN)

    def around(name):
        place = int(name.rpartition("/")[2])
        return (".", *PATTERN, ".")[place : place + 3]

    for name, others in few.standing.items():
        assert {around(other) for other in others} == {around(name)}


def test_layers_that_became_different_ones_are_told():
    plan = NamedPlan.parse(PLANS[0])
    few = model(plan)._few_layers
    assert few is not None
    program = evaluator()._emitted_alone(few.graph, plan, evaluator()._options_of(plan))
    few.check_alike(program)
    one = next(names[0] for names in few.standing.values() if len(names) > 1)
    nodes = [node for node in program.nodes if not node.scope.startswith(f"{one}/")]
    last = next(node for node in program.nodes if node.scope.startswith(f"{one}/"))
    with pytest.raises(NotRepeatedError):
        few.check_alike(replace(program, nodes=(*nodes, last)))


def test_what_others_read_stays():
    graph = model(NamedPlan.parse(PLANS[0])).whole
    inside = next(node for node in graph.nodes if node.scope.startswith("blocks/12/"))
    few = few_layers(replace(graph, outputs=(*graph.outputs, inside.name)), {})
    assert few is not None
    assert inside.name in few.graph.values


def test_periods_that_leave_out_more_are_taken(monkeypatch):
    graph = training_definition("llama:layers=12,hidden=16,heads=2,kv_heads=2,inner=32", 2, 1)[0]
    own = RepeatedModel(graph.graph, {})
    assert own._few_layers is None
    monkeypatch.setattr(repeated, "shortened", lambda *_: None)
    assert RepeatedModel(graph.graph, {})._few_layers is not None
