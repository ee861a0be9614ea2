"""Ties: of assignments with equal cost, one that does not depend on the search."""

import numpy as np

from shardwright.solver.problem import FORBIDDEN, Array, Problem, Variable

TIE = 1e-13
"""Relative difference of the total cost below which two assignments have equal cost."""

_SWEEPS = 20


def settled(problem: Problem, assignment: tuple[int, ...]) -> tuple[int, ...]:
    """Return an assignment of equal cost with low indices.

    Each variable in turn takes its lowest strategy that costs no more and uses no more memory,
    until none changes.
    """
    neighbours: list[list[tuple[int, Array]]] = [[] for _ in problem.variables]
    for pair in problem.pairs:
        neighbours[pair.first].append((pair.second, pair.table))
        neighbours[pair.second].append((pair.first, pair.table.T))
    chosen, total = list(assignment), 0.0
    for variable, choice in zip(problem.variables, chosen, strict=True):
        total += abs(float(variable.cost[choice]))
    for _ in range(_SWEEPS):
        before = list(chosen)
        for i, variable in enumerate(problem.variables):
            if chosen[i]:
                chosen[i] = _lowest(variable, neighbours[i], chosen, chosen[i], TIE * total)
        if chosen == before:
            break
    return tuple(chosen)


def _lowest(
    variable: Variable,
    neighbours: list[tuple[int, Array]],
    chosen: list[int],
    current: int,
    tie: float,
) -> int:
    """Return the lowest strategy of a variable that is as good as its current strategy."""
    total = variable.cost[: current + 1].astype(np.float64)
    for other, table in neighbours:
        total = total + table[: current + 1, chosen[other]]
    if total[current] >= FORBIDDEN:
        return current
    good = total <= total[current] + tie
    for use in variable.memory:
        good &= use.usage[: current + 1] <= use.usage[current]
    return int(good.argmax())
