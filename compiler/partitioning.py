"""The plan of one configuration: a program on one mesh, with one number of micro-batches."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from shardwright.compiler.attempts import Attempts, Probe
from shardwright.compiler.buckets import (
    NO_BUCKETS,
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
from shardwright.compiler.pin_prices import pin_prices
from shardwright.compiler.probes import Probed, as_unlimited, emitted_as_priced, probed
from shardwright.compiler.rule_plans import RulePlans
from shardwright.compiler.stages.evaluation import SimulatedStep, in_least_memory, tolerance_of
from shardwright.cost_model.buffers import MemoryUseReport
from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.pipelines.mixed import AnyCluster
from shardwright.cost_model.program_profile import Emissions
from shardwright.cost_model.weighted.intervals import ResourceWeights
from shardwright.cost_model.weighted.kinds import can_divide
from shardwright.dataflow.micro_batches import MicroBatches, micro_batches
from shardwright.ir.decisions import Decisions
from shardwright.ir.errors import NoPlanError
from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.passes.manager import PassManager
from shardwright.planner.evaluation.programs import Programs
from shardwright.planner.options import CompileOptions
from shardwright.planner.search_request import SearchRequest
from shardwright.search.method import SearchResult
from shardwright.search.options import Progress, SearchOptions
from shardwright.search.time_note import FOR_A_BOUND, TimeNote
from shardwright.solver.solution import OPTIMALITY_GAP

_ROUGH = 2e-3  # gap of searches by weights
_ROUGHER = 5e-3  # gap of searches by weights for a plan where memory is short
_ROUGHEST = 5e-2  # the same for a bound, which prices of memory raise as far, and soon
_FOR_CANDIDATE = 1 / 8  # of the time left that such a search may take
_RELAXED = 1 / 4  # of the time limit that is kept for searches without the memory limit
_LARGE = 200  # operators of a program
_SMALL_GAP = 3  # of the gap that is allowed: a large program is not searched by rules for less


@dataclass(frozen=True)
class Emitted:
    """The program of a plan, with its costs.

    Parameters
    ----------
    program : Graph
        The training step that every rank runs.
    mesh : Mesh
        The ranks.
    memory : MemoryUseReport
        The peak memory of a rank.
    decisions, result : Decisions and SearchResult, or None
        What the search decided, with its cost and lower bound.
    pin_prices : mapping of str to float
        The price of each pin, in the unit of the profile.
    buckets : str
        How gradients are reduced together, in words.
    minimizes_step : bool
        Whether the cost of the result is the overlapped step.
    """

    program: Graph
    mesh: Mesh
    memory: MemoryUseReport
    decisions: Decisions | None = None
    result: SearchResult | None = None
    pin_prices: Mapping[str, float] = field(default_factory=dict)
    buckets: str = fusion_text(NO_BUCKETS)
    minimizes_step: bool = False


@dataclass(frozen=True)
class Partitioned:
    """A program that is partitioned on one mesh.

    Parameters
    ----------
    source : Graph
        The whole program, in canonical form.
    cluster, mesh : Cluster or MixedCluster, Mesh
        Where it runs; with stages the mesh is that of one stage.
    options : CompileOptions
        How to compile; the number of micro-batches is given.
    passes : PassManager
        Gets the records of the passes of the plan that is taken.
    progress : callable or None
        Follows the search.
    """

    source: Graph
    cluster: AnyCluster
    mesh: Mesh
    options: CompileOptions
    passes: PassManager
    progress: Progress | None


@dataclass(frozen=True)
class Partitioning(Partitioned):
    """The search for the plan of one configuration.

    Parameters
    ----------
    emissions : dict
        Emitted operators, to share them with other searches for the same program and optimizer.
    known : SearchRequest, optional
        A problem of this configuration that has been searched before.
    time_note : TimeNote
        Notes whether the time limit ended a search.
    """

    cluster: Cluster
    emissions: Emissions = field(default_factory=dict)
    known: SearchRequest | None = None
    time_note: TimeNote = field(default_factory=TimeNote)
    _programs: Programs = field(default_factory=Programs)
    _requests: dict[ResourceWeights | None, SearchRequest] = field(default_factory=dict)
    _searches: dict[ResourceWeights | None, Attempts] = field(default_factory=dict)
    _tried: list[Graph] = field(default_factory=list)  # whose buckets were chosen: equal programs

    @cached_property
    def limits(self) -> SearchOptions:
        """The limits of the user."""
        return self.options.limits_on(self.cluster, self.progress)

    @cached_property
    def deadline(self) -> float:
        """The end of all searches; the first problem is built before, in as much time at most."""
        self._seconds_of_building  # noqa: B018  # of the first look at it
        return time.perf_counter() + self.options.time_limit

    @cached_property
    def _seconds_of_building(self) -> float:
        """The time that building the first problem took."""
        begin = time.perf_counter()
        with suppress(NoPlanError):  # the search says why
            self._request(self._first_weights).space  # noqa: B018
        return time.perf_counter() - begin

    @property
    def _first_weights(self) -> ResourceWeights | None:
        overlaps = self._request(None).simulates_step and self._request(None).minimizes_step
        return self._overlap_search.first_weights if overlaps else None

    def emit(self) -> Emitted:
        """Search for the best plan that fits, and emit it."""
        attempts, request = self._serial, self._serial.request
        if request.simulates_step and request.minimizes_step:
            return self._fastest(attempts)
        found = priced(attempts, attempts.fit)
        prices = pin_prices(request, found.result, found, self.deadline)
        if request.simulates_step:
            bucketed = self._of_all_layers(attempts.with_buckets(found))
            step = self._in_least_memory(bucketed, tolerance_of(self.options.gap))
            found = _by_step(bucketed.attempt, step.seconds)
            return self._emitted(replace(bucketed, attempt=found), prices, step.memory)
        return self._emitted(self._of_all_layers(attempts.with_buckets(found)), prices)

    def _fastest(self, attempts: Attempts) -> Emitted:
        """Return the plan with the least overlapped step."""
        search = self._overlap_search
        search.deadline = self.deadline
        found = search.run()
        fastest, *others = to_be_bucketed(found.candidates)
        best = self._faster(self._in_buckets(fastest, found), others, found)
        further = search.widened(found.lower_bound, best.step_seconds)
        if further is not None:
            found = further
            best = self._faster(best, to_be_bucketed(further.candidates), found)
        if not found.is_short and found.gap(best.step_seconds) > self._gap_of_rules:
            best = self._fastest_of(best, found, self._by_rule)
        frontier = MemoryFrontier(self._attempts(search.first_weights))
        best = self._fastest_of(best, found, frontier.plans)
        if found.is_short:
            best = self._fastest_of(best, found, partial(self._in_order, found))
        if not self._is_near(best, found):
            self.time_note.is_late(self.deadline, "candidates")
        if self.options.rewrites_programs:  # what they do to the step is not bounded
            found = replace(found, lower_bound=0.0)
        best = self._of_all_layers(best)
        step = self._in_least_memory(best, self._tolerance(best, found))
        result = found.result(best.attempt, step.seconds)
        best = replace(best, attempt=replace(best.attempt, result=result))
        return self._emitted(best, self._serial_pin_prices(attempts), step.memory)

    @cached_property
    def _overlap_search(self) -> OverlapSearch:
        return OverlapSearch(
            self._fit,
            self._first,
            self._probe,
            *(self.mesh, self.cluster, self.limits, math.inf),
            within=self._within,
            relaxed=self._relaxed,
            by_rule=lambda shortest: self._by_rule(shortest, with_heuristics=True),
            is_large=self._is_large,
            intervals=self._intervals,
            passes=self.options.passes,
            time_note=self.time_note,
        )

    def _of_all_layers(self, found: Bucketed) -> Bucketed:
        decisions = self._serial.request.decisions(found.attempt.result)
        return found.of_all_layers(self.source, self.options, decisions, self.cluster)

    def _in_least_memory(self, bucketed: Bucketed, tolerance: float) -> SimulatedStep:
        assert bucketed.timeline is not None
        program = bucketed.attempt.program
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
            if self._is_near(best, found) or self.time_note.is_late(self.deadline, "candidates"):
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
        except NoPlanError:  # no time is left
            return {}
        return pin_prices(attempts.request, serial.result, serial, self.deadline)

    def _attempts(self, weights: ResourceWeights | None) -> Attempts:
        """Return the searches by weights, or of the serial step; the same in every call."""
        if weights not in self._searches:
            self._searches[weights] = self._make_attempts(weights)
        return self._searches[weights]

    def _make_attempts(self, weights: ResourceWeights | None) -> Attempts:
        lowering = LowerRedistributions(self.cluster, self.options.cost_model, weights)
        request, note = self._request(weights), self.time_note
        return Attempts(
            *(request, lowering, self.limits, self.deadline),
            rules=RulePlans(request, self.deadline, note) if weights is None else None,
            time_note=note,
            programs=self._programs,
        )

    def _request(self, weights: ResourceWeights | None) -> SearchRequest:
        """Return the problem by weights: without the first ones there is no plan."""
        if self.known is not None and self.known.weights == weights:
            return self.known
        if weights not in self._requests:
            lowering = LowerRedistributions(self.cluster, self.options.cost_model, weights)
            is_first = weights is None or weights == self._first_weights
            self._requests[weights] = SearchRequest(
                *(self.source, self.cluster, lowering.planner(self.mesh), self.options, weights),
                self.emissions,
                known_micro=self._micro,
                deadline=math.inf if is_first else self.deadline,
                others=self._requests,
            )
        return self._requests[weights]

    @cached_property
    def _micro(self) -> MicroBatches | None:
        passes = self.options.passes
        return None if passes == 1 else micro_batches(self.source, passes)

    def _relaxed(self) -> Overlapped | None:
        """Search without the memory limit, for a bound on every plan, in time kept for it.

        Recomputation adds cost, so the bound covers it.
        """
        deadline = max(self.deadline, time.perf_counter() + _RELAXED * self.options.time_limit)
        limits = replace(self.limits, memory_limit=None)
        limits = replace(limits, gap=limits.gap and max(limits.gap, _ROUGH))
        emits_nothing = self._is_large and self._serial.request.knows_loads

        def relaxed(weights: ResourceWeights, _: float = 0.0, __: bool = False) -> Probed:
            attempts = replace(self._attempts(weights), deadline=deadline)
            _build(attempts)
            probe = attempts.found(limits)
            return probed(probe, is_large=self._is_large, attempts=lambda: [as_unlimited(probe)])

        try:
            return OverlapSearch(
                self._fit,
                relaxed,
                relaxed,
                *(self.mesh, self.cluster, self.limits, deadline),
                intervals=self._intervals,
                passes=self.options.passes,
                rounds=ROUNDS_RELAXED if emits_nothing else ROUNDS,
                time_note=self.time_note,
            ).run_relaxed()
        except NoPlanError:
            self.time_note.note(FOR_A_BOUND)
            return None

    def _within(self, weights: ResourceWeights, share: float) -> list[Probed]:
        """Search by weights within a share of the memory limit; the cheaper plan is first.

        The second search decides what is recomputed, which takes longer.
        """
        limits, attempts = self._limits_within(share), self._attempts(weights)
        limits = replace(limits, gap=max(limits.gap, _ROUGHER))
        found = []
        for recomputes in (False, True) if attempts.request.recomputes else (False,):
            now = time.perf_counter()
            end = now + _FOR_CANDIDATE * max(self.deadline - now, 0.0)
            searches = replace(attempts, recomputes=recomputes, deadline=end)
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
        searches = self._attempts(self._overlap_search.as_weights(found.center))
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
        plans = partial(self._probed, attempts, probe)
        return probed(probe, is_large=is_large, attempts=plans)

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
        result = self.time_note.noted_in(attempt.result, self.options.time_limit)
        result = replace(result, seconds=result.seconds + self._seconds_of_building)
        emitting = PassManager(records=list(attempt.records))
        if not self.options.extra_passes:
            emitting.verify()
        self.passes.records += emitting.records
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
    """Return the plan of a search, with the time of building the problem, if it costs as said.

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
    """Build the problem of some searches, and return how long that took; see `Attempts.built`."""
    begin = time.perf_counter()
    replace(attempts, recomputes=False).built()
    return time.perf_counter() - begin
