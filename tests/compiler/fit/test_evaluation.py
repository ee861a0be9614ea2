"""The simulated step of a named plan is that of its compiled program."""

from math import inf

import pytest

from shardwright.api import compile
from shardwright.compiler.fit.evaluation import Evaluator
from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.timeline import simulate
from shardwright.dataflow.update_rules import with_rules
from shardwright.models import load_model
from shardwright.operators.models.optimizer import Optimizer
from shardwright.planner.options import CompileOptions
from shardwright.search.named_plan import NamedPlan

POD = cluster("h100-pod")
SMALL = "hidden=64,heads=4,sequence=32,vocabulary=100,batch=16"
LLAMA = f"llama:layers=16,kv_heads=4,inner=128,{SMALL}"
CASES = [
    (LLAMA, "data=8,zero=3,micro_batch=1,recompute=full"),
    (LLAMA, "tensor=2,data=4,zero=1,sequence_parallel"),
    (f"gpt:layers=16,dropout=0.1,{SMALL}", "data=8"),
    (f"mixtral:layers=12,kv_heads=4,inner=128,experts=8,{SMALL}", "data=8,expert=4,zero=1"),
    (f"gpt:layers=2,{SMALL}", "data=4,tensor=2,zero=2,sequence_parallel,micro_batch=2"),
]


@pytest.mark.parametrize(("model", "plan"), CASES)
def test_step_is_that_of_the_compiled_program(model: str, plan: str) -> None:
    graph, limit = load_model(model).graph, POD.device.usable_bytes
    rules = with_rules(Optimizer("adam"), graph)
    asked = CompileOptions(optimizer=rules, precision="bfloat16")
    seconds = Evaluator(graph, POD.used_by(8), 8, asked).seconds(NamedPlan.parse(plan))
    found = compile(model, 8, cluster=POD, plan=plan, optimizer="adam", precision="bfloat16")
    program = found.plan.program
    assert seconds == pytest.approx(simulate(program, found.cluster, limit).step_seconds, rel=1e-9)
    assert seconds <= found.compiled.result.cost * (1 + 1e-9)


def test_plan_that_does_not_fit_takes_for_ever() -> None:
    graph = load_model(LLAMA).graph
    asked = CompileOptions(optimizer=Optimizer("adam"), memory_limit=1e4)
    assert Evaluator(graph, POD.used_by(8), 8, asked).seconds(NamedPlan.parse("data=8")) == inf
