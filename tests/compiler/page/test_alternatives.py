"""Prices of other strategies: those of assignments, against the best with that strategy."""

import pytest

import shardwright as sw
from shardwright.compiler.page import alternatives as page
from shardwright.search.heuristics.completion import complete
from shardwright.solver.evaluate import evaluate
from tests.extent import ANY_PLAN

GPT = "gpt:layers=2,hidden=32,heads=2,batch=8,sequence=8,vocabulary=64,dtype=float32"
CASES = {
    "mlp": ("mlp:batch=16", {"mesh": "2x2", **ANY_PLAN}),
    "gpt": (GPT, {"mesh": "2x2", **ANY_PLAN}),
    "data parallel": (GPT, {"mode": "data_parallel"}),
    "micro-batches": (GPT, {"mesh": "4", "micro_batches": 2, **ANY_PLAN}),
    "stages": (GPT, {"stages": 2, "micro_batches": 2, "effort": 0.02, **ANY_PLAN}),
}


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_a_price_is_that_of_the_cheapest_plan_with_the_strategy(case):
    model, options = CASES[case]
    found = sw.compile(model, 4, cluster="cpu", **options)
    compiled, document = found.compiled, found.plan.document
    names = [node.name for node in compiled.source.nodes][:: 1 if model != GPT else 3]
    others = page.alternatives(compiled, document, found.cluster, names)
    assert not others.missing
    space = page._space(compiled, document, found.cluster)
    in_time = compiled.mesh.in_time
    chosen = {n: s.without(in_time) for n, s in compiled.decisions.strategies.items()}
    base = evaluate(space.problem, complete(space, chosen)).cost
    prices, differences = 0, 0
    for name, listed in others.by_operator.items():
        for other in listed[:2]:
            changed = {**chosen, name: other.strategy}
            least = evaluate(space.problem, complete(space, changed)).cost - base
            assert other.seconds >= least - 1e-12
            differences += other.seconds > least + 1e-12
            prices += 1
        assert list(listed) == sorted(listed, key=lambda other: other.seconds)
    assert prices >= 10
    assert differences <= prices / 10


@pytest.mark.long
def test_where_nothing_is_decided_the_reason_is_told():
    found = sw.compile("mlp:batch=16", 1, cluster="cpu", mode="stand_alone")
    others = page.alternatives(found.compiled, found.plan.document, found.cluster, ["matmul_0"])
    assert others == page.Alternatives({}, "the mode decides no strategies")
    found = sw.compile("mlp:batch=32", 32, cluster="cpu", mesh="2x2x2x2x2", gap=0.5)
    others = page.alternatives(found.compiled, found.plan.document, found.cluster, ["matmul_0"])
    assert others.missing == "a mesh of more than 4 axes has too many strategies"
