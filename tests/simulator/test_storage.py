"""Files are whole, whatever dies or fails while they are written."""

import os

import pytest

from tests.extent import first
from tests.simulator.alone import digests_alone
from tests.simulator.planted import OWNERSHIP, SERVERS, STORAGE, first_seed
from tests.simulator.storage import storage

EACH = 50  # seeds in a test
SEEDS = first(200, range(10_000))


@pytest.mark.long
@pytest.mark.parametrize("begin", SEEDS[::EACH])
def test_no_seed_finds_a_file_that_is_torn_lost_or_left(begin: int) -> None:
    wrong = {seed: storage(seed).wrong for seed in range(begin, begin + EACH)}
    assert {seed: what for seed, what in wrong.items() if what} == {}


@pytest.mark.long
def test_a_seed_replays_exactly_alone_and_after_others() -> None:
    found = digests_alone("storage", 20)
    assert found == [storage(seed).digest for seed in range(20)]
    assert len(set(found)) == 20


def test_a_seed_leaves_no_file_open() -> None:
    storage(0)
    before = len(os.listdir("/proc/self/fd"))
    for seed in range(40):
        storage(seed)
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize("planted", first(4, STORAGE), ids=lambda planted: planted.what)
def test_a_planted_bug_is_found(planted) -> None:
    assert first_seed(planted, storage, 1000) is not None


@pytest.mark.parametrize("planted", [*STORAGE, *SERVERS, *OWNERSHIP], ids=lambda one: one.what)
def test_every_bug_can_be_planted(planted) -> None:
    """Those that fewer runs try, too, are changes of a line that the product has."""
    with planted.inside():
        pass
