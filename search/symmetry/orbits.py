"""Search among options where a search by class left a choice open.

A search by class bounds every plan, but perhaps no options of the classes that it chose fit
together. Then those classes that can be part of a better plan are searched again, option by option:
every renaming of each, at what a tensor costs between just these. They are few, and what is found
is as good as any plan can be.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.profile import EdgeLayout
from shardwright.cost_model.redistribution.planner import RedistributionPlanner
from shardwright.ir.layout import Layout
from shardwright.search.space.interning import Interner
from shardwright.search.space.space import Choice, Edge, Option, SearchSpace, Storage
from shardwright.solver.problem import FORBIDDEN, MemoryUse, Pair, Problem, Variable

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class _OrbitElements:
    """The options that stand for some classes of one choice.

    Parameters
    ----------
    options : tuple of Option
        The options.
    classes, renamings : array, shape (options,)
        The class of each, and the renaming by which it comes of the option that stands for it.
    key : object
        Equal for the same classes of equal choices.
    """

    options: tuple[Option, ...]
    classes: Integers
    renamings: Integers
    key: object


def orbit_space(
    space: SearchSpace,
    classes: Sequence[Integers],
    planner: RedistributionPlanner,
    fixed: frozenset[str] = frozenset(),
    time_limit: float = math.inf,
) -> SearchSpace | None:
    """Return the space of all options of some classes; None if that takes too long.

    Parameters
    ----------
    space : SearchSpace
        A space by class.
    classes : sequence of array
        The classes of each choice that are kept.
    planner : RedistributionPlanner
        Prices the ways between layouts.
    fixed : frozenset of str
        Inputs whose layout is given.
    time_limit : float
        Seconds that it may take.
    """
    deadline = time.perf_counter() + time_limit
    return _OrbitSpaceBuilder(space, classes, planner, fixed).build(deadline)


class _OrbitSpaceBuilder:
    def __init__(
        self,
        space: SearchSpace,
        classes: Sequence[Integers],
        planner: RedistributionPlanner,
        fixed: frozenset[str],
    ) -> None:
        self.space, self.planner, self.fixed = space, planner, fixed
        self.mesh, self.renamings = space.mesh, planner.renamings
        self.intern = Interner().intern  # for what equal layers have in common
        pairs = zip(space.choices, classes, strict=True)
        self.elements = [self._images(choice, kept) for choice, kept in pairs]

    def build(self, deadline: float) -> SearchSpace | None:
        """Return the space; None once the deadline has passed."""
        variables = []
        for variable, elements in zip(self.space.problem.variables, self.elements, strict=True):
            memory = tuple(
                MemoryUse(self._spread(use.usage, elements), use.start, use.end)
                for use in variable.memory
            )
            cost = self._spread(variable.cost, elements)
            variables.append(Variable(variable.name, cost, memory))
        pairs, edges = [], []
        priced = self.space.problem.pairs[: len(self.space.edges)]
        for pair, edge in zip(priced, self.space.edges, strict=True):
            if time.perf_counter() >= deadline:
                return None
            one, other = self.elements[pair.first], self.elements[pair.second]
            table, between = self._priced(pair, edge, one, other)
            pairs.append(Pair(pair.first, pair.second, table))
            edges.append(between)
        for pair in self.space.problem.pairs[len(edges) :]:  # they go by class
            one, other = self.elements[pair.first], self.elements[pair.second]
            pairs.append(Pair(pair.first, pair.second, self._of_classes(pair.table, one, other)))
        choices = tuple(
            Choice(choice.kind, choice.name, elements.options)
            for choice, elements in zip(self.space.choices, self.elements, strict=True)
        )
        problem = Problem(tuple(variables), tuple(pairs))
        space = self.space
        return SearchSpace(
            space.graph, self.mesh, choices, problem, tuple(edges), space.constant, space.pinned
        )

    def _images(self, choice: Choice, kept: Integers) -> _OrbitElements:
        only = choice.kind == "input" and choice.name in self.fixed
        key = (id(choice.options), kept.tobytes(), only)
        return self.intern(("images", key), lambda: self._make_images(choice, kept, only, key))

    def _make_images(
        self, choice: Choice, kept: Integers, only: bool, key: object
    ) -> _OrbitElements:
        if choice.kind == "copy":  # what it holds goes by class
            options = tuple(choice.options[position] for position in kept.tolist())
            return _OrbitElements(options, kept, np.zeros_like(kept), key)
        found: dict[Option, tuple[int, int]] = {}
        for position in kept.tolist():
            option = choice.options[position]
            for i, names in enumerate(self.renamings[:1] if only else self.renamings):
                found.setdefault(option.renamed(names, self.mesh), (position, i))
        classes, renamings = np.array(list(found.values()), dtype=np.int64).reshape(-1, 2).T
        return _OrbitElements(tuple(found), classes, renamings, key)

    def _spread(self, array: Floats, elements: _OrbitElements) -> Floats:
        return self.intern((id(array), elements.key), lambda: array[elements.classes])

    def _of_classes(self, table: Floats, one: _OrbitElements, other: _OrbitElements) -> Floats:
        key = (id(table), one.key, other.key)
        return self.intern(key, lambda: table[np.ix_(one.classes, other.classes)])

    def _priced(
        self, pair: Pair, edge: Edge, one: _OrbitElements, other: _OrbitElements
    ) -> tuple[Floats, Edge]:
        def make() -> tuple[Floats, Edge]:
            sources = self._ports(edge.sources, one)
            between = Edge(edge.tensor, sources, self._ports(edge.targets, other))
            return self._table(pair, between, one, other), between

        key = (id(pair.table), id(edge.sources), id(edge.targets), one.key, other.key)
        return self.intern(key, make)

    def _ports(
        self, ports: tuple[EdgeLayout, ...], elements: _OrbitElements
    ) -> tuple[EdgeLayout, ...]:
        pairs = zip(elements.classes.tolist(), elements.renamings.tolist(), strict=True)
        return tuple(ports[i].renamed(self.renamings[name], self.mesh) for i, name in pairs)

    def _table(self, pair: Pair, edge: Edge, one: _OrbitElements, other: _OrbitElements) -> Floats:
        """Return what the classes cost, and what more it is between just these options."""
        table = pair.table[np.ix_(one.classes, other.classes)].astype(np.float64)
        starts = [port.layout for port in edge.sources]
        ends = [port.layout for port in edge.targets]
        more = self._detours(edge, starts, ends)
        stored = [option if isinstance(option, Storage) else None for option in one.options]
        again = [option is not None and option.again for option in stored]
        table += more * (1 + np.array(again)[:, None])
        back = [i for i, port in enumerate(edge.targets) if port.cotangent is not None]
        due = [port.cotangent for port in edge.sources if port.cotangent is not None]
        if back and len(due) == len(starts):
            gradients = [c for port in edge.targets if (c := port.cotangent) is not None]
            table[:, back] += self._detours(edge, gradients, due).T
        for i, option in enumerate(stored):
            if option is not None and option.used is not None:  # gathered for one reader
                table[i, [end != option.used for end in ends]] = FORBIDDEN
        return table

    def _detours(self, edge: Edge, starts: list[Layout], ends: list[Layout]) -> Floats:
        least = self.planner.orbit_seconds(edge.tensor, starts, ends)
        with np.errstate(invalid="ignore"):
            more = self.planner.seconds(edge.tensor, starts, ends) - least
        return np.nan_to_num(more, nan=0.0, posinf=FORBIDDEN)
