"""Completion: from strategies of operators to a whole assignment."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shardwright.ir.errors import PassError
from shardwright.ir.layout import Layout, Strategy
from shardwright.search.space.space import Choice, SearchSpace, Storage
from shardwright.solver.problem import FORBIDDEN, Pair, Problem, Variable
from shardwright.solver.solve import solve

Floats = NDArray[np.float64]
Preference = Callable[[Choice], Sequence[bool]]
"""Says of each option of a parameter whether it is preferred."""
_NO_PATH = "the strategies leave a tensor that cannot be redistributed to its reader"


def replicated(choice: Choice) -> Sequence[bool]:
    """Prefer to store a parameter in its reader's layout, or whole where several read it."""
    return [
        isinstance(option, Storage)
        and (option.layout == option.used or (option.used is None and not option.layout.split_axes))
        for option in choice.options
    ]


def scattered(choice: Choice) -> Sequence[bool]:
    """Prefer to split a parameter over the most axes, and to regather it for the gradient."""
    storages = [option for option in choice.options if isinstance(option, Storage)]
    most = max(len(option.layout.split_axes) for option in storages)
    can_regather = any(option.regathered for option in storages)
    return [
        len(option.layout.split_axes) == most
        and (option.regathered or not can_regather or not most)
        for option in storages
    ]


def complete(
    space: SearchSpace,
    strategies: Mapping[str, Strategy],
    preference: Preference | None = None,
    received: Mapping[str, Layout] | None = None,
) -> tuple[int, ...]:
    """Return the cheapest assignment in which the operators have the given strategies.

    With the operators fixed, the other choices (storage, inputs, shared layouts) form small stars,
    each solved by itself. A pinned operator keeps its pin.

    Parameters
    ----------
    space : SearchSpace
        The search space.
    strategies : mapping of str to Strategy
        For every operator.
    preference : callable, optional
        The preferred options of a parameter; ignored where its reader can take none of them.
    received : mapping of str to Layout, optional
        Layouts of inputs.
    """
    chosen = _chosen_strategies(space, strategies)
    stars = _Stars(space, chosen)
    for i, choice in enumerate(space.choices):
        if choice.kind == "parameter" and preference is not None:
            stars.prefer(i, preference(choice))
        elif choice.kind == "input" and choice.name in (received or {}):
            layout = (received or {})[choice.name]
            stars.masks[i] = tuple(option == layout for option in choice.options)
    return stars.solved()


@dataclass
class _Stars:
    """The choices that the strategies of operators leave, in components of a few variables.

    Equal components are solved once.
    """

    space: SearchSpace
    chosen: Mapping[int, int]
    # The rows and columns of tables that fixed neighbours leave of each variable, with their keys.
    leaves: dict[int, list[tuple[tuple[int, int, bool], Floats]]] = field(default_factory=dict)
    links: dict[int, list[Pair]] = field(default_factory=dict)
    masks: dict[int, tuple[bool, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for pair in self.space.problem.pairs:
            first, second = self.chosen.get(pair.first), self.chosen.get(pair.second)
            if first is not None and second is not None:
                if pair.table[first, second] >= FORBIDDEN:
                    raise PassError(_NO_PATH)
            elif first is not None:
                leaf = (id(pair.table), first, True), pair.table[first]
                self.leaves.setdefault(pair.second, []).append(leaf)
            elif second is not None:
                leaf = (id(pair.table), second, False), pair.table[:, second]
                self.leaves.setdefault(pair.first, []).append(leaf)
            else:
                for end in (pair.first, pair.second):
                    self.links.setdefault(end, []).append(pair)

    def prefer(self, i: int, allowed: Sequence[bool]) -> None:
        """Forbid options that are not preferred, unless the readers can take none of the others."""
        reachable = np.where(np.array(allowed), self._cost(i), np.inf)
        for _, cost in self.leaves.get(i, ()):
            reachable = reachable + cost
        if (reachable < FORBIDDEN).any():
            self.masks[i] = tuple(allowed)

    def _cost(self, i: int) -> Floats:
        cost: Floats = self.space.problem.variables[i].cost
        return cost

    def solved(self) -> tuple[int, ...]:
        """Return an option for every choice."""
        found = dict(self.chosen)
        known: dict[object, tuple[int, ...]] = {}
        for i in range(len(self.space.choices)):
            if i not in found:
                members = self._component(i)
                key = self._key(members)
                if key not in known:
                    known[key] = self._best(members)
                found.update(zip(members, known[key], strict=True))
        return tuple(found[i] for i in range(len(self.space.choices)))

    def _component(self, start: int) -> list[int]:
        """Return the variables that are tied to one, in the order of the problem."""
        seen, queue = {start}, [start]
        for i in queue:
            for pair in self.links.get(i, ()):
                for end in (pair.first, pair.second):
                    if end not in seen:
                        seen.add(end)
                        queue.append(end)
        return sorted(seen)

    def _pairs(self, members: Sequence[int]) -> Iterator[tuple[int, int, Pair]]:
        place = {i: position for position, i in enumerate(members)}
        for i in members:
            for pair in self.links.get(i, ()):
                if pair.first == i:
                    yield place[i], place[pair.second], pair

    def _key(self, members: Sequence[int]) -> object:
        """Return what the solution of a component follows from."""
        variables = tuple(
            (
                self._cost(i).tobytes(),
                self.masks.get(i),
                tuple(key for key, _ in self.leaves.get(i, ())),
            )
            for i in members
        )
        return variables, tuple((a, b, id(pair.table)) for a, b, pair in self._pairs(members))

    def _best(self, members: Sequence[int]) -> tuple[int, ...]:
        """Return the cheapest options of a component."""
        variables = []
        for i in members:
            cost = self._cost(i)
            if i in self.masks:
                cost = np.where(np.array(self.masks[i]), cost, np.inf)
            cost = sum((leaf for _, leaf in self.leaves.get(i, ())), cost)
            variables.append(Variable(self.space.choices[i].name, cost))
        pairs = tuple(Pair(a, b, pair.table) for a, b, pair in self._pairs(members))
        if not pairs and len(members) == 1:
            (cost,) = (variable.cost for variable in variables)
            best = int(cost.argmin())
            if cost[best] >= FORBIDDEN:
                raise PassError(_NO_PATH)
            return (best,)
        solution = solve(Problem(tuple(variables), pairs))
        if solution.assignment is None:
            raise PassError(_NO_PATH)
        return solution.assignment


def _chosen_strategies(space: SearchSpace, strategies: Mapping[str, Strategy]) -> dict[int, int]:
    """Return the option of every operator; the first where its strategy is not among them."""
    chosen, known = {}, dict[int, dict[object, int]]()  # equal layers share their options
    for i, choice in enumerate(space.choices):
        if choice.kind == "operator":
            options = known.get(id(choice.options))
            if options is None:
                options = {option: position for position, option in enumerate(choice.options)}
                known[id(choice.options)] = options
            strategy = strategies.get(choice.name)
            if not isinstance(strategy, Strategy):
                raise PassError(
                    f"the strategy of `{choice.name}` is {strategy!r}, expected a `Strategy`",
                    hint="give one for every operator, such as `Strategy()` for none",
                )
            chosen[i] = options.get(strategy, 0)
    return chosen
