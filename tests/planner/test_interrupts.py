"""An interrupt of the user ends a search; the best plan so far is whole, and says so."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest

import shardwright
from shardwright.planner.choice import best_first
from shardwright.planner.executors.chosen import workers_of
from shardwright.planner.executors.elsewhere import Elsewhere

MODEL = "mlp"
SEARCHED = {"mesh": "search", "micro_batches": "search", "stages": "search", "effort": 0.01}


@cache
def searched_to_the_end():
    return shardwright.compile(MODEL, 2, workers=1, **SEARCHED).plan.document


def interrupt(*_):
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(params=["inline", "processes", "bytes"])
def executor(request, monkeypatch):
    """Workers of each kind; return how many are asked for."""

    def elsewhere(executor, count, run):
        threads = ThreadPoolExecutor(2)
        return Elsewhere(threads, lambda: {"one", "two"}, lambda: None, run)

    by_name = {"inline": lambda *_: None, "processes": workers_of, "bytes": elsewhere}
    monkeypatch.setattr(best_first, "workers_of", by_name[request.param])
    return 2


@pytest.mark.long
def test_the_first_plan_is_whole_when_the_search_is_interrupted(executor):
    found = shardwright.compile(MODEL, 2, progress=interrupt, workers=executor, **SEARCHED)
    document = found.plan.document
    assert document.how.endswith("; interrupted")
    assert 0 <= document.lower_bound <= document.objective
    assert any(item.outcome == "left" for item in found.compiled.trace.tried)
    assert shardwright.prove(found.plan).proven
    whole = searched_to_the_end()
    assert whole.objective <= document.objective
    assert "interrupted" not in whole.how


def test_without_a_plan_an_interrupt_ends_the_command(executor, monkeypatch):
    parent, submit = os.getpid(), best_first.Tasks.submit

    def begun(tasks, task, **others):
        number = submit(tasks, task, **others)
        if os.getpid() == parent:
            interrupt()
        return number

    monkeypatch.setattr(best_first.Tasks, "submit", begun)
    with pytest.raises(KeyboardInterrupt):
        shardwright.compile(MODEL, 2, workers=executor, **SEARCHED)
