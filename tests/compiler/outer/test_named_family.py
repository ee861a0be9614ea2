"""The family of named plans: its estimates beside what its plans take once they are built."""

import pytest

from shardwright.api import compile
from shardwright.compilation import Compilation
from shardwright.compiler.outer.judge import ProgramJudge
from shardwright.compiler.outer.named_family import NamedSeed
from shardwright.cost_model.cluster import cluster
from shardwright.planner.choice import configuration
from shardwright.solver.work import Budget
from tests.extent import first

CLUSTER = cluster("a100-pod")
WHERE = {"cluster": CLUSTER, "batch": 16, "optimizer": "adam", "precision": "bfloat16"}
SEARCHED = {"mesh": "search", "stages": "search", "micro_batches": "search"}
MODEL = "gpt3-175b:layers=8,vocabulary=51200"


def family(
    devices: int, monkeypatch: pytest.MonkeyPatch, model: str = MODEL, **options: object
) -> list[NamedSeed]:
    """Return the named plans that a search of everything without the effort for one tries."""
    found: list[NamedSeed] = []

    def noted(self: ProgramJudge, configurations: list, budget: Budget) -> list[NamedSeed]:
        found.extend(original(self, configurations, budget))
        raise KeyboardInterrupt

    original = ProgramJudge._named_seeds
    monkeypatch.setattr(ProgramJudge, "_named_seeds", noted)
    with pytest.raises(KeyboardInterrupt):
        compile(model, devices, workers=1, effort=1e-4, **{**WHERE, **SEARCHED, **options})
    monkeypatch.undo()
    return found


def built(seed: NamedSeed, devices: int, model: str = MODEL) -> Compilation:
    return compile(model, devices, plan=seed.plan, **WHERE)


def test_the_first_plans_fit_and_take_about_what_is_estimated(monkeypatch):
    devices = 16
    seeds = family(devices, monkeypatch)
    assert [seed.seconds for seed in seeds] == sorted(seed.seconds for seed in seeds)
    pipelines = [seed for seed in seeds if seed.plan.pipeline > 1]
    assert pipelines
    for seed in (seeds[0], pipelines[0]):
        step = built(seed, devices).plan.document.objective
        assert seed.seconds == pytest.approx(step, rel=0.1)
        assert seed.configuration.stages == seed.plan.pipeline


@pytest.mark.filterwarnings("ignore:.*has statistics of the batch")
def test_experts_are_divided_between_data_ranks_and_a_plan_is_no_slower_than_a_usual_one(
    monkeypatch,
):
    devices, model = 16, "mixtral-8x7b:layers=2"
    seeds = family(devices, monkeypatch, model)
    assert {seed.plan.expert for seed in seeds} - {1}
    first = seeds[0]
    assert first.configuration.micro_batches == 1
    step = built(first, devices, model).plan.document.objective
    assert first.seconds == pytest.approx(step, rel=0.1)
    usual = compile(model, devices, plan="data=16,expert=4,zero=1,recompute=full", **WHERE)
    assert step <= usual.plan.document.objective


@pytest.mark.parametrize("workers", first(1, [2, 1]))
@pytest.mark.parametrize("limit", [{"effort": 1e-3}, {"time_limit": 0.2}])
def test_where_a_named_plan_fits_no_limit_ends_the_search_without_a_plan(workers, limit):
    model, devices = "gpt3-175b:layers=2,vocabulary=512", 8
    searched = {"mesh": "search", "micro_batches": "search", **limit}
    found = compile(model, devices, workers=workers, **{**WHERE, "batch": 24}, **searched)
    plan = "data=8,micro_batch=3,zero=3"  # not the fastest
    usual = compile(model, devices, plan=plan, **{**WHERE, "batch": 24})
    assert found.plan.document.objective <= usual.plan.document.objective * (1 + 1e-9)
    assert "the budget ended the search" in found.plan.document.how


def test_in_one_stage_every_number_of_micro_batches_has_named_plans(monkeypatch):
    monkeypatch.setattr(configuration, "_SMALL", 0)
    where = {"batch": 24, "stages": 1, "memory_limit": 20 * 2**30}
    seeds = family(16, monkeypatch, "gpt3-175b:layers=4,vocabulary=512", **where)
    assert any(seed.configuration.micro_batches % 3 == 0 for seed in seeds)
