"""Alignment: choose one element of every chosen orbit, so that the elements fit together.

An orbit says how many axes of each kind split a dimension, not which. Permuting the axes of one
choice leaves its own price unchanged; a tensor between two choices costs what the search assumed
only if their axes fit together, and an alignment penalty more otherwise. Choosing an axis
permutation for every choice is again an assignment problem, a small one. If no penalty is left, the
plan costs what the search said, and its bound holds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.profile import EdgeLayout
from shardwright.cost_model.redistribution.planner import RedistributionPlanner
from shardwright.ir.decisions import Decisions
from shardwright.ir.layout import Layout
from shardwright.ir.types import TensorType
from shardwright.search.space.interning import Interner
from shardwright.search.space.space import Edge, Option, SearchSpace, Storage
from shardwright.solver.elimination import Elimination, OutOfTimeError
from shardwright.solver.joining import join
from shardwright.solver.problem import Identity, Pair, distinct
from shardwright.solver.work import Budget

Floats = NDArray[np.float64]
Ends = tuple[int, int]
Times = tuple[float, float, float]
_LARGEST_MESSAGE = 2**18  # entries of the largest message; eliminations then take seconds


@dataclass(frozen=True)
class Alignment:
    """Elements of the chosen orbits.

    Parameters
    ----------
    decisions : Decisions
        What they decide.
    penalties : mapping of int to float
        For each pair of the problem whose elements do not fit together, the alignment penalty: the
        cost beyond that between their orbits.
    """

    decisions: Decisions
    penalties: Mapping[int, float]

    @property
    def alignment_penalty(self) -> float:
        """The cost of the plan beyond that of its orbits."""
        return sum(self.penalties.values())


def align(
    space: SearchSpace,
    assignment: Sequence[int],
    interner: Interner | None = None,
    budget: Budget | None = None,
) -> Alignment:
    """Choose one element of every orbit that a search has chosen.

    The choice is optimal where elimination is quick, else a good one.

    Parameters
    ----------
    space : SearchSpace
        The space; if its options are no orbits, there is nothing to align.
    assignment : sequence of int
        An orbit of options for each choice.
    interner : Interner, optional
        What was interned for other assignments of this space.
    budget : Budget, optional
        What the search for the optimum may spend.
    """
    planner = space.planner
    if planner is None or len(planner.axis_permutations) == 1:
        return Alignment(space.decisions(assignment), {})
    return _Aligner(space, assignment, planner, budget or Budget(), interner or Interner()).align()


class _Aligner:
    def __init__(
        self,
        space: SearchSpace,
        assignment: Sequence[int],
        planner: RedistributionPlanner,
        budget: Budget,
        interner: Interner,
    ) -> None:
        self.space, self.assignment, self.planner = space, assignment, planner
        self.budget = budget
        self.mesh, self.permutations = space.mesh, planner.axis_permutations
        self.intern = interner.intern  # equal layers share tables
        self.between = self.intern("differences", lambda: _differences(planner))

    def align(self) -> Alignment:
        """Return the elements, and the penalties that are left."""
        tables = {position: self._table(pair, edge) for position, pair, edge in self.space.priced}
        if self._fit_as_they_are(tables):
            options = [self._option(i) for i in range(len(self.assignment))]
            return Alignment(self.space.decide(options), {})
        chosen = self._cheapest(self._by_ends(tables))
        penalties = {
            position: self._penalty(pair, edge, chosen)
            for position, pair, edge in self.space.priced
            if tables[position][chosen[pair.first], chosen[pair.second]]
        }
        options = [self._element(i, permutation) for i, permutation in enumerate(chosen)]
        return Alignment(self.space.decide(options), penalties)

    # The assignment problem of permutations

    def _fit_as_they_are(self, tables: Mapping[int, Floats]) -> bool:
        """Return whether the options fit together unpermuted: then that is the cheapest choice.

        The first permutation is the identity.
        """
        return not any(table[0, 0] for table in tables.values())

    def _cheapest(self, tables: Mapping[Ends, Floats]) -> list[int]:
        """Return the permutation of each choice such that the penalties are least."""
        leaves = self._leaves(tables)
        rest = {ends: table for ends, table in tables.items() if leaves.keys().isdisjoint(ends)}
        core = sorted({index for ends in rest for index in ends})
        place = {index: i for i, index in enumerate(core)}
        free = np.zeros(len(self.permutations))
        costs = [self._stabilizer_cost(i) if self.space.is_fixed(i) else free for i in core]
        inner = {(place[one], place[other]): table for (one, other), table in rest.items()}
        best = self._best(costs, inner)
        choice = join(costs, inner) if best is None else best
        chosen = [choice[place[i]] if i in place else 0 for i in range(len(self.assignment))]
        for leaf, (one, other) in leaves.items():
            table = tables[one, other]
            line = table[chosen[one]] if leaf == other else table[:, chosen[other]]
            chosen[leaf] = int(line.argmin())
        return chosen

    def _best(self, costs: list[Floats], tables: Mapping[Ends, Floats]) -> list[int] | None:
        """Return the optimum by elimination; None where that is too wide, or takes too long."""
        sizes = [len(self.permutations)] * len(costs)
        elimination = Elimination(sizes, list(tables), _LARGEST_MESSAGE)
        elimination.budget = self.budget
        if not elimination.exact:
            return None
        try:
            return elimination.minimise(costs, list(tables.values())).choice
        except OutOfTimeError:
            return None

    def _leaves(self, tables: Mapping[Ends, Floats]) -> dict[int, Ends]:
        """Return the choices that fit their only neighbour under any permutation of it."""
        edges: dict[int, list[Ends]] = {}
        for ends in tables:
            for index in ends:
                edges.setdefault(index, []).append(ends)
        leaves: dict[int, Ends] = {}
        for index, (first, *others) in edges.items():
            if others or self.space.is_fixed(index) or not leaves.keys().isdisjoint(first):
                continue
            if self._always_fits(tables[first], first.index(index)):
                leaves[index] = first
        return leaves

    def _always_fits(self, table: Floats, end: int) -> bool:
        key = ("fits", Identity(table), end)
        return self.intern(key, lambda: not table.min(axis=end).any())

    def _by_ends(self, tables: Mapping[int, Floats]) -> dict[Ends, Floats]:
        """Return one table for each two choices that must fit, the lower number first."""
        summed: dict[Ends, Floats] = {}
        # Often no permutation has a penalty, as for whole tensors.
        matters = {id(table) for table in distinct(tables.values()) if table.any()}
        for position, priced in tables.items():
            if id(priced) not in matters:
                continue
            pair = self.space.problem.pairs[position]
            ends, table = (pair.first, pair.second), priced
            if pair.first > pair.second:
                ends, table = ends[::-1], self._transposed(priced)
            summed[ends] = self._sum(summed[ends], table) if ends in summed else table
        return summed

    def _transposed(self, table: Floats) -> Floats:
        return self.intern(("transposed", Identity(table)), lambda: table.T)

    def _sum(self, one: Floats, other: Floats) -> Floats:
        return self.intern(("sum", Identity(one), Identity(other)), lambda: one + other)

    # Prices

    def _option(self, index: int) -> Option:
        return self.space.choices[index].options[self.assignment[index]]

    def _element(self, index: int, permutation: int) -> Option:
        """Return the element of a choice's orbit under a permutation."""
        options = self.space.choices[index].options
        key = ("element", Identity(options), self.assignment[index], permutation)
        names = self.permutations[permutation]
        return self.intern(key, lambda: self._option(index).renamed(names, self.mesh))

    def _stabilizer_cost(self, index: int) -> Floats:
        """Return the cost of each permutation of a fixed option; it must keep the option."""
        option = self._option(index)
        elements = [option.renamed(names, self.mesh) for names in self.permutations]
        return np.array([0.0 if element == option else np.inf for element in elements])

    def _table(self, pair: Pair, edge: Edge) -> Floats:
        """Return the price of two permutations: the bytes of the tensor where they do not fit."""
        source, target = self.assignment[pair.first], self.assignment[pair.second]

        def make() -> Floats:
            tensor, here, there = edge.tensor, edge.sources[source], edge.targets[target]
            option = self._option(pair.first)
            twice = isinstance(option, Storage) and option.regathered
            twice = twice or (edge.again is not None and bool(edge.again[source, target]))
            fits = np.zeros(len(self.permutations), dtype=bool)
            fits[list(self._nearest(edge, here, there, edge.times(option), twice))] = True
            price = np.where(fits, 0.0, float(tensor.nbytes))
            if isinstance(option, Storage) and option.used is not None:  # gathered for this reader
                elements = [there.layout.renamed(names, self.mesh) for names in self.permutations]
                price[[element != option.used for element in elements]] = np.inf
            return self.intern(("priced", price.tobytes()), lambda: price[self.between])

        return self.intern(("table", edge, source, target), make)

    def _planners(self, edge: Edge, times: Times) -> tuple[RedistributionPlanner, ...]:
        """Return the planners of a tensor, of it again, and of its gradient."""
        first, _, back = (edge.planner(self.planner, count) for count in times)
        return first, edge.planner(self.planner, edge.passes).second, back.of_gradients

    def _nearest(
        self, edge: Edge, here: EdgeLayout, there: EdgeLayout, times: Times, twice: bool
    ) -> frozenset[int]:
        """Return the permutations of `there` for which neither direction has a penalty.

        `times` says how often the tensor is redistributed, `twice` whether a second time, for the
        gradient.
        """
        tensor = edge.tensor
        first, second, returns = self._planners(edge, times)
        fits = first.nearest(tensor, here.layout, there.layout)
        if twice and second is not first:
            fits &= second.nearest(tensor, here.layout, there.layout)
        if here.cotangent is None or there.cotangent is None:
            return fits
        gradient = edge.gradient or tensor
        back = returns.nearest(gradient, there.cotangent, here.cotangent)
        inverse = self.between[:, 0]
        return fits & {int(inverse[i]) for i in back}

    def _penalty(self, pair: Pair, edge: Edge, chosen: Sequence[int]) -> float:
        """Return the cost of a tensor beyond that between its orbits."""
        orbits = self.assignment[pair.first], self.assignment[pair.second]
        key = ("penalty", edge, *orbits, chosen[pair.first], chosen[pair.second])
        return self.intern(key, lambda: self._find_penalty(pair, edge, chosen))

    def _find_penalty(self, pair: Pair, edge: Edge, chosen: Sequence[int]) -> float:
        here = edge.sources[self.assignment[pair.first]]
        there = edge.targets[self.assignment[pair.second]]
        source = here.renamed(self.permutations[chosen[pair.first]], self.mesh)
        target = there.renamed(self.permutations[chosen[pair.second]], self.mesh)
        times = forward, again, backward = edge.times(self._option(pair.first))
        if edge.again is not None:
            is_again = edge.again[self.assignment[pair.first], self.assignment[pair.second]]
            again += forward * bool(is_again)
        tensor = edge.tensor
        first, second, returns = self._planners(edge, times)
        penalty = forward * _beyond_orbits(first, tensor, source.layout, target.layout)
        if again:
            penalty += again * _beyond_orbits(second, tensor, source.layout, target.layout)
        if source.cotangent is not None and target.cotangent is not None:
            penalty += backward * _beyond_orbits(
                *(returns, edge.gradient or tensor),
                *(target.cotangent, source.cotangent),
            )
        return penalty


def _beyond_orbits(
    planner: RedistributionPlanner, tensor: TensorType, source: Layout, target: Layout
) -> float:
    """Return the cost of the path between two layouts, beyond that between their orbits."""
    least = planner.orbit_costs(tensor, [source], [target])[0, 0]
    return planner.path_cost(tensor, source, target) - float(least)


def _differences(planner: RedistributionPlanner) -> NDArray[np.int64]:
    """Return for each two permutations the one that leads from the first to the second."""
    names, permutations = planner.mesh.names, planner.axis_permutations
    index = {tuple(p[name] for name in names): i for i, p in enumerate(permutations)}
    inverses = [{b: a for a, b in p.items()} for p in permutations]
    return np.array(
        [
            [index[tuple(inverse[p[name]] for name in names)] for p in permutations]
            for inverse in inverses
        ]
    )
