"""Numbers of whole blocks of each pipeline stage that are recomputed."""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from shardwright.api import compile
from shardwright.compilation import Compilation
from shardwright.dataflow.recompute_rules import has_number, layers_of, rule_in
from shardwright.dataflow.segments import block_of
from shardwright.ir.errors import OptionError, ShardwrightError, StrategyError
from shardwright.passes.pipeline import parse_pipeline, pipeline_text
from shardwright.passes.recompute import Recompute
from shardwright.search.named_plan import RECOMPUTE, NamedPlan
from shardwright.zoo import load
from tests.equivalence import assert_equal, trained
from tests.extent import first

LLAMA = "llama:hidden=32,heads=4,kv_heads=2,inner=64,sequence=16,vocabulary=64,layers=8"
HIGHS = {"tokens": 64, "labels": 64}


@cache
def compiled(plan: str, devices: int = 1) -> Compilation:
    return compile(LLAMA, devices, plan=plan, batch=8)


def whole(plan: str, devices: int = 1) -> set[int]:
    """Return the numbers of the blocks of which something is recomputed."""
    source = compiled(plan, devices).compiled.source
    marks = set(source.recomputed)
    found = {block_of(node.scope) for node in source.nodes if node.name in marks}
    return {int(block.split("/")[1]) for block in found}


def activations(rule: str) -> float:
    memory = compiled(f"data=1,recompute={rule}").plan.document.memory
    return memory.by_kind["activations"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("plan", "devices", "blocks"),
    [
        ("data=1,recompute=full:block=3", 1, {0, 1, 2}),
        ("pipeline=2,micro_batch=2,recompute=full:block=3", 2, {0, 1, 2, 4, 5, 6}),
        ("pipeline=2,chunks=2,micro_batch=2,recompute=full:block=1", 2, {0, 2, 4, 6}),
        ("pipeline=3,micro_batch=2,recompute=full:block=2", 3, {0, 1, 3, 4, 6, 7}),
        ("pipeline=2,micro_batch=2,recompute=full:uniform=2", 2, set(range(8))),
    ],
)
def test_blocks_are_counted_in_each_stage(plan, devices, blocks):
    assert whole(plan, devices) == blocks


def test_the_cells_of_a_model_may_say_the_stages():
    graph = load(f"{LLAMA},batch=8").graph
    begin = next(node.name for node in graph.nodes if block_of(node.scope) == "blocks/6")
    marked = Recompute("full:block=3").run(replace(graph, cuts=(begin,))).recomputed
    scopes = {block_of(node.scope) for node in graph.nodes if node.name in set(marked)}
    assert scopes == {f"blocks/{number}" for number in (0, 1, 2, 6, 7)}


def test_all_blocks_one_by_one_is_the_whole():
    full = compiled("data=1,recompute=full").compiled.source.recomputed
    assert compiled("data=1,recompute=full:block=8").compiled.source.recomputed == full
    assert NamedPlan.parse("data=1,recompute=full:uniform=1").recompute == "full"


@pytest.mark.long
def test_every_block_that_is_recomputed_frees_as_much():
    taken = [activations(rule) for rule in ("none", *(f"full:block={n}" for n in range(1, 8)))]
    freed = [before - after for before, after in pairwise(taken)]
    assert freed == [freed[0]] * len(freed)
    assert freed[0] > 0


@pytest.mark.long
def test_blocks_at_a_time_save_the_input_of_the_first():
    """A group that is computed again is held: 2 blocks more with their inputs, 2 inputs fewer."""
    block, residual = activations("none") - activations("full:block=1"), 8 * 16 * 32 * 4
    change = activations("full:uniform=4") - activations("full:uniform=2")
    assert change == 2 * (block + residual) - 2 * residual
    rules = ("full", "full:uniform=2", "full:uniform=4", "full:uniform=8", "none")
    taken = [activations(rule) for rule in rules]
    assert taken == sorted(set(taken))


def test_a_step_takes_the_blocks_again():
    steps = [
        compiled(f"data=1,recompute={rule}").plan.document.objective
        for rule in ("none", "full:block=2", "full:block=4", "full")
    ]
    assert steps[1] - steps[0] == pytest.approx(steps[2] - steps[1], rel=1e-6)
    assert steps[2] < steps[3]
    # The last product of a block and what follows make the input of the next one again.
    assert compiled("data=1,recompute=full:uniform=4").plan.document.objective > steps[3]


PLANS = (
    ("tensor=2,pipeline=2,micro_batch=2,sequence_parallel,recompute=full:uniform=2", 4),
    ("pipeline=2,chunks=2,micro_batch=2,recompute=full:block=1", 2),
    ("data=2,zero=3,recompute=full:uniform=4", 2),
    ("context=2,recompute=full:block=5", 2),
    ("pipeline=4,micro_batch=1,recompute=full:uniform=2", 4),
)


@pytest.mark.long
@pytest.mark.parametrize(("plan", "devices"), first(3, PLANS))
def test_nothing_changes_of_what_is_computed(plan, devices):
    found = trained(compiled(plan, devices).plan.program, 1, HIGHS)
    alone = compile(LLAMA, 1, mode="stand_alone", batch=8).plan.program
    want = trained(alone, 1, HIGHS)
    assert_equal({name: value for name, value in found.items() if name in want}, want)


def test_rules_are_read_as_they_are_written():
    for rule in ("full:block=2", "full:uniform=12"):
        assert rule_in("recompute", rule, RECOMPUTE) == rule
        assert layers_of(rule).rule == rule
        assert has_number(rule)
        plan = NamedPlan.parse(f"data=2,recompute={rule}")
        assert NamedPlan.parse(plan.text) == plan
        pipeline = (Recompute(rule, stages=4),)
        assert parse_pipeline(pipeline_text(pipeline)) == pipeline
    assert not any(has_number(rule) for rule in (*RECOMPUTE, "moe+mlp", "full:uniform=1"))


@pytest.mark.parametrize(
    "rule", ["full:", "full:block", "full:block=0", "full:block=-1", "full:all=2", "full:block=²"]
)
def test_what_is_no_number_of_blocks_is_refused(rule):
    with pytest.raises(OptionError, match=f"`recompute` is `{rule}`, which says no number"):
        rule_in("recompute", rule, RECOMPUTE)


@pytest.mark.parametrize(
    ("plan", "devices", "message"),
    [
        ("data=1,recompute=full:block=9", 1, "the first 9 blocks .*, and the longest one has 8"),
        ("data=1,recompute=full:uniform=3", 1, "3 blocks at a time, and a pipeline stage has 8"),
        ("pipeline=3,recompute=full:uniform=2", 3, "2 blocks at a time, .* has 3"),
    ],
)
def test_what_no_stage_has_is_refused(plan, devices, message):
    with pytest.raises(StrategyError, match=message):
        compile(LLAMA, devices, plan=plan, batch=8, micro_batches=4 if devices > 1 else 1)


def test_a_number_needs_a_plan_that_says_the_stages():
    message = "counts the blocks of each pipeline stage, and no named plan says the stages"
    with pytest.raises(ShardwrightError, match=message):
        compile(LLAMA, 2, recompute="full:block=2", batch=8)
