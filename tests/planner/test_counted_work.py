"""The same plan everywhere: no clock decides, nor how many processes search, nor what they know."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache

import pytest

import shardwright
from shardwright.ir.errors import ShardwrightWarning
from shardwright.planner import effort
from shardwright.planner.choice import best_first
from shardwright.planner.choice.questions import Answers
from shardwright.planner.executors.elsewhere import Elsewhere
from tests.extent import first, long_after

GPT = "gpt:layers=2,hidden=32,heads=4,batch=8,sequence=8,vocabulary=64"
WIDE = {"mesh": "search", "micro_batches": "search"}
PIPELINES = {**WIDE, "stages": "search"}
# Each with the seconds of effort 1: small ones are spent before the search is done.
RUNS = {
    "one mesh": ("mlp", 8, {}, 60.0),
    "short of memory": (GPT, 4, {"memory_limit": 2.5e5, "optimizer": "adam"}, 0.05),
    "meshes": ("mlp", 8, {"mesh": "search"}, 0.1),
    "pipelines": (GPT, 2, PIPELINES, 0.3),
    "a pipeline": (GPT, 4, {"stages": 2, "micro_batches": 2}, 0.05),
    "convolutions": ("lenet5", 4, WIDE, 0.3),
}


def plan(run: str, tmp_path, **options) -> bytes:
    """Return the bytes of `plan.json` of a run."""
    model, devices, own, _ = RUNS[run]
    found = shardwright.compile(
        model, devices, cluster="h100-pod:figures=datasheet", **own, **options
    )
    name = "-".join(map(str, options.values()))
    return (found.write(tmp_path / f"plan {name}") / "plan.json").read_bytes()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The plan of a run by one process, which is searched once for all tests."""

    @cache
    def found(run: str) -> bytes:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(effort, "DEFAULT_SECONDS", RUNS[run][-1])
            return plan(run, tmp_path_factory.mktemp("alone"), workers=1)

    return found


def hurry(monkeypatch):
    """Let every look at a clock be an hour after the one before, as on a very busy machine."""
    begin = time.time()
    seen = [begin]

    def later() -> float:
        seen[0] += 3600
        return seen[0]

    for clock in ("monotonic", "perf_counter", "process_time"):
        monkeypatch.setattr(time, clock, later)


@pytest.mark.long
@pytest.mark.parametrize("run", first(4, list(RUNS)))
def test_the_plan_has_the_same_bytes_by_another_clock_and_with_more_workers(
    run, alone, tmp_path, monkeypatch
):
    monkeypatch.setattr(effort, "DEFAULT_SECONDS", RUNS[run][-1])
    expected = alone(run)
    hurry(monkeypatch)
    assert plan(run, tmp_path, workers=3) == expected


def elsewhere(executor):
    """Return workers that get bytes, as those of other machines do."""
    return lambda _, count, run: Elsewhere(executor, lambda: {"one", "two"}, lambda: None, run)


@pytest.mark.parametrize("run", long_after(1, ["meshes", "pipelines"]))
def test_workers_that_get_bytes_find_the_same_plan(run, alone, tmp_path, monkeypatch):
    monkeypatch.setattr(effort, "DEFAULT_SECONDS", RUNS[run][-1])
    expected = alone(run)
    with ThreadPoolExecutor(2) as threads:
        monkeypatch.setattr(best_first, "workers_of", elsewhere(threads))
        assert plan(run, tmp_path, workers=3) == expected


@pytest.mark.long
def test_a_process_that_dies_changes_no_plan(alone, tmp_path, monkeypatch):
    monkeypatch.setattr(effort, "DEFAULT_SECONDS", RUNS["pipelines"][-1])
    parent = os.getpid()
    answer, begun = Answers.__call__, tmp_path / "begun"

    def mortal(answers, task):
        if os.getpid() != parent and not begun.exists():
            begun.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return answer(answers, task)

    monkeypatch.setattr(Answers, "__call__", mortal)
    with pytest.warns(ShardwrightWarning, match=r"the process of the search of .* is done again"):
        assert plan("pipelines", tmp_path, workers=3) == alone("pipelines")


@pytest.mark.long
def test_a_worker_that_answers_nonsense_changes_no_plan(alone, tmp_path, monkeypatch):
    monkeypatch.setattr(effort, "DEFAULT_SECONDS", RUNS["pipelines"][-1])
    parent = os.getpid()
    answer = Answers.__call__

    def careless(answers, task):
        found = answer(answers, task)
        if os.getpid() == parent:
            return found
        return {"price": replace(found, value=()), "plan": "a plan"}.get(task.question, found)

    monkeypatch.setattr(Answers, "__call__", careless)
    with pytest.warns(ShardwrightWarning, match="answered something else; it is done again"):
        assert plan("pipelines", tmp_path, workers=3) == alone("pipelines")


@pytest.mark.long
def test_less_effort_spends_less():
    seconds = []
    for some in (0.005, 0.02):
        found = shardwright.compile(
            "mlp", 2, cluster="h100-pod:figures=datasheet", effort=some, workers=1, **PIPELINES
        )
        seconds.append(found.compiled.result.seconds)
    assert seconds[0] < seconds[1]


@pytest.mark.long
def test_a_plan_that_the_clock_stopped_says_so():
    found = shardwright.compile(
        GPT, 4, cluster="h100-pod:figures=datasheet", time_limit=1e-3, **PIPELINES
    )
    assert found.plan.document.how.endswith(
        "the budget ended the search; the time limit of 0.001 s stopped it: for the same plan in "
        "each run, use less effort instead"
    )
