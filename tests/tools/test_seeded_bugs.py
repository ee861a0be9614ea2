"""Bugs put into the compiler are found by `verify`, or refused before there is a plan."""

import json
import subprocess
import sys
from pathlib import Path

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


def test_seeded_bugs_are_found():
    command = [sys.executable, str(ROOT / "benchmarks" / "seeded_bugs.py"), "--quick"]
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    judges = json.loads(done.stdout)
    assert len(judges) == 36
    assert {n: j for n, j in judges.items() if "numbers" not in j} == NOT_FOR_THE_REFEREE
    assert {n for n, j in judges.items() if j == ["numbers"]} == BY_NUMBERS_ALONE
    assert sum("proof" in j for j in judges.values()) == 25
