"""Nothing outlives a launcher, and what it says of its ranks is so."""

import pytest

from tests.extent import first
from tests.simulator.alone import digests_alone
from tests.simulator.launching import launching
from tests.simulator.planted import LAUNCHING, first_seed

EACH = 50  # seeds in a test
SEEDS = first(200, range(10_000))


@pytest.mark.long
@pytest.mark.parametrize("begin", SEEDS[::EACH])
def test_no_seed_finds_what_outlives_the_launcher_or_a_wrong_sentence(begin: int) -> None:
    wrong = {seed: launching(seed).wrong for seed in range(begin, begin + EACH)}
    assert {seed: what for seed, what in wrong.items() if what} == {}


@pytest.mark.long
def test_a_seed_replays_exactly_alone_and_after_others() -> None:
    assert digests_alone("launching", 10) == [launching(seed).digest for seed in range(10)]


@pytest.mark.parametrize("planted", first(2, LAUNCHING), ids=lambda planted: planted.what)
def test_a_planted_bug_is_found(planted) -> None:
    assert first_seed(planted, launching, 1000) is not None
