"""Problems of blocks whose operators keep the strategies of the best plan without a memory limit.

Where memory binds, the exact search decides about strategies, storage and what is saved for
backward together, which takes seconds on a mesh of three axes. Most plans that fit differ from the
best one without a limit in what is recomputed, regathered and split in storage. So operators keep
their strategies here, and the rest is searched: a small problem. Its plans prove nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from shardwright.cost_model.redistribution.planner import RedistributionPlanner
from shardwright.ir.layout import Strategy
from shardwright.search.space.space import Option, SearchSpace
from shardwright.solver.problem import Identity, Problem, Variable


def narrowed(
    space: SearchSpace, planner: RedistributionPlanner, strategies: Mapping[str, Strategy]
) -> SearchSpace:
    """Return a space whose operators have one strategy each, recomputed or not.

    Parameters
    ----------
    space : SearchSpace
        The space.
    planner : RedistributionPlanner
        Knows which axes are interchangeable, where options are orbits.
    strategies : mapping of str to Strategy
        The strategies; one that is not among the options of its operator restricts nothing.
    """
    known: dict[tuple[int, Strategy], np.ndarray | None] = {}
    variables: list[Variable] = []
    for choice, variable in zip(space.choices, space.problem.variables, strict=True):
        if choice.kind == "operator" and choice.name in strategies:
            strategy = strategies[choice.name]
            key = Identity(choice.options), strategy
            if key not in known:
                known[key] = _cost(variable, _of_strategy(choice.options, strategy, planner))
            cost = known[key]
            variable = variable if cost is None else replace(variable, cost=cost)
        variables.append(variable)
    return replace(space, problem=Problem(tuple(variables), space.problem.pairs))


def _cost(variable: Variable, allowed: Sequence[bool]) -> np.ndarray | None:
    return np.where(allowed, variable.cost, inf) if any(allowed) else None


def _of_strategy(
    options: Sequence[Option], strategy: Strategy, planner: RedistributionPlanner
) -> list[bool]:
    """Return which options compute by a strategy, or by one under a permutation of axes."""
    images = [
        strategy.renamed(names, planner.mesh).assignment for names in planner.axis_permutations
    ]
    plain = [option for option in options if isinstance(option, Strategy)]
    found = next((one for one in images if any(o.assignment == one for o in plain)), None)
    return [isinstance(o, Strategy) and o.assignment == found for o in options]
