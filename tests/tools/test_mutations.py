"""Damaged files end in a sentence: a few cases of `benchmarks/mutations.py`."""

import mutations
import pytest


@pytest.fixture(scope="module")
def endings():
    return mutations.run_cases(range(5000, 5020))


@pytest.mark.long
def test_no_traceback_and_no_hang(endings):
    assert [ending for ending in endings if ending.problem] == []


@pytest.mark.long
def test_the_damage_is_seen(endings):
    codes = {ending.code for ending in endings}
    assert {0, 2} <= codes
    assert sum(ending.code == 2 for ending in endings) > len(endings) / 3
    assert len({ending.case.file for ending in endings}) >= 5


def test_a_failure_would_be_told(tmp_path):
    case = mutations.Case(0, "none", ("no", "command"))
    assert mutations.run_case(case, tmp_path).problem == ""
    broken = mutations.Case(0, "none", (b"no text",))
    assert "no exit code of its own" in mutations.run_case(broken, tmp_path).problem
    assert "not over after" in mutations.run_case(case, tmp_path, seconds=0).problem
