"""Which strategies can be part of an assignment that costs less than a given one."""

import math

from shardwright.solver.elimination import Elimination, OutOfTimeError
from shardwright.solver.network import build_network
from shardwright.solver.presolve import drop_forbidden
from shardwright.solver.problem import Array, Problem

_ROUNDING = 1e-12  # of sums over all variables and pairs, relatively


def options_below(
    problem: Problem, cost: float, time_limit: float = math.inf
) -> list[Array] | None:
    """Return for every variable the strategies with which some assignment costs less than `cost`.

    Memory is not looked at, so an assignment that costs less may not fit. None where the problem is
    too wide for exact elimination in the time.

    Parameters
    ----------
    problem : Problem
        The problem.
    cost : float
        What the assignments must cost less than.
    time_limit : float
        Seconds.
    """
    network = drop_forbidden(build_network(problem))
    elimination = Elimination(network.sizes, network.tables)
    if network.empty:
        return network.labels
    if not elimination.can_complete:
        return None
    elimination.patience = time_limit
    try:
        elimination.minimise(network.unary, list(network.tables.values()))
    except OutOfTimeError:
        return None
    highest = cost + _ROUNDING * abs(cost)
    pairs = zip(network.labels, elimination.marginals(), strict=True)
    return [labels[least < highest] for labels, least in pairs]
