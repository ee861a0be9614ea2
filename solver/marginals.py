"""Marginals of the strategies: the least cost of an assignment that contains each of them."""

from shardwright.ir.rounding import OF_SUM
from shardwright.solver.elimination import Elimination, OutOfTimeError
from shardwright.solver.network import build_network
from shardwright.solver.presolve import drop_forbidden
from shardwright.solver.problem import Array, Problem
from shardwright.solver.work import Budget


def options_below(
    problem: Problem, cost: float, budget: Budget | None = None
) -> list[Array] | None:
    """Return for every variable the strategies whose marginal is less than `cost`.

    Memory is ignored, so the cheaper assignments need not fit. Returns None where the problem is
    too wide for exact elimination within the budget.

    Parameters
    ----------
    problem : Problem
    cost : float
    budget : Budget, optional
        What the elimination may spend.
    """
    network = drop_forbidden(build_network(problem))
    elimination = Elimination(network.sizes, network.tables)
    if network.empty:
        return network.labels
    if not elimination.can_complete:
        return None
    elimination.budget = budget or Budget()
    try:
        elimination.minimise(network.unary, list(network.tables.values()))
    except OutOfTimeError:
        return None
    highest = cost + OF_SUM * abs(cost)
    pairs = zip(network.labels, elimination.marginals(), strict=True)
    return [labels[least < highest] for labels, least in pairs]
