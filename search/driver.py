"""Strategy search: choose a point of the search space, by the mode that a person asks for."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from shardwright.ir.errors import InfeasibleError, NoPlanError, NotFoundError, PassError
from shardwright.ir.layout import Strategy
from shardwright.ir.units import bytes_text
from shardwright.search.heuristics.baselines import (
    complete,
    data_parallel,
    follow_batch,
    fully_sharded,
    tensor_parallel,
)
from shardwright.search.heuristics.propagation import propagate
from shardwright.search.heuristics.recursive import recursive_programming
from shardwright.search.space.space import SearchSpace
from shardwright.solver.evaluate import evaluate
from shardwright.solver.exact.least_memory import minimize_memory
from shardwright.solver.problem import FORBIDDEN, Problem
from shardwright.solver.solution import Solution
from shardwright.solver.solve import solve
from shardwright.solver.ties import settled

SearchMode = Literal[
    "exact",
    "dynamic_programming",
    "recursive_programming",
    "sharding_propagation",
    "data_parallel",
    "tensor_parallel",
    "fully_sharded",
]
SEARCH_MODES: tuple[SearchMode, ...] = get_args(SearchMode)
Progress = Callable[[float, float, float], None]
Floats = NDArray[np.float64]
_LEAST_GAP = 3e-3  # how near to the least memory that of a message must come


@dataclass(frozen=True)
class SearchResult:
    """A point of the search space and how good it is.

    Parameters
    ----------
    assignment : tuple of int
        An option for each choice.
    cost : float
        What it costs, in the unit of the profile.
    lower_bound : float
        What any plan costs at least; 0 where the mode knows none.
    status : str
        ``optimal`` where cost and bound meet, else ``feasible``.
    memory_bytes : float
        Peak memory by the search's own account.
    seconds : float
        Time that the search took.
    how : str
        What found and what proved it.
    """

    assignment: tuple[int, ...]
    cost: float
    lower_bound: float
    status: str
    memory_bytes: float
    seconds: float
    how: str


def search(
    space: SearchSpace,
    mode: SearchMode = "exact",
    memory_limit: float | None = None,
    time_limit: float = 60.0,
    progress: Progress | None = None,
    gap: float = 0.0,
) -> SearchResult:
    """Choose an option for everything.

    Parameters
    ----------
    space : SearchSpace
        What there is to choose.
    mode : str
        One of ``SEARCH_MODES``.
    memory_limit : float, optional
        Bytes that one rank may hold; modes other than ``exact`` and ``dynamic_programming`` do not
        see it.
    time_limit : float
        Seconds.
    progress : callable, optional
        Called with (seconds, cost, bound).
    gap : float
        How near to the lower bound the cost must come, relatively, for the search to stop.

    Raises
    ------
    InfeasibleError
        If it is proven that nothing fits the memory limit.
    NotFoundError
        If nothing was found that does.
    """
    begin = time.perf_counter()
    if mode in ("exact", "dynamic_programming"):
        return _solve(space, mode, memory_limit, time_limit, progress, gap)
    if mode not in _HAND_MADE:
        raise PassError(f"no search is called `{mode}`", hint=f"use one of {SEARCH_MODES}")
    assignment = _HAND_MADE[mode](space)
    found = evaluate(space.problem, assignment)
    if found.cost >= FORBIDDEN:
        raise PassError(f"`{mode}` leaves some tensor without a way to its reader")
    seconds = time.perf_counter() - begin
    cost = float(found.cost) + space.constant
    return SearchResult(assignment, cost, 0.0, "feasible", float(found.peak_usage), seconds, mode)


def _solve(
    space: SearchSpace,
    mode: SearchMode,
    memory_limit: float | None,
    time_limit: float,
    progress: Progress | None,
    gap: float,
) -> SearchResult:
    begin = time.perf_counter()
    problem = space.problem.limited(memory_limit)
    if mode == "exact" and len(space.edges) < len(problem.pairs):
        solution = _with_copies_last(space, problem, time_limit / 2, progress, gap)
        if solution is not None and solution.assignment is not None:
            found = evaluate(problem, solution.assignment)
            if found.feasible:
                return _result(space, problem, solution, begin)
    rest = max(time_limit - (time.perf_counter() - begin), 0.0)
    solution = solve(problem, time_limit=rest, progress=progress, method=mode, gap=gap)
    if solution.assignment is None and mode == "exact" and solution.status == "unknown":
        raise NotFoundError(
            f"no plan was found within the time limit of {time_limit:g} s",
            hint="allow more time, or more memory",
        )
    if solution.assignment is None:
        raise _no_assignment(mode, memory_limit)
    return _result(space, problem, solution, begin, settle=mode == "exact")


def _result(
    space: SearchSpace, problem: Problem, solution: Solution, begin: float, *, settle: bool = True
) -> SearchResult:
    assert solution.assignment is not None
    assignment = settled(problem, solution.assignment) if settle else solution.assignment
    found = evaluate(problem, assignment)
    return SearchResult(
        assignment,
        float(found.cost) + space.constant,
        solution.lower_bound + space.constant,
        solution.status,
        float(found.peak_usage),
        time.perf_counter() - begin,
        solution.how,
    )


def _with_copies_last(
    space: SearchSpace,
    problem: Problem,
    time_limit: float,
    progress: Progress | None,
    gap: float,
) -> Solution | None:
    """Search as if memory were free, then see which copies are kept; that may not fit.

    Copies cost nothing, but where they are variables of the elimination it takes longer.
    """
    count = len(space.edges)
    free = problem.limited(None, pairs=count)
    solution = solve(free, time_limit=time_limit, progress=progress, gap=gap)
    if solution.assignment is None:
        return None
    assignment = list(solution.assignment)
    costs: dict[int, Floats] = {}
    for pair in problem.pairs[count:]:
        table = pair.table[:, assignment[pair.second]]
        costs[pair.first] = costs.get(pair.first, 0.0) + table
    for copy, cost in costs.items():
        assignment[copy] = int(cost.argmin())
    return replace(solution, assignment=tuple(assignment))


def _no_assignment(mode: SearchMode, memory_limit: float | None) -> NoPlanError:
    limit = "" if memory_limit is None else f" within {bytes_text(memory_limit)} on each device"
    if mode == "exact":
        return InfeasibleError(f"no plan connects every tensor with its readers{limit}")
    return NotFoundError(f"`{mode}` found no plan{limit}", hint="search with `exact`")


def minimal_memory(space: SearchSpace) -> SearchResult:
    """Return a plan that takes little memory; its ``lower_bound`` is one on bytes, of every plan.

    Raises
    ------
    InfeasibleError
        If no plan connects every tensor with its readers.
    """
    begin = time.perf_counter()
    least = minimize_memory(space.problem, gap=_LEAST_GAP)
    if least.assignment is None:
        raise _no_assignment("exact", None)
    found = evaluate(space.problem, least.assignment)
    seconds = time.perf_counter() - begin
    cost, peak = float(found.cost) + space.constant, float(found.peak_usage)
    bound = least.lower_bound
    return SearchResult(least.assignment, cost, bound, "feasible", peak, seconds, "least memory")


def _propagation(space: SearchSpace) -> tuple[int, ...]:
    """Start from the pinned operators, or from a split batch where nothing is pinned."""
    start = {
        i: 0
        for i, choice in enumerate(space.choices)
        if choice.kind == "operator" and choice.name in space.pinned
    }
    if not start:
        first = next(i for i, choice in enumerate(space.choices) if choice.kind == "operator")
        strategies = follow_batch(space.graph, space.mesh, space.mesh.names)
        choice = space.choices[first]
        start = {first: choice.options.index(strategies[choice.name])}
    return propagate(space.problem, start)


def _recursive(space: SearchSpace) -> tuple[int, ...]:
    """Cut round by round, beside what is pinned."""
    pinned = {
        choice.name: option
        for choice in space.choices
        for option in choice.options
        if choice.name in space.pinned and len(choice.options) == 1 and isinstance(option, Strategy)
    }
    return complete(space, recursive_programming(space.graph, space.mesh, pinned))


_HAND_MADE: dict[str, Callable[[SearchSpace], tuple[int, ...]]] = {
    "recursive_programming": _recursive,
    "sharding_propagation": _propagation,
    "data_parallel": data_parallel,
    "tensor_parallel": tensor_parallel,
    "fully_sharded": fully_sharded,
}
