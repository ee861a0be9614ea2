"""Ties: of assignments with equal cost, one that does not depend on the search."""

import numpy as np

from shardwright.solver.problem import FORBIDDEN, Array, Problem, Variable

TIE = 1e-13
"""Relative difference of the total cost below which two assignments have equal cost."""


def settled(problem: Problem, assignment: tuple[int, ...]) -> tuple[int, ...]:
    """Return an assignment of equal cost with low indices.

    Each variable in turn takes its lowest strategy that costs no more and uses no more memory,
    until none changes.
    """
    due = [choice > 0 for choice in assignment]  # others cannot take a lower strategy
    neighbours: list[list[tuple[int, Array]]] = [[] for _ in problem.variables]
    for pair in problem.pairs:
        if due[pair.first]:
            neighbours[pair.first].append((pair.second, pair.table))
        if due[pair.second]:
            neighbours[pair.second].append((pair.first, pair.table.T))
    chosen, total = list(assignment), 0.0
    for variable, choice in zip(problem.variables, chosen, strict=True):
        total += abs(float(variable.cost[choice]))
    while any(due):  # indices only fall
        for i, variable in enumerate(problem.variables):
            if not due[i]:
                continue
            due[i], current = False, chosen[i]
            chosen[i] = _lowest(variable, neighbours[i], chosen, current, TIE * total)
            if chosen[i] != current:  # it may take a lower one still, and so may its neighbours
                for other in (i, *(other for other, _ in neighbours[i])):
                    due[other] = chosen[other] > 0
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
    if good.argmax() == current:  # whatever memory it uses
        return current
    for use in variable.memory:
        good &= use.usage[: current + 1] <= use.usage[current]
    return int(good.argmax())
