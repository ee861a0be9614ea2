"""Files are whole, whatever dies or fails while they are written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.extent import first
from tests.simulator.planted import STORAGE, first_seed
from tests.simulator.storage import storage

EACH = 50  # seeds in a test
SEEDS = first(200, range(10_000))
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("begin", SEEDS[::EACH])
def test_no_seed_finds_a_file_that_is_torn_lost_or_left(begin: int) -> None:
    wrong = {seed: storage(seed).wrong for seed in range(begin, begin + EACH)}
    assert {seed: what for seed, what in wrong.items() if what} == {}


def test_a_seed_replays_exactly_in_another_process() -> None:
    code = "from tests.simulator.storage import storage\n"
    code += "print(*(storage(seed).digest for seed in range(20)))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "7"}
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split() == [storage(seed).digest for seed in range(20)]
    assert len(set(found.stdout.split())) == 20


@pytest.mark.parametrize("planted", first(4, STORAGE), ids=lambda planted: planted.what)
def test_a_planted_bug_is_found(planted) -> None:
    assert first_seed(planted, storage, 1000) is not None
