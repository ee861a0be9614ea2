"""Bounds where devices and links attain shares of their peaks, and a host launches operators."""

import importlib
from math import inf
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SMALL = (2, 3, 8, 9, 12)  # programs of few plans; more: benchmarks/overlap.py --attained


@pytest.mark.long
def test_no_bound_is_above_the_best_of_all_plans_on_random_rates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    overlap = importlib.import_module("overlap")
    found = list(overlap.cases(SMALL, attained=True))
    assert len(found) == len(SMALL)
    assert [case.seed for case in found if not case.holds] == []
    assert all(0 < case.bound < case.launched < inf for case in found)
