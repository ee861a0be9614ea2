"""Bounds of plans as training software runs them, beside their evaluated steps."""

from dataclasses import replace

import pytest

from shardwright.compiler.evaluation.evaluated import evaluated
from shardwright.compiler.evaluation.evaluated_model import EvaluatedModel
from shardwright.compiler.evaluation.factors import Factors
from shardwright.cost_model.efficiency.software import software
from shardwright.models import training_definition
from shardwright.operators.models.optimizer import Optimizer
from shardwright.planner.options import CompileOptions
from shardwright.search.named_plan import NamedPlan
from tests.compiler.fit.models import CLUSTER
from tests.extent import long_after

DENSE = "llama:layers=4,hidden=64,heads=4,kv_heads=4,inner=128,sequence=32,vocabulary=128"


@pytest.mark.parametrize("compute", long_after(1, [0.5, 1.0, 2.0]))
def test_a_host_is_as_much_faster_as_all_figures(compute):
    """The factor of operators is that of the step where links have the same: also of the host."""
    graph = training_definition(DENSE, 16, 1)[0].graph
    asked = CompileOptions(precision="bfloat16", optimizer=Optimizer("adam", {}))
    own = EvaluatedModel(graph, CLUSTER, asked, software("megatron-core"))
    case = Factors(compute, (compute, compute))
    for plan in map(NamedPlan.parse, ("data=4,micro_batch=1", "pipeline=4,micro_batch=1")):
        bound, found = own.bound(plan, 4), evaluated(own, plan, 4)
        assert bound is not None
        assert found is not None
        step = found.seconds_in(case)
        assert 0.5 * step <= replace(bound, factors=case).seconds <= step * (1 + 1e-9)
