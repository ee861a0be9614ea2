"""Garbage collection during a compilation: rare, and afterwards as the user had it."""

import gc
from collections.abc import Iterator

import pytest

import shardwright
from shardwright.ir.errors import ShardwrightError
from shardwright.zoo import load


@pytest.fixture(params=[(700, 10, 10), (0, 10, 10), (900_000, 10, 200), (9_000_000, 30, 200)])
def before(request: pytest.FixtureRequest) -> Iterator[tuple[int, int, int]]:
    """Set the user's thresholds, and restore those of the tests, which freeze what is there."""
    known = gc.get_threshold()
    gc.set_threshold(*request.param)
    gc.unfreeze()
    yield request.param
    gc.set_threshold(*known)
    gc.freeze()


def test_collections_are_rare_in_a_compilation_and_then_as_before(
    before: tuple[int, int, int],
) -> None:
    seen = set()

    def progress(*_: float) -> None:
        seen.add(gc.get_threshold())

    shardwright.compile(load("mlp"), 4, progress=progress)
    assert gc.get_threshold() == before
    assert not gc.get_freeze_count()
    assert seen == {tuple(map(max, before, (2_000_000, 20, 100))) if before[0] else before}


def test_collections_are_as_before_after_an_error(before: tuple[int, int, int]) -> None:
    with pytest.raises(ShardwrightError):
        shardwright.compile(load("mlp"), 4, memory_limit=1000, objective="serial")
    assert gc.get_threshold() == before
    assert not gc.get_freeze_count()
