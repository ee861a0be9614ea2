"""Sharding propagation: from the operators that a person has split to all others, greedily.

MindSpore's search of the same name: breadth first from the configured operators; each operator that
is reached takes the strategy that costs least to connect to those already decided. It sees one edge
at a time, so it finds good plans where the configured operators leave little choice, and no
certificate.
"""

from collections import deque

import numpy as np
from numpy.typing import NDArray

from shardwright.solver.problem import Problem

Floats = NDArray[np.float64]


def propagate(problem: Problem, start: dict[int, int]) -> tuple[int, ...]:
    """Return an assignment grown from `start`.

    Parameters
    ----------
    problem : Problem
        The search space.
    start : dict of int to int
        Variables already decided, with their strategies.
    """
    neighbours: list[list[tuple[int, Floats]]] = [[] for _ in problem.variables]
    for pair in problem.pairs:
        neighbours[pair.first].append((pair.second, pair.table))
        neighbours[pair.second].append((pair.first, pair.table.T))
    chosen = dict(start)
    queue = deque(start)
    while len(chosen) < len(problem.variables):
        if not queue:  # a part that nothing configured reaches: its first operator begins anew
            first = next(v for v in range(len(problem.variables)) if v not in chosen)
            chosen[first] = int(np.argmin(problem.variables[first].cost))
            queue.append(first)
        for variable, _ in neighbours[queue.popleft()]:
            if variable not in chosen:
                chosen[variable] = _nearest(problem, neighbours[variable], variable, chosen)
                queue.append(variable)
    return tuple(chosen[v] for v in range(len(problem.variables)))


def _nearest(
    problem: Problem, neighbours: list[tuple[int, Floats]], variable: int, chosen: dict[int, int]
) -> int:
    """Return the strategy with the cheapest edges to what is decided; own cost breaks ties."""
    cost = problem.variables[variable].cost
    edges = np.zeros(len(cost))
    for other, table in neighbours:
        if other in chosen:
            edges = edges + table[:, chosen[other]]
    dead_end = np.zeros(len(cost))
    for other, table in neighbours:
        if other not in chosen:
            dead_end = dead_end + np.where(np.isinf(table).all(axis=1), np.inf, 0.0)
    return int(np.lexsort((cost, edges + dead_end))[0])
