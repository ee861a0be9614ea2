"""Presolve of a network; at least one optimal assignment remains.

- `drop_forbidden`: strategies that are forbidden, or have no allowed partner in some table, go.
- `fold_decided`: a variable with a single strategy is folded into its neighbours.
- `drop_dominated`: strategy `a` goes if some `b` never uses more memory and never costs more,
  whatever the neighbours choose:

      c(b) - c(a) + sum over pairs of max_y (T(b, y) - T(a, y)) <= 0

  Of equal strategies the lowest index stays.

The anytime solver has a presolve of its own (`anytime.presolve`): it treats all pairs at once in
flat arrays of integers, where this one works once for each interned table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from shardwright.ir.optional import compiled_at_first_call
from shardwright.solver.least_sums import COMPILED
from shardwright.solver.network import Interner, Network, add, build_network, restrict
from shardwright.solver.problem import Array, Identity, Problem, distinct
from shardwright.solver.work import SECONDS_OF, Budget

DOMINANCE_WORK = 10**8
"""A table whose dominance test needs more subtractions than this is not tested."""

LARGE_DIFFERENCES = 2**22
"""Subtractions of a dominance test that are compiled where numba is installed: 10 ms of numpy.

At half and at twice, a few milliseconds of numpy more or less."""


def allowed_network(problem: Problem) -> Network:
    """Return the network of a problem without what is forbidden, and what has one strategy.

    Problems that are made of one differ in costs, limit and copies: what was found out about the
    arrays of the first is known for the others, most of all about its tables.
    """
    first = problem.shared.get("arrays")
    arrays = first.copy() if isinstance(first, Interner) else Interner()
    network = fold_decided(drop_forbidden(build_network(problem, arrays)))
    if first is None:
        problem.shared["arrays"] = arrays.copy()
    return network


def drop_forbidden(network: Network) -> Network:
    """Drop strategies that cost ``inf`` or have only forbidden partners in some table."""
    while not network.empty:
        keep = _allowed_strategies(network)
        if not keep:
            break
        network = restrict(network, keep)
    return network


def _allowed_strategies(network: Network) -> dict[int, Array]:
    """Return masks of the allowed strategies, for the variables that have forbidden ones."""
    arrays = network.arrays
    keep: dict[int, Array] = {}
    for index, unary in enumerate(network.unary):
        if not arrays.is_finite(unary):
            keep[index] = np.isfinite(unary)
    forbidding = _forbidding(
        network.tables.values(),
        # Most tables forbid nothing, and to look at the largest entry takes little time.
        lambda table: (
            arrays.is_finite(table) or all(_allowed(arrays, table, axis).all() for axis in (0, 1))
        ),
    )
    for ends, table in network.tables.items():
        for axis, index in enumerate(ends) if id(table) in forbidding else ():
            allowed = _allowed(arrays, table, axis)
            keep[index] = keep[index] & allowed if index in keep else allowed
    return keep


def _forbidding(arrays: Iterable[Array], is_free: Callable[[Array], bool]) -> set[Identity]:
    """Return the identities of the arrays that forbid something; each is tested once."""
    return {Identity(array) for array in distinct(arrays) if not is_free(array)}


def _allowed(arrays: Interner, table: Array, axis: int) -> Array:
    def compute() -> Array:
        return np.asarray(np.isfinite(table).any(axis=1 - axis))

    return arrays.derive("allowed", (table, axis), compute)


def fold_decided(network: Network) -> Network:
    """Move the tables of every variable with a single strategy into its neighbours' costs."""
    if network.empty:
        return network
    unary, tables = list(network.unary), {}
    for (first, second), table in network.tables.items():
        if table.shape[0] > 1 and table.shape[1] > 1:
            tables[first, second] = table
        elif table.shape[0] == 1:
            unary[second] = add(network.arrays, unary[second], _vector(network.arrays, table))
        else:
            unary[first] = add(network.arrays, unary[first], _vector(network.arrays, table))
    return replace(network, unary=unary, tables=tables)


def _vector(arrays: Interner, table: Array) -> Array:
    """Return a table with a single row or column as a vector."""
    return arrays.derive("ravel", (table,), lambda: table.ravel())


def drop_dominated(network: Network, respect_memory: bool, budget: Budget | None = None) -> Network:
    """Drop strategies that another strategy of the same variable dominates, to a fixed point.

    Parameters
    ----------
    network : Network
    respect_memory : bool
        Whether a dominating strategy must not use more memory either.
    budget : Budget, optional
        Pays for the comparisons.
    """
    budget = budget or Budget()
    while True:  # every round but the last drops a strategy
        network = fold_decided(drop_forbidden(network))
        if network.empty:
            break
        keep = _undominated(network, respect_memory, budget)
        if not keep:
            break
        network = restrict(network, keep)
    return fold_decided(drop_forbidden(network))


def _undominated(network: Network, respect_memory: bool, budget: Budget) -> dict[int, Array]:
    """Return masks of the undominated strategies, for the variables that have dominated ones.

    Removals in different variables are independent: a neighbour with fewer strategies only makes
    the worst difference smaller.
    """
    incident: list[list[tuple[Array, int]]] = [[] for _ in network.unary]
    for ends, table in network.tables.items():
        for axis, index in enumerate(ends):
            incident[index].append((table, axis))
    keep = {}
    for index, unary in enumerate(network.unary):
        if len(unary) == 1:
            continue
        usages = [use.usage for use in network.memory[index]] if respect_memory else []
        mask = _undominated_mask(network.arrays, unary, incident[index], usages, budget)
        if not mask.all():
            keep[index] = mask
    return keep


def _undominated_mask(
    arrays: Interner,
    unary: Array,
    incident: list[tuple[Array, int]],
    usages: list[Array],
    budget: Budget,
) -> Array:
    sides = [operand for side in incident for operand in side]

    def compute() -> Array:
        tested = all(_is_tested(table, axis) for table, axis in incident)
        if not tested or budget.is_spent:
            return np.ones(len(unary), dtype=bool)
        worst = unary[:, None] - unary[None, :]
        for table, axis in incident:
            worst = worst + _worst_difference(arrays, table, axis, budget)
        dominates = worst <= 0
        for usage in usages:
            dominates &= usage[:, None] <= usage[None, :]
        return _undominated_by_others(dominates)

    return arrays.derive("undominated", (unary, *sides, *usages), compute)


def _undominated_by_others(dominates: Array) -> Array:
    """Mark the strategies that no kept one dominates; of equal ones the lowest index."""
    kept = np.ones(len(dominates), dtype=bool)
    np.fill_diagonal(dominates, False)
    for strategy in np.flatnonzero(dominates.any(axis=0))[::-1]:
        if (dominates[:, strategy] & kept).any():
            kept[strategy] = False
    return kept


def _is_tested(table: Array, axis: int) -> bool:
    """Return whether the strategies of one side of a table are compared: it takes little work."""
    return table.size * table.shape[axis] <= DOMINANCE_WORK


def _worst_difference(arrays: Interner, table: Array, axis: int, budget: Budget) -> Array:
    """Return D with ``D[b, a] = max_y (T(b, y) - T(a, y))`` over one side of a table."""
    side = table if axis == 0 else table.T
    count = len(side)

    def compute() -> Array:
        budget.charge(SECONDS_OF.difference * count * side.size)
        worst = np.empty((count, count))
        if COMPILED and count * side.size >= LARGE_DIFFERENCES:
            _differences_by_loops(np.ascontiguousarray(side), worst)
            return worst
        with np.errstate(invalid="ignore"):
            for strategy in range(count):
                difference = side[strategy] - side
                # Forbidden for both: no difference.
                np.copyto(difference, -np.inf, where=np.isnan(difference))
                worst[strategy] = difference.max(axis=1)
        return worst

    return arrays.derive("worst difference", (table, axis), compute)


@compiled_at_first_call(need="the compiled presolve")
def _differences_by_loops(side: Any, worst: Any) -> None:
    """Set ``worst[b, a]`` to the maximum over y of ``side[b, y] - side[a, y]``, the same bits.

    What is forbidden for both makes no difference.
    """
    count, others = side.shape
    for b in range(count):
        for a in range(count):
            most = -np.inf
            for y in range(others):
                difference = side[b, y] - side[a, y]
                if difference > most:  # not where it is NaN
                    most = difference
            worst[b, a] = most
