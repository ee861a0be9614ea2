"""How much the longest tests do: the first few of their cases, and no longer searches than needed.

A test runs all of its cases where the environment says so.
"""

import os
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import pytest

ALL_CASES = "SHARDWRIGHT_ALL_CASES"  # of the environment; see benchmarks/all_cases.md
ANY_PLAN = {"gap": 0.3}
"""Options of a search that ends at its first plans: for tests of what a plan computes or holds."""

Case = TypeVar("Case")
Other = TypeVar("Other")


def first(count: int, cases: Sequence[Case]) -> Sequence[Case]:
    """Return the first cases; all of them where the environment variable is 1."""
    return cases if os.environ.get(ALL_CASES) == "1" else cases[:count]


def long_after(count: int, cases: Iterable[Any]) -> list[Any]:
    """Return cases, each a tuple of arguments or one value; all but the first few are `long`."""
    several = [case if isinstance(case, tuple) else (case,) for case in cases]
    rest = [pytest.param(*case, marks=pytest.mark.long) for case in several[count:]]
    return [pytest.param(*case) for case in several[:count]] + rest


def crossed(some: Iterable[Case], others: Iterable[Other]) -> list[tuple[Case, Other]]:
    """Return all pairs of cases; the first few have each of the others once, with some in turn."""
    rows, columns = list(some), list(others)
    return [
        (rows[(turn + i) % len(rows)], other)
        for turn in range(len(rows))
        for i, other in enumerate(columns)
    ]
