"""Alignment: from a class of options for every choice to the options themselves.

A search by class says how many axes of each kind split what, not which. Renaming the axes of one
choice changes no price of its own; between two choices a tensor costs what the search said only if
their axes fit together. Which renaming each choice gets is an assignment problem again, a small
one. If nothing is broken, the plan costs what the search said, and is as good as the search proved.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.profile import Port
from shardwright.cost_model.redistribution import RedistributionPlanner
from shardwright.ir.layout import Layout
from shardwright.ir.types import TensorType
from shardwright.passes.partition import Decisions
from shardwright.passes.search_space import Option, Route, SearchSpace, Storage
from shardwright.solver.problem import FORBIDDEN, Pair, Problem, Variable
from shardwright.solver.solve import solve

Floats = NDArray[np.float64]


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
    def detours(self) -> float:
        """By how many seconds the plan costs more than the search by class said."""
        return sum(self.broken.values())


def align(
    space: SearchSpace,
    assignment: Sequence[int],
    planner: RedistributionPlanner,
    fixed: frozenset[str] = frozenset(),
) -> Alignment:
    """Choose for every choice one option of the class that a search has chosen.

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
    """
    if len(planner.renamings) == 1:
        return Alignment(space.decisions(assignment), {})
    return _Aligner(space, assignment, planner, fixed).align()


class _Aligner:
    def __init__(
        self,
        space: SearchSpace,
        assignment: Sequence[int],
        planner: RedistributionPlanner,
        fixed: frozenset[str],
    ) -> None:
        self.space, self.assignment, self.planner, self.fixed = space, assignment, planner, fixed
        self.mesh, self.renamings = space.mesh, planner.renamings
        self.between = _differences(planner)
        self.tables: dict[object, Floats] = {}

    def align(self) -> Alignment:
        pairs = self.space.problem.pairs[: len(self.space.routes)]
        chosen = [(self.assignment[pair.first], self.assignment[pair.second]) for pair in pairs]
        tables = [
            self._table(pair, route, *options)
            for pair, route, options in zip(pairs, self.space.routes, chosen, strict=True)
        ]
        problem = Problem(
            tuple(map(self._variable, range(len(self.assignment)))),
            tuple(
                Pair(pair.first, pair.second, table)
                for pair, table in zip(pairs, tables, strict=True)
            ),
        )
        found = solve(problem).assignment
        assert found is not None
        broken = {
            i: self._detour(pair, self.space.routes[i], found, chosen[i])
            for i, (pair, table) in enumerate(zip(pairs, tables, strict=True))
            if table[found[pair.first], found[pair.second]]
        }
        return Alignment(self._decisions(found), broken)

    def _variable(self, index: int) -> Variable:
        choice = self.space.choices[index]
        cost = np.zeros(len(self.renamings))
        if choice.kind == "input" and choice.name in self.fixed:
            option = self._option(index)
            images = [option.renamed(names, self.mesh) for names in self.renamings]
            cost = np.array([0.0 if image == option else FORBIDDEN for image in images])
        return Variable(choice.name, cost)

    def _option(self, index: int) -> Option:
        return self.space.choices[index].options[self.assignment[index]]

    def _table(self, pair: Pair, route: Route, source: int, target: int) -> Floats:
        """Return what a pair of renamings costs: the bytes of a tensor that takes a detour."""
        tensor, here, there = route.tensor, route.sources[source], route.targets[target]
        option = self._option(pair.first)
        used = option.used if isinstance(option, Storage) else None
        key = (tensor, here, there, used)
        if key not in self.tables:
            fits = np.zeros(len(self.renamings), dtype=bool)
            fits[list(self._nearest(tensor, here, there))] = True
            price = np.where(fits, 0.0, float(tensor.nbytes))
            if used is not None:  # it is gathered for this reader
                images = [there.layout.renamed(names, self.mesh) for names in self.renamings]
                price[[image != used for image in images]] = FORBIDDEN
            self.tables[key] = price[self.between]
        return self.tables[key]

    def _nearest(self, tensor: TensorType, here: Port, there: Port) -> frozenset[int]:
        """Return the renamings of `there` for which neither direction takes a detour."""
        fits = self.planner.nearest(tensor, here.layout, there.layout)
        if here.cotangent is None or there.cotangent is None:
            return fits
        back = self.planner.nearest(tensor, there.cotangent, here.cotangent)
        inverse = self.between[:, 0]
        return fits & {int(inverse[i]) for i in back}

    def _detour(
        self,
        pair: Pair,
        route: Route,
        found: Sequence[int],
        options: tuple[int, int],
    ) -> float:
        """Return by how much a tensor costs more than its classes say."""
        one, other = found[pair.first], found[pair.second]
        here, there = route.sources[options[0]], route.targets[options[1]]
        names, others = self.renamings[one], self.renamings[other]

        def beyond(source: Layout, target: Layout) -> float:
            least = self.planner.class_seconds(route.tensor, [source], [target])[0, 0]
            return self.planner.way_seconds(route.tensor, source, target) - float(least)

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
        options = [
            self._option(i).renamed(self.renamings[chosen], self.mesh)
            for i, chosen in enumerate(found)
        ]
        return self.space.decide(options)


def _differences(planner: RedistributionPlanner) -> NDArray[np.int64]:
    """Return for each two renamings the one that leads from the first to the second."""
    names = planner.mesh.names
    index = {tuple(r[n] for n in names): i for i, r in enumerate(planner.renamings)}
    inverse = [{b: a for a, b in r.items()} for r in planner.renamings]
    return np.array(
        [[index[tuple(back[r[n]] for n in names)] for r in planner.renamings] for back in inverse]
    )
