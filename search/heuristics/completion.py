"""Completion: from strategies of operators to a whole assignment."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from shardwright.ir.errors import PassError
from shardwright.ir.layout import Layout, Strategy
from shardwright.search.space.space import Choice, SearchSpace, Storage
from shardwright.solver.problem import FORBIDDEN, Problem, Variable
from shardwright.solver.solve import solve

Floats = NDArray[np.float64]
Preference = Callable[[Choice], Sequence[bool]]
"""Says of each option of a parameter whether it is preferred."""


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
    costs: list[Floats] = [variable.cost for variable in space.problem.variables]
    for i, option in chosen.items():
        costs[i] = np.full(len(costs[i]), np.inf)
        costs[i][option] = space.problem.variables[i].cost[option]
    for i, choice in enumerate(space.choices):
        if choice.kind == "parameter" and preference is not None:
            costs[i] = _preferred(space, i, preference(choice), chosen)
        elif choice.kind == "input" and choice.name in (received or {}):
            costs[i] = np.where(_equal(choice, (received or {})[choice.name]), costs[i], np.inf)
    variables = tuple(
        Variable(variable.name, cost)
        for variable, cost in zip(space.problem.variables, costs, strict=True)
    )
    solution = solve(Problem(variables, space.problem.pairs))
    if solution.assignment is None:
        raise PassError("the strategies leave a tensor that cannot be redistributed to its reader")
    return solution.assignment


def _equal(choice: Choice, layout: Layout) -> NDArray[np.bool_]:
    """Return which options of an input are a layout."""
    return np.array([option == layout for option in choice.options])


def _chosen_strategies(space: SearchSpace, strategies: Mapping[str, Strategy]) -> dict[int, int]:
    """Return the option of every operator; the first where its strategy is not among them."""
    chosen = {}
    for i, choice in enumerate(space.choices):
        if choice.kind == "operator":
            options = {option: position for position, option in enumerate(choice.options)}
            strategy = strategies.get(choice.name)
            if not isinstance(strategy, Strategy):
                raise PassError(
                    f"the strategy of `{choice.name}` is {strategy!r}, expected a `Strategy`",
                    hint="give one for every operator, such as `Strategy()` for none",
                )
            chosen[i] = options.get(strategy, 0)
    return chosen


def _preferred(
    space: SearchSpace, variable: int, allowed: Sequence[bool], chosen: Mapping[int, int]
) -> Floats:
    """Forbid the options that are not preferred, unless the reader can take none of the others."""
    cost = space.problem.variables[variable].cost
    limited = np.where(np.array(allowed), cost, np.inf)
    reachable = limited.copy()
    for pair in space.problem.pairs:
        if pair.first == variable and pair.second in chosen:
            reachable = reachable + pair.table[:, chosen[pair.second]]
    return limited if (reachable < FORBIDDEN).any() else cost
