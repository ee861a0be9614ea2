"""Which strategies can be part of an assignment that costs less than a given one."""

from shardwright.solver.elimination import Elimination
from shardwright.solver.network import build_network, drop_forbidden
from shardwright.solver.problem import Array, Problem

_ROUNDING = 1e-12  # of sums over all variables and pairs, relatively


def options_below(problem: Problem, cost: float) -> list[Array]:
    """Return for every variable the strategies with which some assignment costs less than `cost`.

    Memory is not looked at, so an assignment that costs less may not fit. Where the problem is too
    wide for exact elimination, all strategies are returned.

    Parameters
    ----------
    problem : Problem
        The problem.
    cost : float
        What the assignments must cost less than.
    """
    network = drop_forbidden(build_network(problem))
    elimination = Elimination(network.sizes, network.tables)
    if network.empty or not elimination.can_complete:
        return network.labels
    elimination.minimise(network.unary, list(network.tables.values()))
    highest = cost + _ROUNDING * abs(cost)
    pairs = zip(network.labels, elimination.marginals(), strict=True)
    return [labels[least < highest] for labels, least in pairs]
