"""Attempts: searches within memory limits, each with the program emitted for its plan."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from shardwright.compiler.buckets import NO_BUCKETS, Bucketed, fastest_fusion
from shardwright.compiler.fitting import Attempt, Fitting, LeastMemory, bounded, check_fits
from shardwright.compiler.rule_plans import PlanQueue, RulePlans
from shardwright.cost_model.events import Timeline
from shardwright.cost_model.memory import peak_memory
from shardwright.cost_model.mindspore.allreduce_fusion import Fusion
from shardwright.cost_model.timeline import simulate
from shardwright.ir.errors import InfeasibleError, NoPlanError, NotFoundError, TimeLimitError
from shardwright.passes.fuse_all_reduces import FuseAllReduces
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.passes.manager import PassManager
from shardwright.planner.evaluation.programs import Programs
from shardwright.planner.evaluation.work import charge_emission, charge_simulation
from shardwright.planner.option_checks import SEARCHED
from shardwright.planner.pipelines import fused
from shardwright.planner.search_request import SearchRequest
from shardwright.search.budget_note import BudgetNote
from shardwright.search.least_memory import search_least_memory
from shardwright.search.method import SearchResult
from shardwright.search.options import SearchOptions
from shardwright.search.space.memory_shares import largest_shares
from shardwright.search.space.space import SearchSpace
from shardwright.solver.solution import OPTIMALITY_GAP, relative_gap
from shardwright.solver.work import Budget

_FINE = 3_000  # options up to which every limit below is searched, where a program does not fit
_FINE_RECOMPUTING = 1_000  # the same where the search decides what is recomputed
_FITTING = "the search for plans that fit"
_SHARE = 3 / 4  # of the budget left that one search may take
_LARGE = 200  # operators of a program whose search takes some time
_FOR_RULES = 1 / 4  # of the budget left that plans built by rule may take, and are left to fit


@dataclass(frozen=True)
class Attempts:
    """Searches of one problem within a budget.

    Parameters
    ----------
    request : SearchRequest
        The problem.
    lowering : LowerRedistributions
        The pass that lowers redistributions to the paths that the search prices.
    limits : SearchOptions
        The limits of the user.
    budget : Budget
        What all searches may spend.
    recomputes : bool
        Whether the search decides what is recomputed.
    rules : RulePlans, optional
        Further candidates where memory is short.
    budget_note : BudgetNote
        Notes whether the budget ended a search.
    programs : Programs
        The programs that were emitted, to share them with searches by other weights.
    """

    request: SearchRequest
    lowering: LowerRedistributions
    limits: SearchOptions
    budget: Budget
    recomputes: bool = False
    rules: RulePlans | None = None
    budget_note: BudgetNote = field(default_factory=BudgetNote)
    programs: Programs = field(default_factory=Programs)

    def fit(self) -> Attempt:
        """Return the best plan whose program fits the memory limit.

        Raises
        ------
        NoPlanError
            If there is none, or none was found.
        """
        if not self.request.method.keeps_memory_limit:
            plan = self.request.options.named_plan
            return check_fits(self.attempt(self.limits), self.request.search, plan is not None)
        last = self._last_resort() if self._is_too_late else None
        if last is not None:
            return last
        try:
            found = self._with_time_left()._searched()
        except NotFoundError:
            other = self._offloading_alone() or next(self.by_rule(), None)
            if other is not None:
                return _better(other, other, self._known_bound())
            last = self._last_resort() if self.budget_note.is_late(self.budget, _FITTING) else None
            if last is None:
                raise
            return last
        if found.result.unlimited or self._is_near(found.result.cost, found.result.lower_bound):
            return found
        other = next(self.by_rule(found.result.cost), found)
        self.budget_note.is_late(self.budget, _FITTING)
        return _better(found, other, found.result.lower_bound)

    def _offloading_alone(self) -> Attempt | None:
        """Return a plan that offloads and recomputes nothing, where the search decides on both.

        A plan that recomputes can hide one that offloads: by the account of the search they take
        the same memory, and only the program of the latter fits.
        """
        request, options = self.request, self.request.options
        if options.offload != SEARCHED or options.recompute != SEARCHED or not request.recomputes:
            return None
        alone = replace(request, options=replace(options, recompute="none"), known=None)
        try:
            return replace(self, request=alone, rules=None).fit()
        except NoPlanError:
            return None

    @property
    def _is_too_late(self) -> bool:
        """Whether nothing is left for a search that takes some time."""
        large = len(self.request.source) > _LARGE and self.rules is not None
        return large and self.budget_note.is_late(self.budget, _FITTING)

    def _last_resort(self) -> Attempt | None:
        """Return a plan that rules build and that fits; None if there is none.

        No time is left, so the first one that fits is taken: of those that are built, or else of
        those that take little memory.
        """
        if self.rules is None:
            return None
        limit = self.limits.limit_bytes
        found = next(self.by_rule(), None)
        for plan in self.rules.thriftiest(limit) if found is None else ():
            attempt = self.emit(self.limits, plan.result)
            if attempt.fits(limit):
                found = attempt if plan.on is None else self._as_emitted(attempt)
                break
        return None if found is None else _better(found, found, 0.0)

    def _with_time_left(self) -> "Attempts":
        """Return the searches in less time, where a plan built by rule may be needed."""
        if self.rules is None or not self.rules.are_allowed:
            return self
        return replace(self, budget=self.budget.share(1 - _FOR_RULES))

    def _searched(self) -> Attempt:
        return self._fit_recomputing() if self.request.recomputes else self._fitting().fit()

    def _build_by_rule(self) -> None:
        """Build plans by rule where memory is short, before further searches take the time."""
        if self.rules is not None:
            self.rules.build(self.budget.share(_FOR_RULES))

    def by_rule(self, below: float = math.inf) -> Iterator[Attempt]:
        """Yield the plans built by rule that fit and cost less than `below`, cheapest first."""
        if self.rules is not None:
            yield from self._that_fit(self.rules.cheapest(below), late=1)

    def by_rule_fastest(
        self,
        searched: Sequence[SearchRequest],
        shortest: Callable[[], float],
        *,
        with_heuristics: bool,
    ) -> Iterator[Attempt]:
        """Yield the plans built by rule that fit and whose overlapped step may be shorter."""
        if self.rules is not None:
            queue = self.rules.fastest(searched, shortest, with_heuristics=with_heuristics)
            yield from self._that_fit(queue)

    def _that_fit(self, plans: PlanQueue, late: int = 0) -> Iterator[Attempt]:
        """Yield the plans whose programs fit, with as little recomputation as that takes.

        So many programs are emitted when the budget is spent, too: the searches may have left none.
        """
        limit = self.limits.limit_bytes
        for plan in plans:
            if plan.result.memory_bytes <= limit:
                if self.budget_note.is_late(self.budget, _FITTING):
                    if not late:
                        return
                    late -= 1
                attempt = self.emit(self.limits, plan.result)
                if attempt.fits(limit):
                    shortest = plans.below()
                    yield attempt if plan.on is None else self._as_emitted(attempt)
                    if plans.below() < shortest:  # it is the fastest so far
                        plans.add(plan.richer(limit - attempt.memory.peak_bytes))
                    continue
            plans.add(plan.thriftier(limit))

    def _as_emitted(self, attempt: Attempt) -> Attempt:
        """Return a plan with the cost of its program, which a finer mesh may lower."""
        profile = self.request.profile
        priced = next(one for one in attempt.records if one.name == profile.priced_after)
        result = replace(attempt.result, cost=profile.program_cost(priced.graph))
        return replace(attempt, result=result)

    def _known_bound(self) -> float:
        """Return a bound on all plans; 0 where none is found within the budget."""
        try:
            return self._bound_of_all()
        except NoPlanError:
            return 0.0

    def _fitting(self) -> Fitting:
        where = f"mesh {self.request.planner.mesh}"
        return Fitting(self.attempt, self.least_memory, self.is_fine, self.limits, where)

    def _fit_recomputing(self) -> Attempt:
        """Search with recomputation where memory binds, and nowhere else.

        Recomputation adds cost, so without it the optimum without a memory limit is the same.
        """
        limit = self.limits.limit_bytes
        try:
            first = self.attempt(self.limits)
        except InfeasibleError:
            return self._recomputing().fit()
        if not first.fits(limit):
            return self._fit_either()
        return first if first.result.unlimited else self._improved(first)

    def _recomputing(self) -> Fitting:
        return replace(self, recomputes=True)._fitting()

    def _fit_either(self) -> Attempt:
        """Return the better of the plans that fit with recomputation and without."""
        try:
            found = self._recomputing().fit()
        except NotFoundError as error:
            plain = self._fitted()
            if plain is None:
                raise error from None
            return _better(plain, plain, self._bound_of_all())
        if self._is_near(found.result.cost, found.result.lower_bound):
            return found
        return _better(found, self._fitted() or found, found.result.lower_bound)

    def _fitted(self) -> Attempt | None:
        """Return the best plan that fits without recomputation, if one was found."""
        try:
            return self._fitting().fit()
        except NoPlanError:
            return None

    def _improved(self, plan: Attempt) -> Attempt:
        """Return a plan that fits, or a better one with recomputation; its bound covers both."""
        bound = self._bound_of_all()
        if self._is_near(plan.result.cost, bound):
            return _better(plan, plan, bound)
        try:
            found = self._recomputing().fit()
        except NoPlanError:  # nothing is left
            return _better(plan, plan, bound)
        return _better(plan, found, max(bound, found.result.lower_bound))

    def _bound_of_all(self) -> float:
        """Return a bound on all plans, within any memory and whatever they recompute."""
        free = replace(self.limits, memory_limit=None, budget=self.budget.share(_SHARE))
        return self._solved(free).lower_bound

    def _is_near(self, cost: float, bound: float) -> bool:
        return relative_gap(cost, bound) <= max(self.limits.gap, OPTIMALITY_GAP)

    def first_probe(self) -> "Probe":
        """Search once without the memory limit; the plan may exceed it.

        Raises
        ------
        NoPlanError
            If no plan was found.
        """
        # The bound is of every plan: to recompute adds cost.
        found = self.found(replace(self.limits, memory_limit=None))
        unlimited = found.result.memory_bytes <= self.limits.limit_bytes
        return replace(found, result=replace(found.result, unlimited=unlimited))

    def probe(self, worthwhile: float = 0.0, *, is_short: bool = False) -> "Probe":
        """Search once within the limits; the program may not fit, but the bound is of every plan.

        Parameters
        ----------
        worthwhile : float
            How much higher a bound must be to be worth a search that decides what is recomputed.
        is_short : bool
            Whether memory is known to be short, and such a search needed.

        Raises
        ------
        NoPlanError
            If there is no plan by the account of the search, or none was found.
        """
        recomputing = replace(self, recomputes=True)
        if not self.request.recomputes:
            return self.found(self.limits)
        if is_short:
            return recomputing.found(self.limits)
        free = self.first_probe() if worthwhile else None
        if free is not None and free.result.unlimited:
            return free
        try:
            first = self.found(self.limits)
        except NoPlanError:
            return recomputing.found(self.limits)
        if first.result.unlimited:
            return first
        if free is not None and first.result.cost - free.result.lower_bound <= worthwhile:
            return replace(first, result=bounded(first.result, free.result.lower_bound))
        return recomputing.found(self.limits)

    @property
    def is_fine(self) -> bool:
        """Whether the problem is small enough to search every limit; see `built`."""
        return sum(self.built().problem.sizes) <= (_FINE_RECOMPUTING if self.recomputes else _FINE)

    def built(self) -> SearchSpace:
        """Return the problem that is searched.

        Raises
        ------
        NotFoundError
            If it was not built within the budget, where plans may be known without it.
        """
        try:
            return self.space
        except TimeLimitError as error:
            if self.request.is_needed:
                raise
            self.budget_note.note("building the problem")
            raise NotFoundError("nothing is left to build the problem") from error

    @property
    def space(self) -> SearchSpace:
        """The problem that is searched."""
        return self.request.recompute_space if self.recomputes else self.request.space

    def attempt(self, limits: SearchOptions) -> Attempt:
        """Search within limits and a share of the budget that is left, and emit the plan.

        Raises
        ------
        NoPlanError
            If there is none, or none was found; for tighter limits also if nothing is left.
        """
        if limits.memory_limit != self.limits.memory_limit and self.budget.is_spent:
            self.budget_note.note(_FITTING)
            raise NotFoundError("nothing is left to search within a tighter limit")
        return self.found(limits).emit()

    def found(self, limits: SearchOptions) -> "Probe":
        """Search within limits and a share of the budget that is left.

        Raises
        ------
        NoPlanError
            If there is none, or none was found.
        """
        try:
            result = self._solved(replace(limits, budget=self.budget.share(_SHARE)))
        except NoPlanError:
            self._build_by_rule()
            raise
        if not result.unlimited:
            self._build_by_rule()
        return Probe(self, limits, result)

    def _solved(self, limits: SearchOptions) -> SearchResult:
        """Search within limits, and note whether the budget ended that.

        Raises
        ------
        NoPlanError
            If there is no plan, or none was found.
        """
        method, space = self.request.method, self.built()
        try:
            result = self.request.solve(space, limits)
        except NotFoundError:
            if method.keeps_memory_limit and method.minimizes_step:  # else time does not matter
                self.budget_note.note(_FITTING)
            raise
        self.budget_note.note_end_of(result, limits)
        return result

    def with_buckets(
        self,
        attempt: Attempt,
        bound: float = 0.0,
        timeline: Timeline | None = None,
        shortest: float = math.inf,
    ) -> Bucketed:
        """Return a plan whose gradients are reduced in the fastest buckets.

        An explicit option is kept, and so is the program of the least serial step.

        Parameters
        ----------
        attempt : Attempt
            The plan, and its program as the options ask for.
        bound : float
            A lower bound of the overlapped step, or an estimate of it in the best buckets.
        timeline : Timeline, optional
            The overlapped step of the program, if it is known.
        shortest : float
            The step of another program that it must undercut.
        """
        options, limit = self.request.options, self.limits.limit_bytes
        if not self.request.simulates_step:
            return Bucketed(attempt, options.fusion, None)
        if options.fusion != NO_BUCKETS:
            return self._simulated(attempt, options.fusion, timeline)
        records = attempt.records
        position = [record.name for record in records].index(FuseAllReduces.name)
        alone = records[position].before
        cluster = self.request.cluster
        plain = None if options.rewrites_programs else timeline
        fusion, timeline = fastest_fusion(
            *(alone, cluster, limit, options.gap, bound, plain),
            is_late=lambda: self.budget_note.is_late(self.budget, "the search for buckets"),
            charge=lambda program: charge_simulation(self.budget, program),
            shortest=shortest,
        )
        if fusion != NO_BUCKETS:
            passes = PassManager(records=list(records[:position]), verify_later=self._verify_later)
            program = passes.run_all(fused(replace(options, fusion=fusion)), alone)
            memory = peak_memory(program)
            if memory.peak_bytes > limit:  # by passes of the user
                return self._simulated(attempt, NO_BUCKETS)
            done = tuple(passes.records)
            attempt = replace(attempt, program=program, memory=memory, records=done)
        if options.rewrites_programs:
            return self._simulated(attempt, fusion)
        return Bucketed(attempt, fusion, timeline)

    def _simulated(
        self, attempt: Attempt, fusion: Fusion, timeline: Timeline | None = None
    ) -> Bucketed:
        if timeline is None:
            limit = self.limits.limit_bytes
            charge_simulation(self.budget, attempt.program)
            timeline = simulate(attempt.program, self.request.cluster, limit)
        return Bucketed(attempt, fusion, timeline)

    def least_memory(self) -> LeastMemory:
        """Emit the plan that takes the least memory by the account of the search."""
        space = self.space
        limits = replace(self.limits, budget=self.budget.within(self.budget.left))
        result = search_least_memory(space, limits)
        if limits.budget.is_spent:
            self.budget_note.note("the search for the least memory")
        shares = largest_shares(space, result.assignment)
        return LeastMemory(self.emit(self.limits, result), result.lower_bound, shares)

    @property
    def _verify_later(self) -> bool:
        """Whether only the plan that is taken is verified: passes of the user are at once."""
        return not self.request.options.extra_passes

    def emit(self, limits: SearchOptions, result: SearchResult) -> Attempt:
        """Emit a plan; its program may not fit."""
        decisions = self.request.decisions(result)
        emitted = self.programs.emit(
            self.request.source, self.request.options, decisions, self.lowering
        )
        charge_emission(self.budget, emitted.records)
        return Attempt(
            limits, result, emitted.program, emitted.memory, emitted.records, self.recomputes
        )


@dataclass(frozen=True)
class Probe:
    """A search whose plan is not emitted yet: often its bound is all that matters.

    Parameters
    ----------
    attempts : Attempts
        The searches that it is one of.
    limits : SearchOptions
        Its limits.
    result : SearchResult
        The plan by the account of the search.
    """

    attempts: Attempts
    limits: SearchOptions
    result: SearchResult

    def emit(self) -> Attempt:
        """Emit the plan; its program may not fit."""
        return self.attempts.emit(self.limits, self.result)


def _better(one: Attempt, other: Attempt, bound: float) -> Attempt:
    """Return the cheaper plan with a bound on all plans."""
    best = min(one, other, key=lambda attempt: attempt.result.cost)
    return replace(best, result=bounded(best.result, bound))
