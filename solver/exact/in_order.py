"""The assignments of a small problem one by one, in the order of a bound of their cost.

At the best prices p >= 0 on the rows of memory, an assignment that fits costs at least

    cost(x) + p . (use(x) - capacity)

Elimination gives the least such sum of all completions of a partial assignment, so the partial one
of the least sum is continued first (best-first search; no detour but for memory). One whose use
exceeds a row is dropped.

References
----------
Hart, Nilsson, Raphael, "A formal basis for the heuristic determination of minimum cost paths",
1968. Kask, Dechter, "A general scheme for automatic generation of search heuristics from
specification dependencies", 2001.
"""

import heapq
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

import numpy as np

from shardwright.ir.rounding import OF_SUM
from shardwright.solver.elimination import Elimination, OutOfTimeError
from shardwright.solver.exact.dual import Dual, maximise_bound, spent
from shardwright.solver.exact.frontier import use_in_rows
from shardwright.solver.memory_rows import MemoryRows
from shardwright.solver.presolve import allowed_network
from shardwright.solver.problem import Array, Problem
from shardwright.solver.work import SECONDS_OF, Budget


class Ranked(NamedTuple):
    """An assignment that fits.

    Parameters
    ----------
    lower_bound : float
        Of its cost.
    assignment : tuple of int
        A strategy for each variable.
    """

    lower_bound: float
    assignment: tuple[int, ...]


class _Partial(NamedTuple):
    """A partial assignment; of those with one bound, the one that is decided furthest comes first.

    Parameters
    ----------
    bound : float
        The least priced cost of its completions, before what the prices pay for the capacity.
    undecided : int
        Number of variables that are left.
    number : int
        Tells it from others.
    use : array
        What it holds in each row, above the base.
    strategies : tuple of int
        Those of the variables that are decided, in the order of the decoding.
    """

    bound: float
    undecided: int
    number: int
    use: Array
    strategies: tuple[int, ...]


def in_order(problem: Problem, budget: Budget, most: int) -> Iterator[Ranked]:
    """Yield the assignments that fit, the least bound first.

    None of a problem that is too wide for exact elimination.

    Parameters
    ----------
    problem : Problem
        The problem, with its memory limit.
    budget : Budget
        What the search may spend.
    most : int
        Number of partial assignments after which it ends.
    """
    network = allowed_network(problem)
    if network.empty:
        return
    rows = MemoryRows(network, network.limit)
    elimination = Elimination(network.sizes, network.tables)
    if rows.hopeless or not elimination.can_complete:
        return
    elimination.budget = budget
    dual = Dual(network, rows, elimination)
    try:
        state = maximise_bound(dual, lambda piece: piece.constant, lambda: not budget.is_spent)
        prices = state.prices
        least, _ = dual.evaluate(prices)
    except OutOfTimeError:
        return
    paid = spent(prices, rows.capacity)
    for found, (bound, choice) in enumerate(_completed(dual, least), start=1):
        if choice is not None:
            yield Ranked(bound - paid - OF_SUM * abs(bound), network.lift(choice))
        budget.charge(SECONDS_OF.partial)
        if found >= most or budget.is_spent:
            return


def _completed(dual: Dual, least: float) -> Iterator[tuple[float, list[int] | None]]:
    """Yield every partial assignment by its bound, with the choice where nothing is undecided.

    Parameters
    ----------
    dual : Dual
        The network, whose messages are at the best prices.
    least : float
        The least priced cost.
    """
    rows, elimination, number = dual.rows, dual.elimination, count()
    use = use_in_rows(dual.network, rows, list(range(len(rows))))
    order = [group for (group,) in reversed(elimination.groups)]
    queue = [_Partial(least, len(order), next(number), np.zeros(len(rows)), ())]
    while queue:
        partial = heapq.heappop(queue)
        scopes = zip(order, partial.strategies, strict=False)
        decided = {group.scope[0]: strategy for group, strategy in scopes}
        if not partial.undecided:
            yield partial.bound, [decided[index] for index in range(len(order))]
            continue
        yield partial.bound, None
        group = order[len(partial.strategies)]
        index, *others = group.scope
        more = -elimination.array(group.message)[tuple(decided[other] for other in others)]
        for factor, _ in group.factors:
            at = (decided.get(one, slice(None)) for one in elimination.scopes[factor])
            more = more + elimination.array(factor)[tuple(at)]
        held = partial.use + use[index]
        for strategy in np.flatnonzero(np.isfinite(more) & (held <= rows.capacity).all(axis=1)):
            entry = _Partial(
                partial.bound + float(more[strategy]),
                partial.undecided - 1,
                next(number),
                held[strategy],
                (*partial.strategies, int(strategy)),
            )
            heapq.heappush(queue, entry)
