"""Plans of stages within a memory limit, near their plans without one.

Where memory binds, the exact search decides about strategies, storage and what is saved for
backward together, which takes seconds on a mesh of three axes. Most plans that fit differ from the
best one without a limit in what is recomputed, regathered and split in storage. So operators keep
their strategies here, and the rest is searched: a small problem. Its plans are candidates, and
prove nothing.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from shardwright.cost_model.redistribution.planner import RedistributionPlanner
from shardwright.ir.errors import NoPlanError
from shardwright.ir.layout import Layout, Strategy
from shardwright.planner.fronts.problem import StageProblems
from shardwright.planner.plan.stage_plans import StagePlan
from shardwright.search.space.space import Option, SearchSpace
from shardwright.solver.problem import Identity, Problem, Variable


@dataclass
class NarrowPlans:
    """The plans of stages near the best ones without a memory limit.

    Parameters
    ----------
    problems : StageProblems
        The stage problems.
    """

    problems: StageProblems
    _found: dict[Hashable, tuple[int, StagePlan | None]] = field(default_factory=dict)

    def plan(
        self,
        begin: int,
        end: int,
        in_flight: int,
        memory_limit: float | None,
        received: Mapping[str, Layout] | None = None,
    ) -> StagePlan | None:
        """Return a plan of a stage; None where none was found."""
        problems = self.problems
        free = problems.plan(begin, end, in_flight, inf, received)
        limit = problems.limits.limit_bytes if memory_limit is None else memory_limit
        if free is None or free.memory_bytes <= limit:
            return free
        key = *problems.key(begin, end, received or {}), in_flight, limit
        if key not in self._found:
            self._found[key] = begin, self._within(begin, end, in_flight, limit, received, free)
        first, found = self._found[key]
        return None if found is None else problems.moved(found, first, begin, end)

    def _within(
        self,
        begin: int,
        end: int,
        in_flight: int,
        limit: float,
        received: Mapping[str, Layout] | None,
        free: StagePlan,
    ) -> StagePlan | None:
        problems = self.problems
        request = problems.receiving(problems.request_of(begin, end, in_flight), received or {})
        space = request.recompute_space if request.recomputes else request.space
        narrow = narrowed(space, request.planner, free.decisions.strategies)
        try:
            return problems.rough_plan(request, narrow, limit)
        except NoPlanError:
            return None


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
