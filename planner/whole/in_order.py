"""Plans of a small problem in the order of their cost by weights, where memory is short.

The cost of a plan by weights of the resources is at most its overlapped step. So the plans that may
be faster than the fastest one so far come first, and the search ends with the last of them. It
meets plans that no search within a tighter limit does: those that, by the account of the search,
take as much memory as a cheaper plan whose program does not fit, or whose step is longer.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from shardwright.ir.decisions import Decisions
from shardwright.ir.layout import SharedLayout
from shardwright.planner.whole.plan import Plan, is_near
from shardwright.planner.whole.problem import PlanProblem
from shardwright.search.method import SearchResult
from shardwright.search.solving import with_copies
from shardwright.search.space.space import SearchSpace
from shardwright.search.symmetry.alignment import align
from shardwright.solver.evaluate import evaluate
from shardwright.solver.exact.in_order import in_order
from shardwright.solver.problem import Problem

_PARTIAL = 20_000  # partial plans that are continued at most
_PROGRAMS = 100  # programs that are emitted at most
SHARE = 1 / 4  # share of the remaining budget that meeting plans in order may take


def plans_in_order(
    weighted: PlanProblem,
    serial: PlanProblem,
    shortest: Callable[[], float],
    recomputes: bool = True,
) -> Iterator[Plan]:
    """Yield the plans that fit, until no other one is faster than the shortest step so far.

    Parameters
    ----------
    weighted : PlanProblem
        The problem by weights, which orders the plans.
    serial : PlanProblem
        The problem of the serial step, which emits them: by weights, the shortest path of a
        redistribution may be long by the clock.
    shortest : callable
        Returns the shortest step so far.
    recomputes : bool
        Whether plans differ in what they recompute.
    """
    limits = weighted.limits
    space, prices = weighted.space(recomputes), serial.space(recomputes)
    budget = weighted.budget.share(SHARE)
    problem = _without_copies(space).limited(limits.memory_limit)
    known = list[Decisions]()
    for bound, assignment in in_order(problem, budget, _PARTIAL):
        near = is_near(shortest(), bound + space.constant, limits.gap)
        if near or len(known) >= _PROGRAMS or budget.is_spent:
            return
        result = _result(prices, assignment)
        decisions = _without_account(result.decisions)
        if decisions not in known:
            known.append(decisions)
            plan = serial.emit(result, recomputes)
            if plan.fits(limits.limit_bytes):
                yield plan


def cheapest_in_order(problem: PlanProblem, best: Plan) -> Plan:
    """Return the cheapest plan that fits, with the bound of the best one so far.

    Parameters
    ----------
    problem : PlanProblem
        The problem of the serial step.
    best : Plan
        The best plan so far.
    """
    met = [best]
    for plan in plans_in_order(problem, problem, lambda: met[-1].result.cost, problem.ways[-1]):
        if plan.result.cost < met[-1].result.cost:
            met.append(plan)
    return met[-1].with_bound(best.result.lower_bound)


def _result(serial: SearchSpace, assignment: tuple[int, ...]) -> SearchResult:
    """Return a plan with its serial step."""
    chosen = with_copies(serial.problem, assignment)
    value, aligned = evaluate(serial.problem, chosen), align(serial, chosen)
    cost = float(value.cost) + serial.constant + aligned.alignment_penalty
    return SearchResult(
        assignment=chosen,
        decisions=aligned.decisions,
        cost=cost,
        lower_bound=0.0,
        status="feasible",
        memory_bytes=float(value.peak_usage),
        seconds=0.0,
        how="plans in the order of their weighted cost",
    )


def _without_copies(space: SearchSpace) -> Problem:
    """Return the problem in which copies take nothing: they change no program."""
    problem = space.problem.limited(None, role="edge")
    copies = {pair.first for pair in space.problem.pairs if pair.role == "copy"}
    variables = tuple(
        replace(variable, cost=variable.cost[:1], memory=()) if i in copies else variable
        for i, variable in enumerate(problem.variables)
    )
    return replace(problem, variables=variables)


def _without_account(decisions: Decisions) -> Decisions:
    """Return the decisions without what is for the account of memory only."""
    shared = {
        name: SharedLayout(one.layout, one.gradient)
        for name, one in decisions.shared_layouts.items()
    }
    return replace(decisions, shared_layouts=shared)
