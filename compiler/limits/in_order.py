"""Plans of a small problem in the order of their cost by weights, where memory is short.

The cost of a plan by weights of the resources is at most its overlapped step. So the plans that may
be faster than the fastest one so far come first, and the search ends with the last of them. It
meets plans that no search within a tighter limit does: those that, by the account of the search,
take as much memory as a cheaper plan whose program does not fit, or whose step is longer.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from shardwright.compiler.attempts import Attempts
from shardwright.compiler.fitting import Attempt
from shardwright.compiler.limits.tighter import SHARE, is_small
from shardwright.ir.decisions import Decisions, SharedLayout
from shardwright.ir.errors import NotFoundError
from shardwright.search.method import SearchResult
from shardwright.search.solving import with_copies
from shardwright.search.space.space import SearchSpace
from shardwright.search.symmetry.alignment import align
from shardwright.solver.evaluate import evaluate
from shardwright.solver.exact.in_order import in_order
from shardwright.solver.problem import Problem
from shardwright.solver.solution import OPTIMALITY_GAP, relative_gap

_PARTIAL = 20_000  # partial plans that are continued at most
_PROGRAMS = 100  # that are emitted at most


@dataclass(frozen=True)
class PlansInOrder:
    """The plans of a small problem that may be faster than the fastest one so far.

    Parameters
    ----------
    searches : Attempts
        The searches by weights, which order the plans.
    serial : Attempts
        The searches of the serial step, which emit them: by weights, the shortest path of a
        redistribution may be long by the clock.
    """

    searches: Attempts
    serial: Attempts

    def plans(self, shortest: Callable[[], float]) -> Iterator[Attempt]:
        """Yield the plans that fit, until no other one is faster than `shortest`."""
        limits = self.searches.limits
        # By other weights, a large problem may not be built yet, and would take long.
        serial = _space(self.serial) if self.serial.request.is_built else None
        space = None if serial is None else _space(self.searches)
        if space is None or serial is None:
            return
        budget = self.searches.budget.share(SHARE)
        problem = _without_copies(space).limited(limits.memory_limit)
        gap, known = max(limits.gap, OPTIMALITY_GAP), list[Decisions]()
        for bound, assignment in in_order(problem, budget, _PARTIAL):
            near = relative_gap(shortest(), bound + space.constant) <= gap
            if near or len(known) >= _PROGRAMS or budget.is_spent:
                return
            result = _result(serial, assignment)
            plan = _without_account(result.decisions)
            if plan not in known:
                known.append(plan)
                attempt = self.serial.emit(limits, result)
                if attempt.fits(limits.limit_bytes):
                    yield attempt


def _space(attempts: Attempts) -> SearchSpace | None:
    """Return the problem in which what is saved is decided; None where it is not small, or late."""
    recomputing = replace(attempts, recomputes=attempts.request.recomputes)
    try:
        small = all(is_small(sum(one.built().problem.sizes)) for one in (attempts, recomputing))
    except NotFoundError:
        return None
    return recomputing.built() if small else None


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
