"""Alignment: from a class of options for every choice to the options themselves.

A search by class says how many axes of each kind split what, not which. Renaming the axes of one
choice changes no price of its own; between two choices a tensor costs what the search said only if
their axes fit together. Which renaming each choice gets is an assignment problem again, a small
one. If nothing is broken, the plan costs what the search said, and is as good as the search proved.
"""

import math
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
from shardwright.solver.problem import Pair

Floats = NDArray[np.float64]
_LARGEST_MESSAGE = 2**18  # of an elimination that takes seconds at most


@dataclass(frozen=True)
class Alignment:
    """Options that fit together.

    Parameters
    ----------
    decisions : Decisions
        What they decide.
    broken : mapping of int to float
        For each pair of the problem whose options do not fit, by how many seconds they cost more
        than their classes.
    """

    decisions: Decisions
    broken: Mapping[int, float]

    @property
    def alignment_penalty(self) -> float:
        """By how many seconds the plan costs more than the search by class said."""
        return sum(self.broken.values())


def align(
    space: SearchSpace,
    assignment: Sequence[int],
    planner: RedistributionPlanner,
    fixed: frozenset[str] = frozenset(),
    time_limit: float = math.inf,
) -> Alignment:
    """Choose for every choice one option of the class that a search has chosen.

    The best where that is quickly found, else a good one.

    Parameters
    ----------
    space : SearchSpace
        What was searched, by class.
    assignment : sequence of int
        A class of options for each choice.
    planner : RedistributionPlanner
        Knows the ways between layouts.
    fixed : frozenset of str
        Inputs whose layout is given.
    time_limit : float
        Seconds that the search for the best may take.
    """
    if len(planner.renamings) == 1:
        return Alignment(space.decisions(assignment), {})
    return _Aligner(space, assignment, planner, fixed, time_limit).align()


class _Aligner:
    def __init__(
        self,
        space: SearchSpace,
        assignment: Sequence[int],
        planner: RedistributionPlanner,
        fixed: frozenset[str],
        time_limit: float,
    ) -> None:
        self.space, self.assignment, self.planner, self.fixed = space, assignment, planner, fixed
        self.time_limit = time_limit
        self.mesh, self.renamings = space.mesh, planner.renamings
        self.between = _differences(planner)
        self.intern = Interner().intern  # for what equal layers have in common

    def align(self) -> Alignment:
        pairs = self.space.problem.pairs[: len(self.space.edges)]
        chosen = [(self.assignment[pair.first], self.assignment[pair.second]) for pair in pairs]
        tables = [
            self._table(pair, edge, *options)
            for pair, edge, options in zip(pairs, self.space.edges, chosen, strict=True)
        ]
        found = self._cheapest(self._between(pairs, tables))
        broken = {
            i: self._detour(pair, self.space.edges[i], found, chosen[i])
            for i, (pair, table) in enumerate(zip(pairs, tables, strict=True))
            if table[found[pair.first], found[pair.second]]
        }
        return Alignment(self._decisions(found), broken)

    def _cheapest(self, between: Mapping[tuple[int, int], Floats]) -> list[int]:
        """Return the renaming of each choice for which least takes a penalty."""
        leaves = self._leaves(between)
        rest = {ends: table for ends, table in between.items() if leaves.keys().isdisjoint(ends)}
        core = sorted({index for ends in rest for index in ends})
        place = {index: i for i, index in enumerate(core)}
        free = np.zeros(len(self.renamings))
        costs = [self._fixed(i) if self._is_fixed(i) else free for i in core]
        tables = {(place[one], place[other]): table for (one, other), table in rest.items()}
        best = self._best(costs, tables)
        choice = join(costs, tables) if best is None else best
        found = [choice[place[i]] if i in place else 0 for i in range(len(self.assignment))]
        for leaf, (one, other) in leaves.items():
            table = between[one, other]
            line = table[found[one]] if leaf == other else table[:, found[other]]
            found[leaf] = int(line.argmin())
        return found

    def _best(
        self, costs: list[Floats], tables: Mapping[tuple[int, int], Floats]
    ) -> list[int] | None:
        """Return the best choice by elimination; None where that is too wide, or takes too long."""
        sizes = [len(self.renamings)] * len(costs)
        elimination = Elimination(sizes, list(tables), _LARGEST_MESSAGE)
        elimination.patience = self.time_limit
        if not elimination.exact:
            return None
        try:
            return elimination.minimise(costs, list(tables.values())).choice
        except OutOfTimeError:
            return None

    def _leaves(self, between: Mapping[tuple[int, int], Floats]) -> dict[int, tuple[int, int]]:
        """Return the choices that fit to their one neighbour, however that is renamed."""
        edges: dict[int, list[tuple[int, int]]] = {}
        for ends in between:
            for index in ends:
                edges.setdefault(index, []).append(ends)
        found: dict[int, tuple[int, int]] = {}
        for index, (first, *others) in edges.items():
            if others or self._is_fixed(index) or not found.keys().isdisjoint(first):
                continue
            if self._always_fits(between[first], first.index(index)):
                found[index] = first
        return found

    def _always_fits(self, table: Floats, end: int) -> bool:
        key = ("fits", id(table), end)
        return self.intern(key, lambda: not table.min(axis=end).any())

    def _between(
        self, pairs: Sequence[Pair], tables: Sequence[Floats]
    ) -> dict[tuple[int, int], Floats]:
        """Return one table for each two choices that must fit, the lower number first."""
        found: dict[tuple[int, int], Floats] = {}
        for pair, given in zip(pairs, tables, strict=True):
            ends, table = (pair.first, pair.second), given
            if not self._matters(given):
                continue
            if pair.first > pair.second:
                ends, table = ends[::-1], self._turned(given)
            found[ends] = self._sum(found[ends], table) if ends in found else table
        return found

    def _matters(self, table: Floats) -> bool:
        """Return whether any renaming takes a penalty; often none does, as for whole tensors."""
        return self.intern(("matters", id(table)), lambda: bool(table.any()))

    def _turned(self, table: Floats) -> Floats:
        return self.intern(("turned", id(table)), lambda: table.T)

    def _sum(self, one: Floats, other: Floats) -> Floats:
        return self.intern(("sum", id(one), id(other)), lambda: one + other)

    def _is_fixed(self, index: int) -> bool:
        choice = self.space.choices[index]
        return choice.kind == "input" and choice.name in self.fixed

    def _fixed(self, index: int) -> Floats:
        """Return the cost of each renaming of an option that is given."""
        option = self._option(index)
        elements = [option.renamed(names, self.mesh) for names in self.renamings]
        return np.array([0.0 if image == option else np.inf for image in elements])

    def _option(self, index: int) -> Option:
        return self.space.choices[index].options[self.assignment[index]]

    def _table(self, pair: Pair, edge: Edge, source: int, target: int) -> Floats:
        """Return what a pair of renamings costs: the bytes of a tensor that takes a penalty."""

        def make() -> Floats:
            tensor, here, there = edge.tensor, edge.sources[source], edge.targets[target]
            fits = np.zeros(len(self.renamings), dtype=bool)
            fits[list(self._nearest(tensor, here, there))] = True
            price = np.where(fits, 0.0, float(tensor.nbytes))
            option = self._option(pair.first)
            if isinstance(option, Storage) and option.used is not None:  # gathered for this reader
                elements = [there.layout.renamed(names, self.mesh) for names in self.renamings]
                price[[image != option.used for image in elements]] = np.inf
            found: Floats = price[self.between]
            return found

        return self.intern((id(edge), source, target), make)

    def _nearest(self, tensor: TensorType, here: EdgeLayout, there: EdgeLayout) -> frozenset[int]:
        """Return the renamings of `there` for which neither direction takes a penalty."""
        fits = self.planner.nearest(tensor, here.layout, there.layout)
        if here.cotangent is None or there.cotangent is None:
            return fits
        back = self.planner.nearest(tensor, there.cotangent, here.cotangent)
        inverse = self.between[:, 0]
        return fits & {int(inverse[i]) for i in back}

    def _detour(
        self,
        pair: Pair,
        edge: Edge,
        found: Sequence[int],
        options: tuple[int, int],
    ) -> float:
        """Return by how much a tensor costs more than its classes say."""
        one, other = found[pair.first], found[pair.second]
        here, there = edge.sources[options[0]], edge.targets[options[1]]
        names, others = self.renamings[one], self.renamings[other]

        def beyond(source: Layout, target: Layout) -> float:
            least = self.planner.orbit_seconds(edge.tensor, [source], [target])[0, 0]
            return self.planner.way_seconds(edge.tensor, source, target) - float(least)

        stored = self._option(pair.first)
        times = 2 if isinstance(stored, Storage) and stored.again else 1
        there_and_back = times * beyond(
            here.layout.renamed(names, self.mesh), there.layout.renamed(others, self.mesh)
        )
        if here.cotangent is not None and there.cotangent is not None:
            there_and_back += beyond(
                there.cotangent.renamed(others, self.mesh), here.cotangent.renamed(names, self.mesh)
            )
        return there_and_back

    def _decisions(self, found: Sequence[int]) -> Decisions:
        return self.space.decide([self._renamed(i, chosen) for i, chosen in enumerate(found)])

    def _renamed(self, index: int, chosen: int) -> Option:
        key = (id(self.space.choices[index].options), self.assignment[index], chosen)
        names = self.renamings[chosen]
        return self.intern(key, lambda: self._option(index).renamed(names, self.mesh))


def _differences(planner: RedistributionPlanner) -> NDArray[np.int64]:
    """Return for each two renamings the one that leads from the first to the second."""
    names = planner.mesh.names
    index = {tuple(r[n] for n in names): i for i, r in enumerate(planner.renamings)}
    inverse = [{b: a for a, b in r.items()} for r in planner.renamings]
    return np.array(
        [[index[tuple(back[r[n]] for n in names)] for r in planner.renamings] for back in inverse]
    )
