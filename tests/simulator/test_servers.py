"""No push is lost or applied twice, whatever happens to calls, servers and workers."""

import pytest

from tests.extent import first
from tests.shardwright.server.runs import needs_grpc
from tests.simulator.planted import SERVERS, first_seed
from tests.simulator.servers import servers

EACH = 25  # seeds in a test
SEEDS = first(200, range(10_000))

pytestmark = needs_grpc


@pytest.mark.parametrize("begin", SEEDS[::EACH])
def test_no_seed_loses_or_doubles_a_push(begin: int) -> None:
    wrong = {seed: servers(seed).wrong for seed in range(begin, begin + EACH)}
    assert {seed: what for seed, what in wrong.items() if what} == {}


def test_a_seed_replays_exactly() -> None:
    assert [servers(seed).digest for seed in range(8)] == [
        servers(seed).digest for seed in range(8)
    ]


@pytest.mark.parametrize("planted", first(1, SERVERS), ids=lambda planted: planted.what)
def test_a_planted_bug_is_found(planted) -> None:
    assert first_seed(planted, servers, 1000) is not None
