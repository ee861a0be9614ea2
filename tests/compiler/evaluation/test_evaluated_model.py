"""What a model is asked for twice is found once."""

from dataclasses import replace

import pytest

from shardwright.compiler.evaluation.evaluated_model import EvaluatedModel
from shardwright.models import training_definition
from shardwright.passes.recompute import Recompute
from shardwright.search.named_plan import NamedPlan
from tests.compiler.fit.models import model, priced
from tests.extent import long_after


@pytest.mark.parametrize(("data", "passes"), [(4, 1), (2, 2)])
def test_in_one_pass_gradients_are_reduced_once_by_both_stages(data, passes):
    own = model(narrow=True)
    plan = NamedPlan(tensor=4 // data, data=data, micro_batch=32 // data // passes, zero=1)
    one, two = (own.evaluation(replace(plan, zero=stage), 4) for stage in (1, 2))
    assert (one is two) == (passes == 1)
    assert (own.known(replace(plan, zero=2), 4) is one) == (passes == 1)
    alone = own._evaluator(4).evaluation(replace(plan, zero=2))
    assert (two.seconds, two.memory.by_kind) == (alone.seconds, alone.memory.by_kind)


@pytest.mark.parametrize("name", long_after(1, ["gpt2", "mixtral-8x22b", "deepseek-v2-lite"]))
def test_ways_to_recompute_are_of_different_programs(name):
    """What attention makes is recomputed where it is saved: its products are one operator there."""
    graph = training_definition(f"{name}:sequence=64", 8, 1)[0].graph
    asked = priced().options
    ways = EvaluatedModel(graph, priced().cluster, asked).ways
    marked = [frozenset(Recompute(rule).run(graph).recomputed) for rule in ways if rule != "none"]
    assert len({frozenset(graph.recomputed), *marked}) == len(ways)
