"""Bugs put into the compiler are found by `verify`, or refused before there is a plan."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from seeded_bugs_table import BUGS

from tests.extent import first

ROOT = Path(__file__).parents[2]
# Right programs that need more than they might, or that no plan is made of.
NOT_FOR_THE_REFEREE = {
    "mirror_shared_dropped": ["compiler"],
    "updates_dead": ["compiler"],
    "storage_axes": ["compiler"],
    "storage_costs": ["compiler"],
    "storage_kept": [],  # only the memory that the search counts changes; its own tests find that
}
BY_NUMBERS_ALONE = {
    "manual_mirror_dropped",
    "manual_mean",
    "manual_own_parts",
    "slice_order",
    "first_slice",
    "local_numbers",
}


@pytest.mark.long
def test_seeded_bugs_are_found():
    bugs = first(len(BUGS) // 3, [name for turn in range(3) for name in [*BUGS][turn::3]])
    command = [sys.executable, str(ROOT / "benchmarks" / "seeded_bugs.py"), "--quick"]
    command += ["--bugs", *bugs]
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    judges = json.loads(done.stdout)
    assert list(judges) == bugs
    for name, found in judges.items():
        if name in NOT_FOR_THE_REFEREE:
            assert found == NOT_FOR_THE_REFEREE[name], name
        else:
            assert "numbers" in found, name
            assert ("proof" in found) == (name not in BY_NUMBERS_ALONE), name


def test_most_bugs_are_found_by_proof():
    assert len(BUGS) == 36
    assert BY_NUMBERS_ALONE | NOT_FOR_THE_REFEREE.keys() <= BUGS.keys()
    assert len(BUGS) - len(BY_NUMBERS_ALONE) - len(NOT_FOR_THE_REFEREE) == 25
