"""At most one start of a run writes checkpoints, whatever dies, stands still or goes on later."""

import pytest

from tests.extent import first
from tests.simulator.alone import digests_alone
from tests.simulator.ownership import ownership
from tests.simulator.planted import OWNERSHIP, first_seed

EACH = 50  # seeds in a test
SEEDS = first(200, range(10_000))


@pytest.mark.long
@pytest.mark.parametrize("begin", SEEDS[::EACH])
def test_no_seed_finds_two_owners(begin: int) -> None:
    wrong = {seed: ownership(seed).wrong for seed in range(begin, begin + EACH)}
    assert {seed: what for seed, what in wrong.items() if what} == {}


@pytest.mark.long
def test_a_seed_replays_exactly_alone_and_after_others() -> None:
    assert digests_alone("ownership", 10) == [ownership(seed).digest for seed in range(10)]


@pytest.mark.long
@pytest.mark.parametrize("planted", first(2, OWNERSHIP), ids=lambda planted: planted.what)
def test_a_planted_bug_is_found(planted) -> None:
    assert first_seed(planted, ownership, 1000) is not None
