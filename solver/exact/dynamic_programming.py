"""The dynamic programming of MindSpore's auto-parallel search.

A reproduction, for comparison; `elimination` is the exact one. Edges point from the lower to the
higher variable. Six eliminations, always the first that applies (`dp_algo_costmodel.cc`,
`graph_costmodel.cc`):

    operator    u -> v -> w, v has no other edge       one edge u -> w, the best of v inside
    edge        two edges u => v                       their sum
    merge       no edge in, one out, v has others in   into v
    contract    one edge in, none out                  into its predecessor
    triangle    none in, two out to l -> r             into l, as if r could choose for it alone
    star        none in, several out                   into the first, as if the others could

The first four are exact. The last two are not: the eliminated variable adapts to one neighbour
only, so the actual cost can exceed the computed one, which then is a lower bound.

Memory is not part of the recursion: the strategies of the last variables are tried in order of
cost until an assignment fits. So it can miss all assignments that fit ("no strategy can be found
under current memory"; `status` is then ``unknown``), and one that fits can cost more than the
optimum. Where every combination has a forbidden pair that the last two rules did not look at, all
are missed, too. `solver.exact.search` has neither fault.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from shardwright.solver.evaluate import evaluate
from shardwright.solver.exact.dual import UNIT_ROUNDOFF
from shardwright.solver.memory_rows import MemoryRows
from shardwright.solver.network import Network, build_network
from shardwright.solver.problem import Array, Problem
from shardwright.solver.solution import OPTIMALITY_GAP, Solution, Status, relative_gap

TOO_LARGE = "too large"
"""In the statistics: the number of assignments that were tried and do not fit into memory."""

MOST_TRIED = 10_000
"""Combinations of the last strategies that are tried against the memory limit."""

Choice = dict[int, int]


@dataclass(eq=False)
class Edge:
    """A directed edge and its table, the source's strategies first."""

    source: int
    target: int
    table: Array


class EliminationGraph:
    """The graph during elimination, and the decisions to be made in reverse."""

    def __init__(self, network: Network) -> None:
        self.cost = dict(enumerate(network.unary))
        self.edges = [
            Edge(source, target, table) for (source, target), table in network.tables.items()
        ]
        self.exact = True
        self.counts = dict.fromkeys(
            ("operator", "edge", "merge", "contract", "triangle", "star"), 0
        )
        self._decisions: list[Callable[[Choice], None]] = []

    def reduce(self) -> None:
        """Eliminate until every component has one or two variables."""
        rules = {
            "operator": self._operator,
            "edge": self._parallel,
            "merge": self._merge,
            "contract": self._contract,
            "triangle": self._triangle,
            "star": self._star,
        }
        applied: str | None = ""
        while applied is not None:
            applied = next((name for name, rule in rules.items() if rule()), None)
            if applied is not None:
                self.counts[applied] += 1

    def recover(self, choice: Choice) -> Choice:
        """Decide the eliminated variables, the last eliminated first."""
        for decision in reversed(self._decisions):
            decision(choice)
        return choice

    def _degrees(self) -> tuple[dict[int, list[Edge]], dict[int, list[Edge]]]:
        entering: dict[int, list[Edge]] = {index: [] for index in self.cost}
        leaving: dict[int, list[Edge]] = {index: [] for index in self.cost}
        for edge in self.edges:
            entering[edge.target].append(edge)
            leaving[edge.source].append(edge)
        return entering, leaving

    def _operator(self) -> bool:
        entering, leaving = self._degrees()
        for index, cost in self.cost.items():
            if len(entering[index]) == 1 and len(leaving[index]) == 1:
                before, after = entering[index][0], leaving[index][0]
                self._bypass(index, cost, before, after)
                return True
        return False

    def _bypass(self, index: int, cost: Array, before: Edge, after: Edge) -> None:
        left, right = before.table + cost, after.table
        table = np.array([(row[:, None] + right).min(axis=0) for row in left])
        self._remove(index, before, after)
        self.edges.append(Edge(before.source, after.target, table))

        def decide(choice: Choice) -> None:
            total = left[choice[before.source]] + right[:, choice[after.target]]
            choice[index] = int(total.argmin())

        self._decisions.append(decide)

    def _parallel(self) -> bool:
        seen: dict[tuple[int, int], Edge] = {}
        for edge in self.edges:
            first = seen.setdefault((edge.source, edge.target), edge)
            if first is not edge:
                first.table = first.table + edge.table
                self.edges.remove(edge)
                return True
        return False

    def _merge(self) -> bool:
        entering, leaving = self._degrees()
        for index in self.cost:
            if not entering[index] and len(leaving[index]) == 1:
                edge = leaving[index][0]
                if len(entering[edge.target]) > 1:
                    self._fold(index, edge, edge.target, edge.table)
                    return True
        return False

    def _contract(self) -> bool:
        entering, leaving = self._degrees()
        for index in self.cost:
            if len(entering[index]) == 1 and not leaving[index]:
                edge = entering[index][0]
                self._fold(index, edge, edge.source, edge.table.T)
                return True
        return False

    def _fold(self, index: int, edge: Edge, into: int, table: Array) -> None:
        """Add the best of ``index`` to the cost of its only neighbour."""
        self._absorb(index, self.cost[index], into, table, edge)

    def _triangle(self) -> bool:
        entering, leaving = self._degrees()
        joined = {(edge.source, edge.target) for edge in self.edges}
        for index in self.cost:
            if entering[index] or len(leaving[index]) != 2:
                continue
            for left, right in (leaving[index], leaving[index][::-1]):
                if (left.target, right.target) in joined:
                    self._answer_to(left, [right])
                    return True
        return False

    def _star(self) -> bool:
        entering, leaving = self._degrees()
        for index in self.cost:
            if not entering[index] and len(leaving[index]) > 1:
                first, *others = leaving[index]
                self._answer_to(first, others)
                return True
        return False

    def _answer_to(self, first: Edge, others: list[Edge]) -> None:
        """Fold a source into one target as if every other target could choose for it alone."""
        self.exact = False
        cost = self.cost[first.source]
        for other in others:
            cost = cost + other.table.min(axis=1)
        self._absorb(first.source, cost, first.target, first.table, first, *others)

    def _absorb(self, index: int, cost: Array, into: int, table: Array, *edges: Edge) -> None:
        total = cost[:, None] + table
        best = total.argmin(axis=0)
        self._remove(index, *edges)
        self.cost[into] = self.cost[into] + total.min(axis=0)

        def decide(choice: Choice) -> None:
            choice[index] = int(best[choice[into]])

        self._decisions.append(decide)

    def _remove(self, index: int, *edges: Edge) -> None:
        del self.cost[index]
        self.edges = [edge for edge in self.edges if edge not in edges]

    def components(self) -> list[list[tuple[float, Choice]]]:
        """Return the choices of each remaining component, cheapest first."""
        result = []
        paired: set[int] = set()
        for edge in self.edges:
            paired |= {edge.source, edge.target}
            total = self.cost[edge.source][:, None] + self.cost[edge.target] + edge.table
            result.append(_ordered(total, (edge.source, edge.target)))
        for index, cost in self.cost.items():
            if index not in paired:
                result.append(_ordered(cost, (index,)))
        return result


def _ordered(total: Array, variables: tuple[int, ...]) -> list[tuple[float, Choice]]:
    order = np.argsort(total, axis=None, kind="stable")
    places = zip(*np.unravel_index(order, total.shape), strict=True)
    return [
        (float(total[place]), dict(zip(variables, map(int, place), strict=True)))
        for place in places
        if total[place] < math.inf
    ]


def _combinations(components: list[list[tuple[float, Choice]]]) -> Iterator[tuple[float, Choice]]:
    """Yield the combinations of one choice a component, in order of total cost."""
    if not all(components):
        return
    start = tuple(0 for _ in components)
    queue = [(sum(component[0][0] for component in components), start)]
    while queue:
        value, places = heapq.heappop(queue)
        choice: Choice = {}
        for component, place in zip(components, places, strict=True):
            choice |= component[place][1]
        yield value, choice
        for axis, component in enumerate(components):
            place = places[axis] + 1
            if place < len(component):
                dearer = value - component[place - 1][0] + component[place][0]
                heapq.heappush(queue, (dearer, (*places[:axis], place, *places[axis + 1 :])))
            if places[axis]:
                break  # every combination has one way here


def dynamic_programming(problem: Problem) -> Solution:
    """Return the assignment of MindSpore's eliminations; see the module for its faults."""
    network = build_network(problem)
    graph = EliminationGraph(network)
    graph.reduce()
    rows = MemoryRows(network, network.limit)
    best, cost, bound, too_large = None, math.inf, math.inf, 0
    for tried, (value, choice) in enumerate(_combinations(graph.components())):
        if tried == 0:
            terms = len(problem.variables) + len(problem.pairs)
            bound = value - 2 * terms * UNIT_ROUNDOFF * abs(value)
        decided = graph.recover(choice)
        assignment = tuple(decided[index] for index in range(len(problem.variables)))
        if (rows.profile(list(assignment)) > rows.capacity).any():
            too_large += 1
        else:
            result = evaluate(problem, assignment)
            if result.feasible:
                best, cost = assignment, result.cost
                break
        if tried == MOST_TRIED:
            break
    return Solution(
        assignment=best,
        cost=cost,
        lower_bound=min(bound, cost),
        status=_status(best is not None, cost, bound),
        how="dynamic programming",
        seconds=0.0,
        statistics={name: float(n) for name, n in (*graph.counts.items(), (TOO_LARGE, too_large))},
    )


def _status(found: bool, cost: float, bound: float) -> Status:
    if found:
        return "optimal" if relative_gap(cost, bound) <= OPTIMALITY_GAP else "feasible"
    return "infeasible" if bound == math.inf else "unknown"
