"""Solving the assignment problem of a search space, and the errors where no assignment fits."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from shardwright.ir.errors import InfeasibleError, NoPlanError, NotFoundError
from shardwright.ir.units import bytes_text
from shardwright.search.method import SearchResult
from shardwright.search.options import SearchOptions
from shardwright.search.space.space import SearchSpace
from shardwright.solver.evaluate import Evaluation, evaluate
from shardwright.solver.exact.dynamic_programming import TOO_LARGE
from shardwright.solver.problem import Problem
from shardwright.solver.solution import Solution
from shardwright.solver.solve import solve
from shardwright.solver.ties import settled

Floats = NDArray[np.float64]
Solver = Literal["exact", "dynamic_programming"]


def solve_space(
    space: SearchSpace, options: SearchOptions, solver: Solver = "exact"
) -> SearchResult:
    """Return the best assignment of a problem; in a space of orbits, one of orbits.

    Raises
    ------
    InfeasibleError
        If it is proven that nothing fits the memory limit.
    NotFoundError
        If nothing was found within the budget.
    """
    problem = space.problem.limited(options.memory_limit)
    if solver == "exact" and any(pair.role == "copy" for pair in problem.pairs):
        solution = _with_copies_last(space, options)
        known = None if solution is None else evaluate(problem, _assignment_of(solution))
        if solution is not None and known is not None and known.feasible:
            return replace(_result(space, problem, solution, known=known), unlimited=True)
    solution = solve(
        problem,
        budget=options.budget.within(options.budget.left),
        progress=options.progress,
        method=solver,
        gap=options.gap,
    )
    if solution.assignment is None:
        raise _no_assignment_by(solver, options, solution)
    result = _result(space, problem, solution, settle=solver == "exact")
    return replace(result, unlimited=bool(solution.statistics.get("unlimited")))


def _assignment_of(solution: Solution) -> tuple[int, ...]:
    assert solution.assignment is not None
    return solution.assignment


def _result(
    space: SearchSpace,
    problem: Problem,
    solution: Solution,
    *,
    settle: bool = True,
    known: Evaluation | None = None,
) -> SearchResult:
    """Return the result of a solution, whose evaluation may be known."""
    found = _assignment_of(solution)
    assignment = settled(problem, found) if settle else found
    evaluation = known if known is not None and assignment == found else None
    evaluation = evaluation or evaluate(problem, assignment)
    return SearchResult(
        assignment,
        space.decisions(assignment),
        float(evaluation.cost) + space.constant,
        solution.lower_bound + space.constant,
        "optimal" if solution.status == "optimal" else "feasible",
        float(evaluation.peak_usage),
        solution.seconds,
        solution.how,
        timed=solution.timed,
    )


def _with_copies_last(space: SearchSpace, options: SearchOptions) -> Solution | None:
    """Solve without a memory limit, then choose the copies; the answer may exceed the limit.

    Copies cost nothing, but as variables of the elimination they make it slower.
    """
    free = space.problem.limited(None, role="edge")
    solution = solve(
        free, budget=options.budget.share(1 / 2), progress=options.progress, gap=options.gap
    )
    if solution.assignment is None:
        return None
    return replace(solution, assignment=with_copies(space.problem, solution.assignment))


def with_copies(problem: Problem, chosen: Sequence[int]) -> tuple[int, ...]:
    """Return an assignment with the cheapest option of every copy."""
    assignment = list(chosen)
    costs: dict[int, Floats] = {}
    for pair in problem.pairs:
        if pair.role == "copy":
            table = pair.table[:, assignment[pair.second]]
            costs[pair.first] = costs.get(pair.first, 0.0) + table
    for copy, cost in costs.items():
        assignment[copy] = int(cost.argmin())
    return tuple(assignment)


def _no_assignment_by(solver: Solver, options: SearchOptions, solution: Solution) -> NoPlanError:
    """Return the error of a solver without an assignment."""
    if solver == "exact":
        return no_assignment(options, proven=solution.status != "unknown")
    hint = "search with `exact`"
    if solution.statistics.get(TOO_LARGE):
        return NotFoundError(f"`{solver}` found no plan{_within(options)}", hint=hint)
    why = "it chose layouts between which a tensor cannot be redistributed"
    return NotFoundError(f"`{solver}` found no plan: {why}", hint=hint)


def no_assignment(options: SearchOptions, *, proven: bool) -> NoPlanError:
    """Return the error of an exact search without an assignment."""
    if not proven and options.budget.work.is_stopped:
        what = "no plan was found before the time limit"
        return NotFoundError(what, hint="allow more time, or more memory")
    if not proven:
        what = f"no plan was found with effort {options.effort:g}"
        return NotFoundError(what, hint="allow more effort, or more memory")
    return InfeasibleError(f"no plan connects every tensor with its readers{_within(options)}")


def _within(options: SearchOptions) -> str:
    memory = options.memory_limit
    return "" if memory is None else f" within {bytes_text(memory)} on each device"
