"""No push is lost or applied twice, whatever happens to calls, servers and workers."""

import os

import pytest

from tests.extent import first
from tests.shardwright.server.runs import needs_grpc
from tests.simulator.alone import digests_alone
from tests.simulator.planted import SERVERS, first_seed
from tests.simulator.servers import servers

EACH = 25  # seeds in a test
SEEDS = first(200, range(10_000))

pytestmark = needs_grpc


@pytest.mark.long
@pytest.mark.parametrize("begin", SEEDS[::EACH])
def test_no_seed_loses_or_doubles_a_push(begin: int) -> None:
    wrong = {seed: servers(seed).wrong for seed in range(begin, begin + EACH)}
    assert {seed: what for seed, what in wrong.items() if what} == {}


def test_a_seed_that_found_a_bug_finds_it_no_more() -> None:
    assert {seed: servers(seed).wrong for seed in (602,)} == {602: ()}


@pytest.mark.long
def test_a_seed_replays_exactly_alone_and_after_others() -> None:
    assert digests_alone("servers", 8) == [servers(seed).digest for seed in range(8)]


@pytest.mark.long
def test_a_seed_leaves_no_file_open() -> None:
    servers(0)
    before = len(os.listdir("/proc/self/fd"))
    for seed in range(30):
        servers(seed)
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize("planted", first(1, SERVERS), ids=lambda planted: planted.what)
def test_a_planted_bug_is_found(planted) -> None:
    assert first_seed(planted, servers, 1000) is not None
