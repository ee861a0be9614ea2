"""How many of their cases the longest tests run: the first few, or all of them."""

import os
from collections.abc import Sequence
from typing import TypeVar

ALL_CASES = "SHARDWRIGHT_ALL_CASES"  # of the environment; see benchmarks/all_cases.md
Case = TypeVar("Case")


def first(count: int, cases: Sequence[Case]) -> Sequence[Case]:
    """Return the first cases; all of them where the environment variable is 1."""
    return cases if os.environ.get(ALL_CASES) == "1" else cases[:count]
