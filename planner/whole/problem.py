"""The assignment problem of a program on a mesh: its plans within memory limits, with programs.

The search counts memory from below (`search.space.memory`): every emitted program takes at least
what the search counts, so its lower bound and its proof that nothing fits hold for the limit of the
user. What it does not count, such as the buffers of a redistribution or of gradients that wait to
be reduced together, shows in the emitted program. Where that exceeds the limit, the search is
repeated within ever tighter limits; the bound is that of the first search.

Small problems are searched again just below the memory of the plan before, so that every best plan
within any smaller limit is considered: a larger limit then never gives a worse plan. Large ones are
tightened by what the program exceeded.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np

from shardwright.ir.errors import InfeasibleError, NoPlanError, NotFoundError, TimeLimitError
from shardwright.ir.units import bytes_text
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.planner.evaluation.programs import Programs
from shardwright.planner.evaluation.work import charge_emission
from shardwright.planner.search_request import SearchRequest
from shardwright.planner.whole.plan import Plan, check_cost, check_fits, is_near, memory_text
from shardwright.search.budget_note import BudgetNote
from shardwright.search.least_memory import search_least_memory
from shardwright.search.method import SearchResult
from shardwright.search.options import SearchOptions
from shardwright.search.space.memory_shares import largest_shares
from shardwright.search.space.space import SearchSpace
from shardwright.solver.work import Budget

FITTING = "the search for plans that fit"
_FINE = 3_000  # options up to which every lower limit is searched, where a program does not fit
_FINE_RECOMPUTING = 1_000  # options up to which it is where the search decides recomputation
_COARSE_STEPS = 8  # most lower limits of a large problem
_LEAST_STEP = 1 / 400  # least relative tightening of a large problem, doubled every step
_SHARE = 3 / 4  # share of the remaining budget that one search may take


@dataclass(frozen=True)
class PlanProblem:
    """A problem, by the loads of resources at some weights or in the unit of the cost model.

    Parameters
    ----------
    request : SearchRequest
        The problem.
    lowering : LowerRedistributions
        The pass that lowers redistributions to the paths that the search prices.
    limits : SearchOptions
        The limits of the user; their budget is what all searches may spend.
    note : BudgetNote
        Notes whether the budget ended a search.
    programs : Programs
        The programs that were emitted, to share them with problems by other weights.
    """

    request: SearchRequest
    lowering: LowerRedistributions
    limits: SearchOptions
    note: BudgetNote = field(default_factory=BudgetNote)
    programs: Programs = field(default_factory=Programs)

    @property
    def budget(self) -> Budget:
        """What all searches may spend."""
        return self.limits.budget

    @property
    def ways(self) -> tuple[bool, ...]:
        """Whether the search decides what is recomputed: in the cheaper problem first, if both."""
        return (False, True) if self.request.recomputes else (False,)

    def space(self, recomputes: bool = False) -> SearchSpace:
        """Return the problem that is searched.

        Raises
        ------
        NotFoundError
            If it was not built within the budget, where plans may be known without it.
        """
        try:
            return self.request.recompute_space if recomputes else self.request.space
        except TimeLimitError as error:
            if self.request.is_needed:
                raise
            self.note.note("building the problem")
            raise NotFoundError("nothing is left to build the problem") from error

    def solve(
        self,
        memory_limit: float | None,
        recomputes: bool = False,
        gap: float = 0.0,
        share: float = _SHARE,
    ) -> SearchResult:
        """Search within a limit and a share of the budget that is left.

        Parameters
        ----------
        memory_limit : float or None
            Bytes of a device.
        recomputes : bool
            Whether the search decides what is saved for backward.
        gap : float
            Relative gap at which the search stops, where that is more than the user's.
        share : float
            The share.

        Raises
        ------
        NoPlanError
            If there is no plan, or none was found.
        """
        limits = self._within(memory_limit, gap, share)
        method, space = self.request.method, self.space(recomputes)
        try:
            result = self.request.solve(space, limits)
        except NotFoundError:
            if method.keeps_memory_limit and method.minimizes_step:  # else time does not matter
                self.note.note(FITTING)
            raise
        self.note.note_end_of(result, limits)
        return result

    def _within(self, memory_limit: float | None, gap: float, share: float) -> SearchOptions:
        gap = max(self.limits.gap, gap) if self.limits.gap else 0.0
        budget = self.budget.share(share)
        return replace(self.limits, memory_limit=memory_limit, gap=gap, budget=budget)

    def emit(self, result: SearchResult, recomputes: bool = False) -> Plan:
        """Emit a plan; its program may not fit.

        Raises
        ------
        PassError
            If it does, and does not cost what the search said.
        """
        request = self.request
        decisions = request.decisions(result)
        emitted = self.programs.emit(request.source, request.options, decisions, self.lowering)
        charge_emission(self.budget, emitted.records)
        plan = Plan(result, emitted, self.limits, recomputes)
        if plan.fits(self.limits.limit_bytes):
            check_cost(plan, request.profile)
        return plan

    def plan(self, memory_limit: float | None, recomputes: bool = False) -> Plan:
        """Search within a limit, and emit the plan; its program may not fit."""
        return self.emit(self.solve(memory_limit, recomputes), recomputes)

    def tighter(
        self,
        memory_limit: float | None,
        recomputes: bool = False,
        gap: float = 0.0,
        share: float = _SHARE,
    ) -> Iterator[Plan]:
        """Yield the plan within a limit, then those within ever tighter ones, while there are any.

        Parameters
        ----------
        memory_limit, recomputes, gap, share
            As `solve` has them.

        Raises
        ------
        NoPlanError
            If there is none within the limit itself, or none was found.
        """
        plan = self.emit(self.solve(memory_limit, recomputes, gap, share), recomputes)
        yield plan
        is_fine = self.is_fine(recomputes)
        for step in count() if is_fine else range(_COARSE_STEPS):
            if self.note.is_late(self.budget, FITTING):
                return
            counted = plan.result.memory_bytes
            if is_fine:
                limit = float(np.nextafter(counted, 0.0))
            else:
                excess = plan.memory.peak_bytes - (memory_limit or counted)
                limit = max(min(counted - excess, counted * (1 - _LEAST_STEP * 2**step)), 0.0)
            try:
                plan = self.emit(self.solve(limit, recomputes, gap, share), recomputes)
            except NoPlanError:
                return
            yield plan

    def is_fine(self, recomputes: bool) -> bool:
        """Return whether the problem is small enough to search every limit."""
        most = _FINE_RECOMPUTING if recomputes else _FINE
        return sum(self.space(recomputes).problem.sizes) <= most

    def fit(self) -> Plan:
        """Return the best plan found whose program fits the memory limit, with a bound on all.

        Recomputation adds cost, so it is searched only where memory binds.

        Raises
        ------
        InfeasibleError
            If it is proven that no plan fits.
        NotFoundError
            If none was found.
        """
        limit = self.limits.limit_bytes
        if not self.request.method.keeps_memory_limit:
            named = self.request.options.named_plan is not None
            return check_fits(self.plan(self.limits.memory_limit), self.request.search, named)
        bound, best, smallest = 0.0, None, None
        for recomputes in self.ways:
            is_last = recomputes == self.ways[-1]
            try:
                for place, plan in enumerate(self.tighter(self.limits.memory_limit, recomputes)):
                    if place == 0:
                        bound = max(bound, self._bound_by(plan, is_last))
                    if plan.fits(limit):
                        best = _cheaper(best, plan)
                        break
                    smallest = _smaller(smallest, plan)
            except InfeasibleError as error:
                if is_last and best is None:
                    kind, what = InfeasibleError, "no plan fits"
                    raise self._least_memory(None).error(kind, what, limit, self._where) from error
            except NotFoundError:
                if is_last and best is None:
                    raise
            if best is not None and is_near(best.result.cost, bound, self.limits.gap):
                break
        if best is None:
            best = self._smallest(smallest)
        return best.with_bound(bound)

    def _bound_by(self, plan: Plan, is_last: bool) -> float:
        """Return a bound on all plans, by the first one that does or does not recompute."""
        if is_last or plan.result.unlimited:
            return plan.result.lower_bound
        return self.solve(None).lower_bound

    def _smallest(self, failing: Plan | None) -> Plan:
        """Return the plan that takes the least memory, if it fits.

        Raises
        ------
        NotFoundError
            If it does not.
        """
        limit = self.limits.limit_bytes
        least = self._least_memory(failing)
        if least.plan.fits(limit):
            return least.plan
        what = "no plan was found that fits"
        raise least.error(NotFoundError, what, limit, self._where)

    @property
    def _where(self) -> str:
        """The mesh, for messages: proofs are about plans on this mesh."""
        return f"mesh {self.request.planner.mesh}"

    def _least_memory(self, failing: Plan | None) -> "_LeastMemory":
        """Emit the plan that takes the least memory by the account of the search."""
        recomputes = self.ways[-1]
        space = self.space(recomputes)
        limits = replace(self.limits, budget=self.budget.within(self.budget.left))
        result = search_least_memory(space, limits)
        if limits.budget.is_spent:
            self.note.note("the search for the least memory")
        plan = _smaller(failing, self.emit(result, recomputes))
        return _LeastMemory(plan, result.lower_bound, largest_shares(space, result.assignment))


@dataclass(frozen=True)
class _LeastMemory:
    """The smallest program that was found, a bound on the bytes of all, and what takes most."""

    plan: Plan
    bound: float
    shares: str

    def error(
        self, kind: type[NoPlanError], what: str, memory_limit: float, where: str
    ) -> NoPlanError:
        """Return the error that no plan fits, or was found to fit."""
        memory = self.plan.memory
        return kind(
            f"{what} {bytes_text(memory_limit)} on each device: every plan takes at least "
            f"{bytes_text(self.bound)}, the smallest program found takes {memory_text(memory)}",
            where,
            hint=self.shares,
            least_memory_bytes=memory.peak_bytes,
            least_memory_bound=self.bound,
        )


def _cheaper(one: Plan | None, other: Plan) -> Plan:
    return other if one is None or other.result.cost < one.result.cost else one


def _smaller(one: Plan | None, other: Plan) -> Plan:
    return other if one is None or other.memory.peak_bytes < one.memory.peak_bytes else one
