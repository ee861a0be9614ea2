"""A search space by other prices, from one that was built.

The options of a problem do not depend on the weights of resources, nor do the tensors between them,
nor what they hold: only costs do. Equal layers share the arrays of costs, so it suffices to build
what was added in those steps in which an array came up first; all other choices and pairs take what
their array became there.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.profile import CostProfile
from shardwright.search.space.builder import SpaceBuilder
from shardwright.search.space.context import BuildContext
from shardwright.search.space.interning import Interner
from shardwright.search.space.saved.offloading import Offloading
from shardwright.search.space.steps import RepriceableSpace, Step
from shardwright.solver.problem import Identity, Pair, Problem, Variable
from shardwright.solver.work import Budget

Floats = NDArray[np.float64]


def repriced(
    space: RepriceableSpace,
    profile: CostProfile,
    budget: Budget,
    effort: float,
    interner: Interner | None = None,
) -> RepriceableSpace:
    """Return a space by other prices, for as much work as building it takes.

    That is charged since whether another space is known must not change what a search may spend.

    Parameters
    ----------
    space : RepriceableSpace
        A space of the same program on the same mesh.
    profile : CostProfile
        Its prices tell no more kinds of nodes apart than those of the space do: where two arrays of
        costs are one, they stay one.
    budget, effort : Budget, float
        What building may spend, and the effort that the user asked for.
    interner : Interner, optional
        What was interned for other problems by the same prices, as in `build_search_space`.

    Raises
    ------
    TimeLimitError
        If nothing is left of the budget.
    """
    built, shared = space.built, interner or Interner()
    where = space.graph, profile, budget, effort, built.micro, built.part
    found = _Repricer(BuildContext(*where, interner=shared), built.arguments).reprice(space)
    budget.charge(max(built.seconds - budget.spent, 0.0))
    return found


class _Repricer(SpaceBuilder):
    """Builds a part of a space, for its prices."""

    def reprice(self, space: RepriceableSpace) -> RepriceableSpace:
        """Return the space by the prices of this builder."""
        built = space.built
        self.recomputable, self.regathered = built.recomputable, built.regathered
        self.counted, self.offloading = built.counted, Offloading(self.context, frozenset())
        first = _first_steps(space)
        needed = self._needed([built.steps[position] for position in first])
        self.add_tables(step.name for step in built.steps if step in needed and _is_operator(step))
        prices: dict[int, Floats] = {}
        for position, step in enumerate(built.steps):
            if step in needed:
                start = len(self.draft.choices), len(self.draft.pairs)
                self.take(step)
                if position in first:
                    before = built.sizes[position - 1] if position else (0, 0)
                    for array, price in self._prices(space, before, built.sizes[position], start):
                        assert prices.setdefault(array, price) is price  # one array stays one
        return self._by_prices(space, prices)

    def _hold_saved(self, *_: object) -> None:
        """Leave out what is saved: the space has it."""

    def _hold_transients(self, *_: object) -> None:
        """Leave out the memory of tensors: the space has it."""

    def _needed(self, first: Collection[Step]) -> set[Step]:
        """Return the steps to take: some steps, and those that add what they connect."""
        needed = {step for step in first if not _is_operator(step)}
        needed |= {Step("ends"), *(Step("output", name) for name in self.graph.outputs)}
        written = {value for step in needed for value in self._joined_by(step)}
        needed |= {Step("parameter", p) for p, value in self.updates.items() if value in written}
        operators = {step.name for step in first if _is_operator(step)}
        for step in needed:
            for value in self._joined_by(step):
                operators.update(node.name for node, _ in self.graph.uses[value])
            if step.adds == "result":
                operators.add(step.name)
        return needed | {Step("operator", name) for name in operators & self.nodes.keys()}

    def _joined_by(self, step: Step) -> Iterator[str]:
        """Yield the values whose writer and readers a step connects."""
        if step.adds == "result":
            yield self.nodes[step.name].results[step.position].name
        elif step.adds == "parameter":
            yield self.context.copied(self.graph.values[step.name]).name
        elif step.adds == "ends":
            yield from (value.name for value in self.graph.inputs)

    def _prices(
        self,
        space: RepriceableSpace,
        before: tuple[int, int],
        after: tuple[int, int],
        start: tuple[int, int],
    ) -> Iterator[tuple[int, Floats]]:
        """Yield what each array of costs became that a step added, between two sizes."""
        (choice, pair), (past_choice, past_pair) = before, after
        costs = [space.problem.variables[i].cost for i in _priced(space, choice, past_choice)]
        tables = [one.table for one in space.problem.pairs[pair:past_pair]]
        draft, (choice, pair) = self.draft, start
        own = [
            cost
            for one, cost in zip(draft.choices[choice:], draft.costs[choice:], strict=True)
            if one.kind != "copy"
        ]
        new = [*own, *(one.table for one in draft.pairs[pair:])]
        for array, price in zip([*costs, *tables], new, strict=True):
            assert array.shape == price.shape
            yield Identity(array), price

    def _by_prices(self, space: RepriceableSpace, prices: dict[int, Floats]) -> RepriceableSpace:
        problem, count = space.problem, len(space.edges)
        variables = [
            one if choice.kind == "copy" else Variable(one.name, prices[id(one.cost)], one.memory)
            for choice, one in zip(space.choices, problem.variables, strict=True)
        ]
        edges, copies = problem.pairs[:count], problem.pairs[count:]
        pairs = [Pair(one.first, one.second, prices[id(one.table)]) for one in edges]
        return replace(
            space,
            problem=Problem(tuple(variables), (*pairs, *copies)),
            constant=self.profile.constant() if self.context.part is None else 0.0,
            planner=self.profile.orbit_planner,
        )


def _is_operator(step: Step) -> bool:
    return step.adds == "operator"


def _priced(space: RepriceableSpace, start: int, stop: int) -> Iterator[int]:
    """Yield the choices that have costs: copies of saved tensors have none."""
    return (i for i in range(start, stop) if space.choices[i].kind != "copy")


def _first_steps(space: RepriceableSpace) -> set[int]:
    """Return the positions of the steps in which an array of costs came up first."""
    variables, pairs = space.problem.variables, space.problem.pairs[: len(space.edges)]
    sizes = space.built.sizes
    own = {id(variables[i].cost): i for i in reversed([*_priced(space, 0, len(variables))])}
    tables = {id(pair.table): i for i, pair in reversed([*enumerate(pairs)])}
    found = _steps_at(sorted(own.values()), [choices for choices, _ in sizes])
    return found | _steps_at(sorted(tables.values()), [pairs for _, pairs in sizes])


def _steps_at(places: Sequence[int], sizes: Sequence[int]) -> set[int]:
    """Return the steps that added what is at some places, by the sizes after each step."""
    return {bisect_right(sizes, place) for place in places}
