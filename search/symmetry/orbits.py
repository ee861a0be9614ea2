"""The space of all elements of some orbits.

A search of orbits bounds every plan, but elements of the chosen orbits may not fit together. Then
the orbits that can be part of a better plan are searched by element: every axis permutation of each
option, with tensors priced between the elements themselves. The elements are few, and the best of
them is as good as any plan can be.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.profile import EdgeLayout
from shardwright.cost_model.redistribution.planner import RedistributionPlanner
from shardwright.ir.layout import Layout
from shardwright.ir.types import TensorType
from shardwright.search.space.context import TABLE_LIMIT
from shardwright.search.space.interning import Interner
from shardwright.search.space.space import Choice, Edge, Option, SearchSpace, Storage
from shardwright.solver.problem import FORBIDDEN, Identity, MemoryUse, Pair, Problem, Variable
from shardwright.solver.work import SECONDS_OF, Budget

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class _Elements:
    """The elements of some orbits of one choice.

    Parameters
    ----------
    options : tuple of Option
        The elements.
    orbits, permutations : array, shape (options,)
        The orbit of each, and the axis permutation that makes it of the orbit's representative.
    key : object
        Equal for the same orbits of equal choices.
    """

    options: tuple[Option, ...]
    orbits: Integers
    permutations: Integers
    key: object


def orbit_space(
    space: SearchSpace,
    orbits: Sequence[Integers],
    planner: RedistributionPlanner,
    budget: Budget | None = None,
) -> SearchSpace | None:
    """Return the space of all elements of some orbits; None if too large, or beyond the budget.

    Parameters
    ----------
    space : SearchSpace
        A space whose options are orbits.
    orbits : sequence of array
        The orbits of each choice that are kept.
    planner : RedistributionPlanner
        Prices redistributions between layouts.
    budget : Budget, optional
        What building the tables may spend.
    """
    return _OrbitSpaceBuilder(space, orbits, planner).build(budget or Budget())


class _OrbitSpaceBuilder:
    def __init__(
        self, space: SearchSpace, orbits: Sequence[Integers], planner: RedistributionPlanner
    ) -> None:
        self.space, self.planner = space, planner
        self.mesh, self.permutations = space.mesh, planner.axis_permutations
        self.intern = Interner().intern  # equal layers share tables
        self.entries = 0  # of the tables so far
        self.elements = [self._elements(i, kept) for i, kept in enumerate(orbits)]

    def build(self, budget: Budget) -> SearchSpace | None:
        """Return the space; None once the budget is spent, or the tables are too large."""
        pairs, edges = list(self.space.problem.pairs), []
        for i, pair in enumerate(pairs):
            if pair.role == "copy":  # memory is the same for all elements
                pairs[i] = replace(pair, table=self._of_orbits(pair))
        for i, pair, edge in self.space.priced:
            entries = len(self.elements[pair.first].options) * len(
                self.elements[pair.second].options
            )
            if budget.is_spent or self.entries + entries > TABLE_LIMIT:
                return None
            before = self.entries
            table, between = self._priced(pair, edge)
            budget.charge(SECONDS_OF.step + (self.entries - before) * SECONDS_OF.pair_entry)
            pairs[i] = replace(pair, table=table)
            edges.append(between)
        choices = tuple(
            Choice(choice.kind, choice.name, elements.options)
            for choice, elements in zip(self.space.choices, self.elements, strict=True)
        )
        problem = Problem(self._variables(), tuple(pairs))
        return replace(
            self.space, choices=choices, problem=problem, edges=tuple(edges), planner=None
        )

    def _variables(self) -> tuple[Variable, ...]:
        variables = []
        for variable, elements in zip(self.space.problem.variables, self.elements, strict=True):
            memory = tuple(
                MemoryUse(self._spread(use.usage, elements), use.start, use.end)
                for use in variable.memory
            )
            cost = self._spread(variable.cost, elements)
            variables.append(Variable(variable.name, cost, memory))
        return tuple(variables)

    # Elements

    def _elements(self, index: int, kept: Integers) -> _Elements:
        choice, fixed = self.space.choices[index], self.space.is_fixed(index)
        key = ("elements", Identity(choice.options), kept.tobytes(), fixed)
        return self.intern(key, lambda: self._make_elements(choice, kept, fixed, key))

    def _make_elements(self, choice: Choice, kept: Integers, fixed: bool, key: object) -> _Elements:
        if choice.kind == "copy":  # memory is the same for all elements
            options = tuple(choice.options[orbit] for orbit in kept.tolist())
            return _Elements(options, kept, np.zeros_like(kept), key)
        origins: dict[Option, tuple[int, int]] = {}
        permutations = self.permutations[:1] if fixed else self.permutations
        for orbit in kept.tolist():
            for i, names in enumerate(permutations):
                element = choice.options[orbit].renamed(names, self.mesh)
                origins.setdefault(element, (orbit, i))
        orbits, made_by = np.array(list(origins.values()), dtype=np.int64).reshape(-1, 2).T
        return _Elements(tuple(origins), orbits, made_by, key)

    def _spread(self, array: Floats, elements: _Elements) -> Floats:
        key = ("spread", Identity(array), elements.key)
        return self.intern(key, lambda: array[elements.orbits])

    def _of_orbits(self, pair: Pair) -> Floats:
        one, other = self.elements[pair.first], self.elements[pair.second]
        key = ("orbits", Identity(pair.table), one.key, other.key)
        return self.intern(key, lambda: pair.table[np.ix_(one.orbits, other.orbits)])

    # Edges

    def _priced(self, pair: Pair, edge: Edge) -> tuple[Floats, Edge]:
        one, other = self.elements[pair.first], self.elements[pair.second]

        def make() -> tuple[Floats, Edge]:
            self.entries += len(one.options) * len(other.options)
            sources = self._edge_layouts(edge.sources, one)
            again = None if edge.again is None else edge.again[np.ix_(one.orbits, other.orbits)]
            targets = self._edge_layouts(edge.targets, other)
            between = replace(edge, sources=sources, targets=targets, again=again)
            return self._table(pair, between, one, other), between

        ends = Identity(edge.sources), Identity(edge.targets)
        return self.intern(("priced", Identity(pair.table), *ends, one.key, other.key), make)

    def _edge_layouts(
        self, layouts: tuple[EdgeLayout, ...], elements: _Elements
    ) -> tuple[EdgeLayout, ...]:
        pairs = zip(elements.orbits.tolist(), elements.permutations.tolist(), strict=True)
        return tuple(layouts[i].renamed(self.permutations[p], self.mesh) for i, p in pairs)

    def _table(self, pair: Pair, edge: Edge, one: _Elements, other: _Elements) -> Floats:
        """Return the cost between orbits, and what the elements cost beyond it."""
        table = pair.table[np.ix_(one.orbits, other.orbits)].astype(np.float64)
        starts = [layout.layout for layout in edge.sources]
        ends = [layout.layout for layout in edge.targets]
        first, second, reductions = (
            np.array(times)[:, None]
            for times in zip(*(edge.times(option) for option in one.options), strict=True)
        )
        if edge.again is not None:
            second = second + first * edge.again
        planner, gradient = edge.planner(self.planner, edge.passes), edge.gradient or edge.tensor
        table += self._often(
            first, edge, lambda planner: _penalties(planner, edge.tensor, starts, ends)
        )
        if second.any():
            table += second * _penalties(planner.second, edge.tensor, starts, ends)
        back = [i for i, layout in enumerate(edge.targets) if layout.cotangent is not None]
        due = [layout.cotangent for layout in edge.sources if layout.cotangent is not None]
        if back and len(due) == len(starts):
            cotangents = [c for layout in edge.targets if (c := layout.cotangent) is not None]
            table[:, back] += self._often(
                reductions,
                edge,
                lambda planner: _penalties(planner.of_gradients, gradient, cotangents, due).T,
            )
        for i, option in enumerate(one.options):
            if isinstance(option, Storage) and option.used is not None:  # gathered for one reader
                table[i, [end != option.used for end in ends]] = FORBIDDEN
        return table

    def _often(
        self, times: Floats, edge: Edge, penalties: Callable[[RedistributionPlanner], Floats]
    ) -> Floats:
        """Return the penalties of each option, as often as a step has them."""
        found = np.zeros(1)
        for count in np.unique(times).tolist():
            planner = edge.planner(self.planner, count)
            found = found + np.where(times == count, count * penalties(planner), 0.0)
        return found


def _penalties(
    planner: RedistributionPlanner, tensor: TensorType, starts: list[Layout], ends: list[Layout]
) -> Floats:
    """Return the alignment penalty between each two layouts."""
    least = planner.orbit_costs(tensor, starts, ends)
    with np.errstate(invalid="ignore"):
        beyond = planner.costs(tensor, starts, ends) - least
    return np.nan_to_num(beyond, nan=0.0, posinf=FORBIDDEN)
