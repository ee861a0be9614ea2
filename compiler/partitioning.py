"""The plan of one configuration: a program on one mesh, with one number of micro-batches."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from shardwright.compiler.attempts import Attempts, Probe
from shardwright.compiler.buckets import (
    Bucketed,
    Candidate,
    candidate_of,
    fusion_text,
    to_be_bucketed,
)
from shardwright.compiler.fitting import Attempt, check_cost
from shardwright.compiler.limits.frontier import MemoryFrontier
from shardwright.compiler.limits.in_order import PlansInOrder
from shardwright.compiler.overlap import ROUNDS, ROUNDS_RELAXED, Overlapped, OverlapSearch
from shardwright.compiler.partitioned import Emitted, Partitioned
from shardwright.compiler.pin_prices import pin_prices
from shardwright.compiler.probes import Probed, as_unlimited, emitted_as_priced, probed
from shardwright.compiler.rule_plans import RulePlans
from shardwright.compiler.step_weights import StepWeights
from shardwright.cost_model.buffers import MemoryUseReport
from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.program_profile import Emissions
from shardwright.cost_model.weighted.intervals import ResourceWeights
from shardwright.cost_model.weighted.kinds import can_divide
from shardwright.dataflow.micro_batches import MicroBatches, micro_batches
from shardwright.ir.errors import NoPlanError
from shardwright.ir.graph import Graph
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.planner.effort import limits_on
from shardwright.planner.evaluation.programs import Programs
from shardwright.planner.evaluation.simulated_step import (
    SimulatedStep,
    in_least_memory,
    tolerance_of,
)
from shardwright.planner.evaluation.work import charge_emission, charge_simulation
from shardwright.planner.search_request import SearchRequest
from shardwright.search.budget_note import FOR_A_BOUND
from shardwright.search.options import SearchOptions
from shardwright.search.space.space import SearchSpace
from shardwright.solver.solution import OPTIMALITY_GAP
from shardwright.solver.work import Budget

_ROUGH = 2e-3  # gap of searches by weights
_ROUGHER = 5e-3  # gap of searches by weights for a plan where memory is short
_ROUGHEST = 5e-2  # the same for a bound, which prices of memory raise as far, and soon
_FOR_CANDIDATE = 1 / 8  # of the budget left that such a search may take
_RELAXED = 1 / 4  # of the budget that is kept for searches without the memory limit
_LARGE = 200  # operators of a program
_SMALL_GAP = 3  # of the gap that is allowed: a large program is not searched by rules for less


@dataclass(frozen=True)
class Partitioning(Partitioned):
    """The search for the plan of one configuration.

    Parameters
    ----------
    emissions : dict
        Emitted operators, to share them with other searches for the same program and optimizer.
    known : SearchRequest, optional
        A problem of this configuration that has been searched before.
    """

    cluster: Cluster
    emissions: Emissions = field(default_factory=dict)
    known: SearchRequest | None = None
    _programs: Programs = field(default_factory=Programs)
    _requests: dict[ResourceWeights | None, SearchRequest] = field(default_factory=dict)
    _spaces: dict[ResourceWeights | None, Mapping[str, SearchSpace]] = field(default_factory=dict)
    _searches: dict[ResourceWeights | None, Attempts] = field(default_factory=dict)
    _tried: list[Graph] = field(default_factory=list)  # whose buckets were chosen: equal programs

    @cached_property
    def limits(self) -> SearchOptions:
        """The limits of the user."""
        return limits_on(self.cluster, self.options, self.budget, self.progress)

    @cached_property
    def searching(self) -> Budget:
        """What all searches may spend; the first problem is built before, with as much at most."""
        self._seconds_of_building  # noqa: B018  # of the first look at it
        return self.budget.beyond(self.budget.seconds)

    @cached_property
    def _seconds_of_building(self) -> float:
        """The work of building the first problem."""
        begin = self.budget.spent
        with suppress(NoPlanError):  # the search says why
            self._request(self._first_weights).space  # noqa: B018
        return self.budget.spent - begin

    @property
    def _first_weights(self) -> ResourceWeights | None:
        overlaps = self._request(None).simulates_step and self._request(None).minimizes_step
        return self._weighting.of_all(self._weighting.first) if overlaps else None

    def emit(self) -> Emitted:
        """Search for the best plan that fits, and emit it."""
        attempts, request = self._serial, self._serial.request
        if request.simulates_step and request.minimizes_step:
            return self._fastest(attempts)
        found = priced(attempts, attempts.fit)
        prices = pin_prices(request, found.result, found, self.searching)
        if request.simulates_step:
            bucketed = self._of_all_layers(attempts.with_buckets(found))
            step = self._in_least_memory(bucketed, tolerance_of(self.options.gap))
            found = _by_step(bucketed.attempt, step.seconds)
            return self._emitted(replace(bucketed, attempt=found), prices, step.memory)
        return self._emitted(self._of_all_layers(attempts.with_buckets(found)), prices)

    def _fastest(self, attempts: Attempts) -> Emitted:
        """Return the plan with the least overlapped step."""
        search = self._overlap_search()
        found = search.run()
        fastest, *others = to_be_bucketed(found.candidates)
        best = self._faster(self._in_buckets(fastest, found), others, found)
        further = search.widened(found.lower_bound, best.step_seconds)
        if further is not None:
            found = further
            best = self._faster(best, to_be_bucketed(further.candidates), found)
        if not found.is_short and found.gap(best.step_seconds) > self._gap_of_rules:
            best = self._fastest_of(best, found, self._by_rule)
        frontier = MemoryFrontier(self._attempts(self._first_weights))
        best = self._fastest_of(best, found, frontier.plans)
        if found.is_short:
            best = self._fastest_of(best, found, partial(self._in_order, found))
        if not self._is_near(best, found):
            self.budget_note.is_late(self.searching, "candidates")
        if self.options.rewrites_programs:  # what they do to the step is not bounded
            found = replace(found, lower_bound=0.0)
        best = self._of_all_layers(best)
        step = self._in_least_memory(best, self._tolerance(best, found))
        result = found.result(best.attempt, step.seconds)
        best = replace(best, attempt=replace(best.attempt, result=result))
        return self._emitted(best, self._serial_pin_prices(attempts), step.memory)

    @cached_property
    def _weighting(self) -> StepWeights:
        return StepWeights(self.mesh, self.cluster, self._intervals, self.options.passes)

    def _overlap_search(self) -> OverlapSearch:
        return OverlapSearch(
            self._fit,
            self._first,
            self._probe,
            *(self._weighting, self.limits, self.searching),
            within=self._within,
            relaxed=self._relaxed,
            by_rule=lambda shortest: self._by_rule(shortest, with_heuristics=True),
            is_large=self._is_large,
            budget_note=self.budget_note,
        )

    def _of_all_layers(self, found: Bucketed) -> Bucketed:
        decisions = self._serial.request.decisions(found.attempt.result)
        whole = found.of_all_layers(self.source, self.options, decisions, self.cluster)
        charge_emission(self.budget, whole.attempt.records)
        return whole

    def _in_least_memory(self, bucketed: Bucketed, tolerance: float) -> SimulatedStep:
        assert bucketed.timeline is not None
        program = bucketed.attempt.program
        charge_simulation(self.budget, program)
        return in_least_memory(program, self.cluster, bucketed.timeline, tolerance)

    def _tolerance(self, best: Bucketed, found: Overlapped) -> float:
        """Return how much longer a step in less memory may be: a gap that is met stays met."""
        tolerance = tolerance_of(self.options.gap)
        for met in (OPTIMALITY_GAP, self.options.gap):
            if found.gap(best.step_seconds) <= met < 1:
                longest = found.lower_bound / (1 - met)
                return max(0.0, min(tolerance, longest / best.step_seconds - 1))
        return tolerance

    def _faster(
        self, best: Bucketed, candidates: Iterable[Candidate], found: Overlapped
    ) -> Bucketed:
        """Return the fastest of a plan and of candidates in their best buckets."""
        for candidate in candidates:
            if self._is_near(best, found) or self.budget_note.is_late(self.searching, "candidates"):
                break
            may_win = candidate.least_seconds < best.step_seconds * (1 - self.options.gap)
            if may_win and not any(candidate.attempt.program is one for one in self._tried):
                other = self._in_buckets(candidate, found, best.step_seconds)
                best = min(best, other, key=lambda one: one.step_seconds)
        return best

    def _in_buckets(
        self, candidate: Candidate, found: Overlapped, shortest: float = math.inf
    ) -> Bucketed:
        """Return a candidate in its fastest buckets, if these may make it faster than others."""
        self._tried.append(candidate.attempt.program)
        least = max(found.lower_bound, candidate.least_seconds)
        return self._serial.with_buckets(candidate.attempt, least, candidate.timeline, shortest)

    def _fastest_of(
        self,
        best: Bucketed,
        found: Overlapped,
        plans: Callable[[Callable[[], float]], Iterable[Attempt]],
    ) -> Bucketed:
        """Return the fastest of a plan and of those that may be faster than the shortest step."""
        if self._is_near(best, found):
            return best
        limit, steps = self.limits.limit_bytes, [best.step_seconds]
        for attempt in plans(lambda: steps[-1]):
            best = self._faster(best, [candidate_of(attempt, self.cluster, limit)], found)
            steps.append(best.step_seconds)
        return best

    @property
    def _gap_of_rules(self) -> float:
        """The gap up to which no plans are built by rule: that takes as long as the search."""
        return self.options.gap * (_SMALL_GAP if self._is_large else 1)

    @property
    def _is_large(self) -> bool:
        return len(self.source) > _LARGE

    def _is_near(self, best: Bucketed, found: Overlapped) -> bool:
        return found.gap(best.step_seconds) <= self.options.gap

    @cached_property
    def _intervals(self) -> int:
        """Number of intervals of a step that are bounded one by one."""
        micro = self._request(None).micro
        if not can_divide(self.source, micro):
            return 1
        return 2 if micro is None else 3

    def _serial_pin_prices(self, attempts: Attempts) -> Mapping[str, float]:
        """Return the prices of pins in seconds of the serial step."""
        if not self.options.pins:
            return {}
        try:
            serial = self._fit(1.0)
        except NoPlanError:  # nothing is left
            return {}
        return pin_prices(attempts.request, serial.result, serial, self.searching)

    def _attempts(self, weights: ResourceWeights | None) -> Attempts:
        """Return the searches by weights, or of the serial step; the same in every call."""
        if weights not in self._searches:
            self._searches[weights] = self._make_attempts(weights)
        return self._searches[weights]

    def _make_attempts(self, weights: ResourceWeights | None) -> Attempts:
        request, where = self._request(weights), (self.searching, self.budget_note)
        return Attempts(
            *(request, self._lowering(weights), self.limits, self.searching),
            rules=RulePlans(request, *where) if weights is None else None,
            budget_note=self.budget_note,
            programs=self._programs,
        )

    def _lowering(self, weights: ResourceWeights | None) -> LowerRedistributions:
        return LowerRedistributions(self.cluster, self.options.cost_model, weights)

    def _request(self, weights: ResourceWeights | None) -> SearchRequest:
        """Return the problem by weights: without the first ones there is no plan."""
        if weights not in self._requests:
            planner = self._lowering(weights).planner(self.mesh)
            is_first = weights is None or weights == self._first_weights
            known = self.known if self.known and self.known.weights == weights else None
            request = SearchRequest(
                *(self.source, self.cluster, planner, self.options, weights, self.emissions),
                known_micro=self._micro,
                budget=self.budget if is_first else self.searching,
                is_needed=is_first,
                prices=None if known is None else known.profile,
                known=known,
                others=self._spaces,
            )
            self._requests[weights], self._spaces[weights] = request, request.spaces
        return self._requests[weights]

    @cached_property
    def _micro(self) -> MicroBatches | None:
        passes = self.options.passes
        return None if passes == 1 else micro_batches(self.source, passes)

    def _relaxed(self) -> Overlapped | None:
        """Search without the memory limit, for a bound on every plan, with work kept for it.

        Recomputation adds cost, so the bound covers it.
        """
        budget = self.budget.beyond(max(self.searching.left, _RELAXED * self.budget.seconds))
        gap = self.limits.gap and max(self.limits.gap, _ROUGH)
        limits = replace(self.limits, memory_limit=None, gap=gap)
        emits_nothing = self._is_large and self._serial.request.knows_loads

        def relaxed(weights: ResourceWeights, _: float = 0.0, __: bool = False) -> Probed:
            attempts = replace(self._attempts(weights), budget=budget)
            _build(attempts)
            probe = attempts.found(limits)
            return probed(probe, is_large=self._is_large, attempts=lambda: [as_unlimited(probe)])

        try:
            return OverlapSearch(
                self._fit,
                relaxed,
                relaxed,
                *(self._weighting, self.limits, budget),
                rounds=ROUNDS_RELAXED if emits_nothing else ROUNDS,
                budget_note=self.budget_note,
            ).run_relaxed()
        except NoPlanError:
            self.budget_note.note(FOR_A_BOUND)
            return None

    def _within(self, weights: ResourceWeights, share: float) -> list[Probed]:
        """Search by weights within a share of the memory limit; the cheaper plan is first.

        The second search decides what is recomputed, which takes longer.
        """
        limits, attempts = self._limits_within(share), self._attempts(weights)
        limits = replace(limits, gap=max(limits.gap, _ROUGHER))
        found = []
        for recomputes in (False, True) if attempts.request.recomputes else (False,):
            budget = self.searching.share(_FOR_CANDIDATE)
            searches = replace(attempts, recomputes=recomputes, budget=budget)
            with suppress(NoPlanError):
                _build(searches)
                found.append(searches.found(limits))
        found.sort(key=lambda probe: probe.result.cost)
        return [probed(probe, is_large=self._is_large) for probe in found]

    def _by_rule(
        self, shortest: Callable[[], float], with_heuristics: bool = False
    ) -> Iterator[Attempt]:
        """Yield plans built by rule that fit and may have a shorter step."""
        searches = [one.request for weights, one in self._searches.items() if weights is not None]
        searched = [request for request in searches if request.is_built]
        queue = self._serial.by_rule_fastest(searched, shortest, with_heuristics=with_heuristics)
        for attempt in queue:
            check_cost(attempt, self._serial.request.profile)
            yield attempt

    def _in_order(self, found: Overlapped, shortest: Callable[[], float]) -> Iterator[Attempt]:
        """Yield the plans of a small problem that fit and may have a shorter step."""
        searches = self._attempts(self._weighting.of_all(found.center))
        for attempt in PlansInOrder(searches, self._serial).plans(shortest):
            check_cost(attempt, self._serial.request.profile)
            yield attempt

    def _fit(self, share: float) -> Attempt:
        """Return the plan of the least serial step within a share of the memory limit."""
        attempts = replace(self._serial, limits=self._limits_within(share))
        return priced(attempts, attempts.fit)

    def _limits_within(self, share: float) -> SearchOptions:
        limit = self.limits.memory_limit
        return self.limits if limit is None else replace(self.limits, memory_limit=share * limit)

    @property
    def _serial(self) -> Attempts:
        return self._attempts(None)

    def _first(self, weights: ResourceWeights) -> Probed:
        """Make the first search by weights."""
        attempts = self._attempts(weights)
        _build(attempts)
        probe = attempts.first_probe()
        return probed(probe, is_large=self._is_large, unlimited=probe.result.unlimited)

    def _probe(self, weights: ResourceWeights, worthwhile: float, is_short: bool) -> Probed:
        """Make one search by weights.

        A rough bound is a bound, and memory makes good ones take long.
        """
        attempts, is_large = self._attempts(weights), self._is_large
        if self.limits.gap:
            gap = max(self.limits.gap, _ROUGHEST if is_short else _ROUGH)
            attempts = replace(attempts, limits=replace(self.limits, gap=gap))
        if not is_short:
            _build(attempts)
        probe = attempts.probe(worthwhile if is_large else 0.0, is_short=is_short)
        return probed(probe, is_large=is_large, attempts=partial(self._probed, attempts, probe))

    def _probed(self, attempts: Attempts, probe: Probe) -> list[Attempt]:
        """Return the plan of a search by weights, and where it does not fit, one that does."""
        first = emitted_as_priced(probe)
        if not first.fits(self.limits.limit_bytes) and attempts.is_fine:
            with suppress(NoPlanError):
                return [first, priced(attempts, attempts.fit)]
        return [first]

    def _emitted(
        self,
        bucketed: Bucketed,
        prices: Mapping[str, float],
        memory: MemoryUseReport | None = None,
    ) -> Emitted:
        """Return a program with its memory in the overlapped step, where that is minimised."""
        attempt = bucketed.attempt
        result = self.budget_note.noted_in(attempt.result)
        result = replace(result, seconds=result.seconds + self._seconds_of_building)
        self.take(attempt.records)
        return Emitted(
            attempt.program,
            attempt.program.mesh or self.mesh,
            memory or attempt.memory,
            self._serial.request.decisions(result),
            result,
            prices,
            fusion_text(bucketed.fusion),
            minimizes_step=memory is not None,
        )


def _by_step(attempt: Attempt, step_seconds: float) -> Attempt:
    """Return a plan that was not searched, with its overlapped step for a cost."""
    result = replace(attempt.result, cost=step_seconds, lower_bound=0.0, status="feasible")
    return replace(attempt, result=result)


def priced(attempts: Attempts, search: Callable[[], Attempt]) -> Attempt:
    """Return the plan of a search, with the work of building the problem, if it costs as said.

    Raises
    ------
    NoPlanError
        If there is none, or none was found.
    """
    built = _build(attempts)
    found = search()
    check_cost(found, attempts.request.profile)
    return replace(found, result=replace(found.result, seconds=found.result.seconds + built))


def _build(attempts: Attempts) -> float:
    """Build the problem of some searches, and return the work of that; see `Attempts.built`."""
    begin = attempts.request.budget.spent
    replace(attempts, recomputes=False).built()
    return attempts.request.budget.spent - begin
