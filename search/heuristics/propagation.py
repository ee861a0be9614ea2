"""Sharding propagation: a greedy search, breadth first from the operators pinned by the user.

MindSpore's search of the same name. Each operator that is reached takes the strategy whose edges to
the decided operators cost least. The method sees the edges of one operator at a time, so it finds
good plans where the pins leave little choice, and proves no bound.
"""

from collections import deque
from collections.abc import Sequence
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from shardwright.ir.mesh import Mesh
from shardwright.search.heuristics.batch import follow_batch
from shardwright.search.method import Heuristic
from shardwright.search.space.space import Choice, SearchSpace
from shardwright.solver.problem import Problem

Floats = NDArray[np.float64]


class ShardingPropagation(Heuristic):
    """Propagate from the pinned operators, or from a split batch where nothing is pinned."""

    name = "sharding_propagation"

    def assignment(self, space: SearchSpace) -> tuple[int, ...]:
        """Grow an assignment from the pinned operators."""
        start = {
            i: 0
            for i, choice in enumerate(space.choices)
            if choice.kind == "operator" and choice.name in space.pinned
        }
        costs = [self.ties(choice, space.mesh) for choice in space.choices]
        return propagate(space.problem, start or self._batch(space), costs)

    def ties(self, choice: Choice, mesh: Mesh) -> Floats | None:
        """Return what counts before the own costs of options whose edges cost the same."""
        return None

    @staticmethod
    def _batch(space: SearchSpace) -> dict[int, int]:
        """Return the first operator with its batch split over all axes."""
        first = next(i for i, choice in enumerate(space.choices) if choice.kind == "operator")
        strategies = follow_batch(space.graph, space.mesh, space.mesh.names)
        choice = space.choices[first]
        return {first: choice.options.index(strategies[choice.name])}


def propagate(
    problem: Problem, start: dict[int, int], ties: Sequence[Floats | None] = ()
) -> tuple[int, ...]:
    """Return an assignment grown from `start`.

    Parameters
    ----------
    problem : Problem
        The search space.
    start : dict of int to int
        Variables already decided, with their strategies.
    ties : sequence of array, optional
        For each variable what counts before its own costs, where edges cost the same.
    """
    own = [
        [variable.cost] if tie is None else [variable.cost, tie]
        for variable, tie in zip_longest(problem.variables, ties)
    ]
    neighbours: list[list[tuple[int, Floats]]] = [[] for _ in problem.variables]
    for pair in problem.pairs:
        neighbours[pair.first].append((pair.second, pair.table))
        neighbours[pair.second].append((pair.first, pair.table.T))
    chosen = dict(start)
    queue = deque(start)
    while len(chosen) < len(problem.variables):
        if not queue:  # a component without a decided operator: start at its first
            first = next(v for v in range(len(problem.variables)) if v not in chosen)
            chosen[first] = int(np.argmin(problem.variables[first].cost))
            queue.append(first)
        for variable, _ in neighbours[queue.popleft()]:
            if variable not in chosen:
                chosen[variable] = _nearest(own[variable], neighbours[variable], chosen)
                queue.append(variable)
    return tuple(chosen[v] for v in range(len(problem.variables)))


def _nearest(
    costs: list[Floats], neighbours: list[tuple[int, Floats]], chosen: dict[int, int]
) -> int:
    """Return the strategy with the cheapest edges to decided variables; own costs break ties."""
    edges = np.zeros(len(costs[0]))
    for other, table in neighbours:
        if other in chosen:
            edges = edges + table[:, chosen[other]]
    dead_end = np.zeros(len(costs[0]))
    for other, table in neighbours:
        if other not in chosen:
            dead_end = dead_end + np.where(np.isinf(table).all(axis=1), np.inf, 0.0)
    return int(np.lexsort((*costs, edges + dead_end))[0])
