"""A memory conflict: a time at which even the least memory of a few variables exceeds the limit."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.solver.problem import FORBIDDEN, Problem, memory_uses


@dataclass(frozen=True)
class Conflict:
    """Variables that cannot fit into the limit together at one time.

    Parameters
    ----------
    time : int
    variables : tuple of int
        Without any one of them the others would fit.
    least : float
        The memory that they need together at least.
    limit : float
    """

    time: int
    variables: tuple[int, ...]
    least: float
    limit: float


def memory_conflict(problem: Problem) -> Conflict | None:
    """Return variables whose least uses exceed the limit together, if there are any.

    Only strategies that are not forbidden count; tables are not looked at.

    Examples
    --------
    >>> import numpy as np
    >>> from shardwright.solver.problem import MemoryUse, Variable
    >>> use = MemoryUse(np.array([4, 3]), 0, 2)
    >>> pair = tuple(Variable(name, np.array([0, 1]), (use,)) for name in "ab")
    >>> memory_conflict(Problem(pair, (), 5))
    Conflict(time=0, variables=(0, 1), least=6, limit=5)
    """
    if problem.memory_limit is None:
        return None
    change: dict[int, float] = {}
    least = []
    for index, use in memory_uses(problem):
        allowed = use.usage[problem.variables[index].cost < FORBIDDEN]
        amount = allowed.min().item() if allowed.size else 0
        least.append((amount, index, use.start, use.end))
        change[use.start] = change.get(use.start, 0) + amount
        change[use.end] = change.get(use.end, 0) - amount
    level = 0.0
    for time in sorted(change):
        level += change[time]
        if level > problem.memory_limit:
            live = [(amount, index) for amount, index, start, end in least if start <= time < end]
            return _fewest(time, live, problem.memory_limit)
    return None


def _fewest(time: int, live: list[tuple[float, int]], limit: float) -> Conflict | None:
    """Return the conflict of the largest variables that together exceed the limit."""
    by_variable: dict[int, float] = {}
    for amount, index in live:
        by_variable[index] = by_variable.get(index, 0) + amount
    chosen: list[int] = []
    total: float = 0
    for index, amount in sorted(by_variable.items(), key=lambda item: (-item[1], item[0])):
        chosen.append(index)
        total += amount
        if total > limit:
            return Conflict(time, tuple(sorted(chosen)), total, limit)
    return None
