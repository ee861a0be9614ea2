"""Attention of split sequences: keys gathered or on a ring, in models with uneven lengths."""

from dataclasses import replace

import pytest

import shardwright as sw
from shardwright.compiler.plans.plan import Plan
from shardwright.ir.errors import ShardwrightError
from shardwright.ir.graph import Graph, Node, renamed
from shardwright.ir.text import parse, to_text
from shardwright.operators.info import SplitCounts
from shardwright.proof import prove_program
from shardwright.proof.step import UpdateRule
from shardwright.zoo.loading import load
from tests.extent import ANY_PLAN, first, long_after

MODELS = {
    "gpt": (
        "gpt:layers=2,hidden=8,heads=2,batch=2,sequence={},vocabulary=20,dropout=0.1,dtype=float32"
    ),
    "llama": "llama:layers=2,hidden=8,heads=4,kv_heads=2,inner=12,batch=2,sequence={},"
    "vocabulary=20",
    "mixtral": "mixtral:layers=2,hidden=8,heads=4,kv_heads=2,inner=12,experts=4,batch=2,"
    "sequence={},vocabulary=20",
}
ATTENTION = "scaled_dot_product_attention"


def split(model: str, ranks: int, keys: int, **options: object) -> Plan:
    """Return a plan in which attention splits the queries, and the keys so many ways."""
    definition = load(model)
    read: SplitCounts = ((1, 1, ranks, 1), (1, 1, keys, 1), (1, 1, keys, 1))
    pins = {n.name: read for n in definition.graph.nodes if n.operator == ATTENTION}
    how = {**ANY_PLAN, **options}
    return sw.compile(definition, ranks, cluster="cpu", strategies=pins, **how).plan  # type: ignore[arg-type]


def rings(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.operator.startswith("ring_attention")]


def check(plan: Plan) -> None:
    assert parse(to_text(plan.program)) == plan.program
    assert sw.prove(plan).proven
    found = sw.verify(plan)
    assert found.equal, found.first_difference
    assert found.max_relative_error < 1e-9


# Each model with one of the splits, then with the others.
SIZES = ((2, 7), (3, 8), (4, 13))
SPLITS = first(
    len(MODELS),
    [
        (model, *SIZES[(at + turn) % len(SIZES)])
        for turn in range(len(SIZES))
        for at, model in enumerate(MODELS)
    ],
)


@pytest.mark.long
@pytest.mark.parametrize(("model", "ranks", "length"), first(2, SPLITS))
def test_keys_on_a_ring(model: str, ranks: int, length: int) -> None:
    plan = split(MODELS[model].format(length), ranks, ranks)
    assert len(rings(plan.program)) == 4
    check(plan)


@pytest.mark.parametrize(("model", "ranks", "length"), long_after(1, first(2, SPLITS)))
def test_keys_gathered(model: str, ranks: int, length: int) -> None:
    plan = split(MODELS[model].format(length), ranks, 1)
    assert not rings(plan.program)
    assert "all_gather" in plan.document.communication
    check(plan)


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "options"),
    first(
        2,
        [
            ("gpt", {"micro_batches": 2, "recompute": "full"}),
            ("llama", {"recompute": "selective"}),
            ("gpt", {"micro_batches": 2}),
            ("gpt", {"recompute": "full"}),
            ("llama", {"micro_batches": 2, "recompute": "full", "optimizer": "adam"}),
            ("llama", {"micro_batches": 2}),
            ("llama", {"recompute": "full"}),
            ("gpt", {"recompute": "selective"}),
            ("gpt", {"micro_batches": 2, "recompute": "full", "optimizer": "adam"}),
        ],
    ),
    ids=str,
)
def test_rings_with_recomputation_and_micro_batches(model: str, options: dict[str, object]) -> None:
    check(split(MODELS[model].format(7), 3, 3, gap=0.1, **options))


@pytest.mark.long
def test_a_ring_in_low_precision() -> None:
    plan = split(MODELS["llama"].format(7), 2, 2, precision="bfloat16")
    (node, *_) = rings(plan.program)
    assert [result.type.dtype for result in node.results] == ["bfloat16", "float32"]
    found = sw.verify(plan)
    assert found.equal, found.first_difference


@pytest.mark.long
def test_the_search_finds_a_ring_for_one_long_sequence() -> None:
    model = (
        "llama:layers=1,hidden=512,heads=4,kv_heads=1,inner=512,batch=1,sequence=131072,"
        "dtype=float32"
    )
    plan = sw.compile(load(model), 8, cluster="h100-pod:figures=datasheet").plan
    assert plan.document.lower_bound <= plan.document.objective
    assert len(rings(plan.program)) == 2
    assert sw.prove(plan).proven
    one = sw.compile(
        load(model.replace("131072", "512")), 8, cluster="h100-pod:figures=datasheet"
    ).plan
    assert not rings(one.program)


# By name


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "devices", "length", "plan", "count"),
    first(
        2,
        [
            ("mixtral", 8, 8, "context=2,ring,tensor=2,data=2,expert=2,zero=3", 4),
            ("llama", 8, 7, "context=2,ring,pipeline=2,data=2,micro_batch=1,recompute=full", 6),
            ("gpt", 2, 7, "context=2", 0),
            ("llama", 4, 8, "context=2,ring,tensor=2,sequence_parallel", 4),
            ("gpt", 3, 7, "context=3,ring", 4),
            ("llama", 4, 9, "context=4,ring,zero=1", 4),
            ("gpt", 4, 9, "context=2,ring,data=2,micro_batch=1,recompute=full,zero=2", 6),
        ],
    ),
)
def test_context_ranks_by_name(
    model: str, devices: int, length: int, plan: str, count: int
) -> None:
    built = sw.compile(
        load(MODELS[model].format(length)), devices, cluster="h100-pod:figures=datasheet", plan=plan
    )
    assert len(rings(built.plan.program)) == count
    check(built.plan)


@pytest.mark.long
def test_gathered_causal_attention_is_balanced_by_name_and_where_it_pays() -> None:
    def balanced(plan: Plan) -> int:
        return sum(n.operator.startswith("balanced_attention") for n in plan.program.nodes)

    long = "gpt:layers=1,hidden=64,heads=2,batch=1,sequence={},vocabulary=20,dtype=float32"
    built = sw.compile(
        load(long.format(64)), 4, cluster="h100-pod:figures=datasheet", plan="context=4"
    )
    assert balanced(built.plan) == 2
    assert balanced(split(long.format(64), 4, 1)) == 0
    assert balanced(split(long.format(16384), 4, 1)) == 2
    check(built.plan)


@pytest.mark.parametrize(
    ("model", "plan", "message"),
    [
        (
            "mlp:batch=8",
            "context=2",
            "`context=2` of the plan divides nothing: the model has no atte",
        ),
        ("vit:layers=1,hidden=16,heads=4,batch=8,side=8,patch=4", "context=2", "divides nothing"),
        (
            "gpt:layers=1,sequence=3,batch=2,dtype=float32",
            "context=4",
            "the sequence of 3 positions cannot be spl",
        ),
    ],
)
def test_context_ranks_without_work_are_refused(model: str, plan: str, message: str) -> None:
    devices = int(plan[-1])
    with pytest.raises(ShardwrightError, match=message):
        sw.compile(load(model), devices, cluster="h100-pod:figures=datasheet", plan=plan)


# What is left out is seen


def _with(graph: Graph, old: Node, new: Node) -> Graph:
    nodes = tuple(new if node is old else node for node in graph.nodes)
    return graph.with_nodes(nodes)


def _mutants(program: Graph) -> list[tuple[str, Graph]]:
    """Return programs in which a ring does other work."""
    first, second, after, _ = rings(program)
    alone = {k: v for k, v in first.attributes.items() if k in ("causal", "scale")}
    without = replace(first, operator=ATTENTION, results=first.results[:1], attributes=alone)
    keys = {second.operands[1]: first.operands[1]}
    sums = {second.results[1].name: first.results[1].name}
    results = {second.results[0].name: first.results[0].name}
    return [
        ("no ring", _with(program, first, without)),
        ("not causal", _with(program, first, _switched(first, causal=False))),
        ("other axes", _with(program, first, _switched(first, axes=()))),
        ("other scale", _with(program, first, _switched(first, scale=0.3))),
        ("other keys", _with(program, second, renamed(second, keys))),
        ("other sums", _with(program, after, renamed(after, sums))),
        ("other results", _with(program, after, renamed(after, results))),
        ("gradient not causal", _with(program, after, _switched(after, causal=False))),
    ]


def _switched(node: Node, **attributes: object) -> Node:
    return replace(node, attributes={**node.attributes, **attributes})


def test_other_rings_are_refused() -> None:
    definition = load(MODELS["llama"].format(8))
    plan = split(MODELS["llama"].format(8), 4, 4, precision="float32")
    rule = UpdateRule(plan.document.optimizer.kind, plan.document.optimizer.settings)
    assert prove_program(definition.graph, plan.program, rule).proven
    for what, mutant in _mutants(plan.program):
        found = prove_program(definition.graph, mutant, rule)
        assert found.proven is False, what
        assert not _verified(replace(plan, program=mutant)), what


def _verified(plan: Plan) -> bool:
    try:
        return sw.verify(plan).equal
    except ShardwrightError:
        return False
