"""Other strategies of an operator, and how much longer the serial step is with each.

One operator changes its strategy, all others keep theirs; the layouts of parameters, inputs and
shared tensors next to it are chosen again. The seconds are those of the search's problem, without
a memory limit. Each is the price of a plan that exists, so the true price is at most that.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardwright.compiler.plans.compiled import Compiled
from shardwright.compiler.plans.document import PlanDocument
from shardwright.cost_model.pipelines.mixed import AnyCluster, of_one_kind
from shardwright.cost_model.profile import ProfileRequest
from shardwright.cost_model.redistribution.planner import MOST_AXES
from shardwright.cost_model.redistribution.seconds import fastest_paths
from shardwright.cost_model.time_profile import TimeProfile
from shardwright.ir.errors import ShardwrightError
from shardwright.ir.layout import Strategy
from shardwright.ir.units import MOST_NAMES
from shardwright.operators.models.loss_scale import loss_scale
from shardwright.planner.options import CompileOptions
from shardwright.planner.search_request import SearchRequest, update_rule
from shardwright.search.heuristics.completion import complete
from shardwright.search.space.space import SearchSpace
from shardwright.solver.methods import DEFAULT_SECONDS
from shardwright.solver.problem import FORBIDDEN
from shardwright.solver.work import Budget

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Alternative:
    """Another strategy of an operator.

    Parameters
    ----------
    strategy : Strategy
        The strategy.
    seconds : float
        How much longer the serial step is; negative where it is shorter.
    """

    strategy: Strategy
    seconds: float


@dataclass(frozen=True)
class Alternatives:
    """The other strategies of operators.

    Parameters
    ----------
    by_operator : mapping of str to tuple of Alternative
        The cheapest of each operator, best first.
    missing : str
        Why there are none, in words; empty where there are.
    """

    by_operator: Mapping[str, tuple[Alternative, ...]]
    missing: str = ""


def alternatives(
    compiled: Compiled, document: PlanDocument, cluster: AnyCluster, operators: Iterable[str]
) -> Alternatives:
    """Return the other strategies of some operators.

    Parameters
    ----------
    compiled : Compiled
        The compiled model.
    document : PlanDocument
        Its plan.
    cluster : Cluster or MixedCluster
        The devices.
    operators : iterable of str
        The operators, by name.
    """
    if compiled.decisions is None:
        return Alternatives({}, "the mode decides no strategies")
    if len(compiled.mesh.of_ranks.axes) > MOST_AXES:
        return Alternatives({}, f"a mesh of more than {MOST_AXES} axes has too many strategies")
    in_time = compiled.mesh.in_time
    strategies = {n: s.without(in_time) for n, s in compiled.decisions.strategies.items()}
    try:
        space = _space(compiled, document, cluster)
        prices = _Prices(space, complete(space, strategies))
    except ShardwrightError as error:
        return Alternatives({}, error.what)
    found = {name: prices.of(name, strategies[name]) for name in operators if name in strategies}
    return Alternatives(found)


def _space(compiled: Compiled, document: PlanDocument, cluster: AnyCluster) -> SearchSpace:
    """Return the problem of the model on the mesh of one pipeline stage."""
    options = CompileOptions(
        optimizer=document.optimizer.optimizer,
        loss_scale=loss_scale(document.loss_scale),
        micro_batches=document.micro_batches,
        search="sharding_propagation",  # whose options are strategies, not orbits of them
    )
    alike = of_one_kind(cluster, "one strategy has other prices on each of them")
    alone = alike.model_copy(update={"software": None})  # which searches have none of
    planner = fastest_paths(compiled.mesh.of_ranks, alone)
    rule = update_rule(options, compiled.source)
    prices = TimeProfile.create(ProfileRequest(planner, alone, rule))
    request = SearchRequest(
        compiled.source,
        alone,
        planner,
        options,
        prices=prices,
        budget=Budget(DEFAULT_SECONDS),
    )
    return request.space


@dataclass
class _Prices:
    """Prices around an assignment of a problem."""

    space: SearchSpace
    assignment: tuple[int, ...]

    @cached_property
    def _tables(self) -> list[list[tuple[int, Floats]]]:
        """For each variable its neighbours, with tables whose rows are its own options."""
        found: list[list[tuple[int, Floats]]] = [[] for _ in self.space.choices]
        for pair in self.space.problem.pairs:
            found[pair.first].append((pair.second, pair.table))
            found[pair.second].append((pair.first, pair.table.T))
        return found

    def of(self, operator: str, chosen: Strategy) -> tuple[Alternative, ...]:
        """Return the other strategies of an operator, best first."""
        position = self.space.position.get(("operator", operator))
        if position is None:  # a cast that follows its parameter
            return ()
        options, own = self.space.choices[position].options, self.assignment[position]
        if options[own] != chosen:
            return ()
        costs = self._costs(position)
        order = sorted((c - costs[own], i) for i, c in enumerate(costs.tolist()) if c < FORBIDDEN)
        return tuple(
            Alternative(option, float(more))
            for more, i in order
            if i != own and isinstance(option := options[i], Strategy)
        )[:MOST_NAMES]

    def _costs(self, position: int) -> Floats:
        """Return what each option of an operator costs, with what is next to it."""
        total = np.array(self.space.problem.variables[position].cost, np.float64)
        around: dict[int, Floats] = {}
        for other, table in self._tables[position]:
            around[other] = around[other] + table if other in around else np.array(table)
        free: set[int] = set()
        for other, table in around.items():
            fixed = self.space.choices[other].kind == "operator"
            if fixed or any(tied in free for tied, _ in self._tables[other]):
                total += table[:, self.assignment[other]]
            else:
                free.add(other)
                total += (table + self._alone(other, position)).min(axis=1)
        return total

    def _alone(self, other: int, without: int) -> Floats:
        """Return what each option of a variable costs, but for its pairs with one other."""
        total = np.array(self.space.problem.variables[other].cost, np.float64)
        for third, table in self._tables[other]:
            if third != without:
                total += table[:, self.assignment[third]]
        return total
