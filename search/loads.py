"""The loads of a plan by the account of the search, without its program.

An operator is emitted alone, once for all equal ones, and a tensor is redistributed along the path
that the search prices. Each piece must cost what the problem says that it costs; where one does
not, as where passes over micro-batches accumulate it, the loads are not known.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from shardwright.cost_model.emission import Placed, emit
from shardwright.cost_model.roofline import local_bytes, placed_cost
from shardwright.cost_model.streams import parameter_tensors
from shardwright.cost_model.weighted.intervals import Kind
from shardwright.cost_model.weighted.loads import Loads, Place
from shardwright.cost_model.weighted.noted import NotedPrices
from shardwright.cost_model.weighted_profile import WeightedPlanner, WeightedProfile
from shardwright.dataflow.cotangents import cotangent_flow
from shardwright.ir.decisions import SharedLayout
from shardwright.ir.graph import Node
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.types import TensorType
from shardwright.operators.info import info_of
from shardwright.search.space.space import (
    Choice,
    Edge,
    RecomputedStrategy,
    SearchSpace,
    Storage,
)
from shardwright.solver.evaluate import cost_of
from shardwright.solver.problem import Identity, Pair

_ROUNDING = 1e-9
_RECOMPUTED = (1, 2)  # `RecomputedStrategy.when` of what is computed again for the gradient
Seconds = Mapping[Place, float]


def plan_loads(
    space: SearchSpace, assignment: Sequence[int], profile: WeightedProfile
) -> Loads | None:
    """Return the loads of a plan; None where they are not known without its program.

    Parameters
    ----------
    space : SearchSpace
        A problem by weights; its options are no orbits of several elements.
    assignment : sequence of int
        The plan.
    profile : WeightedProfile
        The prices of the problem.
    """
    rule, planner = profile.update_rule, profile.planner
    if (rule is not None and rule.guarded) or not isinstance(planner, WeightedPlanner):
        return None
    return _Account(space, assignment, profile, planner).loads()


def least_cost_in(weighted: SearchSpace, space: SearchSpace, assignment: Sequence[int]) -> float:
    """Return the weighted loads of an assignment, from below; 0 where they are not known.

    What is computed or redistributed again costs nothing less than once.
    """
    if len(space.choices) != len(weighted.choices):
        return 0.0
    chosen = []
    for choice, other, position in zip(space.choices, weighted.choices, assignment, strict=True):
        option = choice.options[position]
        if isinstance(option, RecomputedStrategy):
            option = Strategy(option.assignment)
        if position >= len(other.options) or other.options[position] != option:
            if option not in other.options:
                return 0.0
            position = other.options.index(option)
        chosen.append(position)
    return cost_of(weighted.problem, chosen) + weighted.constant


@dataclass
class _Account:
    """The pieces of a plan, each noted once.

    Parameters
    ----------
    space, assignment, profile, planner
        The plan, and the prices.
    """

    space: SearchSpace
    assignment: Sequence[int]
    profile: WeightedProfile
    planner: WeightedPlanner
    known: dict[object, Seconds | None] = field(default_factory=dict)

    def loads(self) -> Loads | None:
        """Return the loads; None where a piece does not cost what the problem says."""
        counts: dict[object, int] = {}
        for key in self._pieces():
            if self.known[key] is None:
                return None
            counts[key] = counts.get(key, 0) + 1
        seconds = dict(self._noted(Kind(False, "after"), self.space.constant))
        for key, count in counts.items():
            _add(seconds, self.known[key] or {}, count)
        resources = 1 + len(self.profile.cluster.links)
        return Loads(seconds, resources, len(self.profile.weights.intervals))

    def _pieces(self) -> Iterable[object]:
        """Yield the key of every piece, once it is noted."""
        variables = self.space.problem.variables
        for choice, variable, chosen in zip(
            self.space.choices, variables, self.assignment, strict=True
        ):
            key: object = Identity(choice.options), Identity(variable.cost), chosen
            if key not in self.known:
                self.known[key] = self._choice(choice, chosen, float(variable.cost[chosen]))
            yield key
        for _, pair, edge in self.space.priced:
            ends = self.assignment[pair.first], self.assignment[pair.second]
            key = Identity(pair.table), *ends
            if key not in self.known:
                self.known[key] = self._edge(pair, edge, *ends)
            yield key

    # Choices

    def _choice(self, choice: Choice, chosen: int, cost: float) -> Seconds | None:
        option = choice.options[chosen]
        if isinstance(option, Strategy):
            return self._operator(self._nodes[choice.name], option, cost)
        if isinstance(option, Storage):
            return self._parameter(choice.name, option, cost)
        if isinstance(option, SharedLayout):  # gradients are added up
            return self._noted(Kind(False, "backward"), cost)
        return None if cost else {}

    @cached_property
    def _nodes(self) -> dict[str, Node]:
        return {node.name: node for node in self.space.graph.nodes}

    def _operator(self, node: Node, option: Strategy, cost: float) -> Seconds | None:
        graph, mesh = self.space.graph, self.profile.mesh
        wanted = cotangent_flow(graph).operands[node.name]
        strategy = Strategy(option.assignment)
        emission = emit(info_of(graph, node), strategy, wanted, mesh)
        forward = NotedPrices(self.planner.moves)
        backward = NotedPrices(self.planner.of_gradients.moves, forward.seconds)

        def price(placed: Placed, prices: NotedPrices) -> float:
            return placed_cost(placed.info, placed.operands, placed.results, mesh, prices)

        priced = sum(price(placed, forward) for placed in emission.forward)
        priced += sum(price(placed, backward) for placed in emission.backward)
        if isinstance(option, RecomputedStrategy) and option.when in _RECOMPUTED:
            for placed in emission.forward:
                if placed.exchanged is None:  # else the tensor is priced with it
                    priced += price(placed, self._again(node, placed, forward.seconds))
        return _if_equal(forward.seconds, priced, cost)

    def _again(self, node: Node, emitted: Placed, seconds: dict[Place, float]) -> NotedPrices:
        """Return the prices of the second computation: what reads parameters alone may be early."""
        early = bool(node.operands) and self._of_parameters.issuperset(node.operands)
        early = early and not emitted.info.is_collective
        planner = self.planner.of_parameters.second if early else self.planner.of_gradients
        return NotedPrices(planner.moves, seconds)

    @cached_property
    def _of_parameters(self) -> set[str]:
        graph = self.space.graph
        return parameter_tensors(graph.nodes, (parameter.name for parameter in graph.parameters))

    def _parameter(self, name: str, option: Storage, cost: float) -> Seconds | None:
        """Return the cast of a parameter before its readers; the rest of the cost is its update."""
        cast, before = self.space.casts.get(name), 0.0
        if cast is not None:
            tensor = self.space.graph.values[name].type
            dtype = cast.results[0].type.dtype
            prices = self.profile.in_step(1, of_parameters=True)
            before = prices.cast(tensor, dtype, option.layout)
        if before > cost * (1 + _ROUNDING):
            return None
        seconds = dict(self._noted(Kind(False, "after"), max(cost - before, 0.0)))
        _add(seconds, self._noted(Kind(False, "forward"), before), 1)
        return seconds

    def _noted(self, kind: Kind, cost: float) -> Seconds:
        """Return the seconds of what computes, by its weighted cost."""
        prices = NotedPrices(self.planner.moves)
        prices.note(set(), kind, cost / self.profile.weights.of(set(), kind))
        return prices.seconds

    # Tensors

    def _edge(self, pair: Pair, edge: Edge, source: int, target: int) -> Seconds | None:
        here, there = edge.sources[source], edge.targets[target]
        first, second, back = edge.times(self.space.choices[pair.first].options[source])
        if edge.again is not None and edge.again[source, target]:
            second += first
        prices = NotedPrices(self.planner.moves)
        cost = 0.0
        for times, planner in (
            (first, edge.planner(self.planner, first)),
            (second, edge.planner(self.planner, edge.passes).second),
        ):
            cost += self._moved(prices, planner, times, edge.tensor, here.layout, there.layout)
        if here.cotangent is not None and there.cotangent is not None:
            planner = edge.planner(self.planner, back).of_gradients
            ends = there.cotangent, here.cotangent
            cost += self._moved(prices, planner, back, edge.gradient or edge.tensor, *ends)
        return _if_equal(prices.seconds, cost, float(pair.table[source, target]))

    def _moved(
        self,
        prices: NotedPrices,
        planner: object,
        times: float,
        tensor: TensorType,
        source: Layout,
        target: Layout,
    ) -> float:
        """Note the moves of a redistribution, and return their cost."""
        assert isinstance(planner, WeightedPlanner)
        if not times:
            return 0.0
        own, here, cost = NotedPrices(planner.moves), source, 0.0
        for move in planner.plan(tensor, source, target):
            size = np.array([local_bytes(tensor, here, planner.mesh)])
            cost += float(own.move_costs(move.operator, move.axes, size)[0])
            if move.is_packed:
                cost += float(own.packing_costs(move.operator, move.axes, size)[0])
            here = move.target
        _add(prices.seconds, own.seconds, times)
        return times * cost


def _add(seconds: dict[Place, float], others: Seconds, times: float) -> None:
    """Add the seconds of something else, so many times."""
    for place, each in others.items():
        seconds[place] = seconds.get(place, 0.0) + times * each


def _if_equal(seconds: Seconds, priced: float, cost: float) -> Seconds | None:
    """Return the seconds of a piece if it costs what the problem says."""
    return seconds if abs(priced - cost) <= _ROUNDING * max(abs(cost), 1e-12) else None
