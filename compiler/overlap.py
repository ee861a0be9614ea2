"""The search for the least overlapped step: exact searches by weights of the resources.

Every plan takes at least the weighted sum of its loads, whatever the weights
(`cost_model.weighted_profile`), so the lower bound of each search bounds the overlapped step of
every plan within the memory limit. The weights that raise the bound most are found by cutting
planes: every plan that was met is a linear function of the weights, and the next search is made
where the least of these functions is highest. The plans met on the way are candidates, and the
timeline judges them.

Where intervals of the step are bounded one by one (`cost_model.weighted.intervals`), each has
weights of its own. What may run in several of them makes a plan a concave function of the weights.

References
----------
Kelley, "The cutting-plane method for solving convex programs", 1960.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from shardwright.compiler.buckets import Candidate, candidate_of
from shardwright.compiler.fitting import Attempt, bounded
from shardwright.compiler.probes import Probed
from shardwright.compiler.step_weights import StepWeights
from shardwright.cost_model.timeline import seconds_in_any_memory
from shardwright.cost_model.weighted.intervals import LEAST_WEIGHT, ResourceWeights
from shardwright.cost_model.weighted.loads import Loads, least_loads
from shardwright.ir.errors import NoPlanError, PassError
from shardwright.search.budget_note import BY_WEIGHTS, BudgetNote
from shardwright.search.method import SearchResult
from shardwright.search.options import SearchOptions
from shardwright.solver.linear_program import Cut, highest_grouped_weights
from shardwright.solver.solution import OPTIMALITY_GAP, relative_gap
from shardwright.solver.work import Budget

Floats = NDArray[np.float64]
_ROUNDING = 1e-9
_MORE_LINKS = (0.1, 0.2)  # weights of the links where the gap is wide
_WIDE = 0.02  # relative gap
_HOST = 0.05  # weight of the links to the host together, where memory is short
ROUNDS = 4  # searches by further weights
ROUNDS_RELAXED = 8  # of a large program without its memory limit: they emit nothing
_ROUNDS_WITHIN = 3  # of a large program that is short of memory: they take longer
_NO_WINDOW = 1e-3  # of its parameters: where a plan leaves less memory, nothing large runs ahead
_SHARES = (0.95, 0.85)  # of the memory limit, where it is short: the rest is for the window
_ROOM = 0.01  # relative length of a step that more memory for the window may still save
_WORTHWHILE = 0.1  # of the gap, by which another search must be able to raise the bound
_GAPS = 4  # of the relative gap that is allowed, likewise


@dataclass(frozen=True)
class Overlapped:
    """The candidates of a search for the least overlapped step, and the bound.

    Parameters
    ----------
    candidates : tuple of Candidate
        The plans that were met, fastest first.
    lower_bound : float
        Proven: no plan has a shorter overlapped step, whatever its buckets.
    searches : int
        How many searches were made.
    seconds : float
        The time they took, building the problems included.
    is_short : bool
        Whether memory was short, and plans built by rule are among the candidates.
    center : array of shape (intervals, resources)
        The weights of the best bound.
    """

    candidates: tuple[Candidate, ...]
    lower_bound: float
    searches: int
    seconds: float
    is_short: bool
    center: Floats

    def gap(self, step_seconds: float) -> float:
        """Return the relative gap of an overlapped step to the lower bound."""
        return relative_gap(step_seconds, self.lower_bound)

    def result(self, best: Attempt, step_seconds: float) -> SearchResult:
        """Return the result of a plan by its overlapped step.

        Raises
        ------
        PassError
            If the step is below the bound.
        """
        found, bound = best.result, self.lower_bound
        if step_seconds < bound * (1 - _ROUNDING):
            raise PassError(
                f"the overlapped step takes {step_seconds:.9g} s, the search said that every plan "
                f"takes at least {bound:.9g} s"
            )
        searches = "one search" if self.searches == 1 else f"{self.searches} searches"
        how = f"{found.how}, {searches} by weights of compute and links"
        return bounded(replace(found, cost=step_seconds, seconds=self.seconds, how=how), bound)


@dataclass
class OverlapSearch:
    """The searches by weights.

    Parameters
    ----------
    fit : callable
        Returns the plan of the least serial step whose program fits a share of the memory limit.
    first : callable
        Makes the first search by weights, without the memory limit; raises `NoPlanError`.
    probe : callable
        Makes a search by weights whose lower bound is of every plan; raises `NoPlanError`. Also
        gets how much higher a bound must be to be worth a longer search, and whether memory is
        known to be short.
    weighting : StepWeights
        The weights of where the plans run.
    limits : SearchOptions
        The limits of the user.
    budget : Budget
        What all searches may spend.
    within : callable, optional
        Returns searches by weights within a share of the memory limit, the one of the cheaper plan
        first; their bounds are not of every plan.
    relaxed : callable, optional
        Where memory is short, returns the search without its limit, whose lower bound is of every
        plan; None where it finds nothing within the budget.
    by_rule : callable, optional
        Where memory is short, returns plans that fit, were built by rule and may be faster than
        the shortest step that a function returns.
    is_large : bool
        Whether the plan of the least serial step is searched only where memory is short.
    rounds : int
        Number of searches by further weights at most.
    budget_note : BudgetNote
        Notes whether the budget ended a search.
    """

    fit: Callable[[float], Attempt]
    first: Callable[[ResourceWeights], Probed]
    probe: Callable[[ResourceWeights, float, bool], Probed]
    weighting: StepWeights
    limits: SearchOptions
    budget: Budget
    within: Callable[[ResourceWeights, float], Iterable[Probed]] = lambda *_: ()
    relaxed: Callable[[], Overlapped | None] = lambda: None
    by_rule: Callable[[Callable[[], float]], Iterable[Attempt]] = lambda _: ()
    is_large: bool = False
    rounds: int = ROUNDS
    budget_note: BudgetNote = field(default_factory=BudgetNote)
    found: list[Candidate] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)  # the greatest of each plan that was met
    searches: int = 0
    seconds: float = 0.0
    is_short: bool = False  # memory, by the account of the search

    def run(self) -> Overlapped:
        """Return the plans that were met, and the bound.

        Raises
        ------
        NoPlanError
            If no plan fits, or none was found.
        """
        self.center = self.weighting.first
        bound = self._first_bound()
        if self.is_short and self.is_large:
            bound = max(bound, self._bound_without_limit())
            self._meet_within(bound)
            self._meet_by_rule(bound)
        if self.found and (self._is_near(bound) or self.is_large):
            return self._raised(bound)
        self.searches += 1
        serial = self.fit(1.0)
        self._meet(serial)
        was_short, self.is_short = self.is_short and self.is_large, not serial.result.unlimited
        if self.is_short and not was_short:
            bound = max(bound, self._bound_without_limit())
            self._meet_by_rule(bound)
        if self.is_short:
            self._leave_room()
        return self._raised(bound)

    def run_relaxed(self) -> Overlapped:
        """Return the bound of searches without the memory limit, and their plans that fit it.

        Raises
        ------
        NoPlanError
            If no plan was found.
        """
        self.center = self.weighting.first
        return self._raised(self._met_first(self.first(self.weighting.of_all(self.center))))

    def _first_bound(self) -> float:
        """Search by the first weights, and return the bound if memory does not matter there."""
        begin = self.budget.spent
        try:
            first = self.first(self.weighting.of_all(self.center))
        except NoPlanError:  # the search that fits a plan says why, if plans by rule do not fit
            self.is_short = self.is_large
            return 0.0
        self.seconds += self.budget.spent - begin
        if not first.unlimited:
            self.searches += 1
            self.is_short = True
            return 0.0
        return self._met_first(first)

    def _met_first(self, first: Probed) -> float:
        self.searches += 1
        self._consider_probed(first)
        return first.lower_bound

    def _raised(self, bound: float) -> Overlapped:
        """Search by other weights as long as the bound may rise."""
        if self.is_short:
            self._weigh_host()
        rounds = _ROUNDS_WITHIN if self.is_short and self.is_large else self.rounds
        for left in reversed(range(rounds)):
            weights = self._next_weights(bound)
            if weights is None:
                break
            raised = self._searched(weights, bound, is_last=not left)
            if raised is None:
                break
            bound = raised
        return self._overlapped(bound)

    def _searched(self, weights: Floats, bound: float, *, is_last: bool) -> float | None:
        """Search by weights, and return the greater bound; None if the budget ended it."""
        self.searches += 1
        begin = self.budget.spent
        known_short = self.is_short and self.is_large
        try:
            probed = self.probe(
                self.weighting.of_all(weights), self._worthwhile(bound), known_short
            )
        except NoPlanError:  # a plan fits, so only the budget can have ended the search
            self.budget_note.note(BY_WEIGHTS)
            return None
        self.seconds += self.budget.spent - begin
        if probed.lower_bound >= bound:
            bound = probed.lower_bound
            self.center = self.center if self._is_compute(weights) else weights
        # Where memory is short and plans are known, those of such weights raise the bound alone.
        if not self._is_near(bound) and not (is_last and known_short and self.found):
            self._consider_probed(probed)
        return bound

    def widened(self, bound: float, step_seconds: float) -> Overlapped | None:
        """Search by greater weights of the links, where the gap is wide even in buckets.

        Links hardly matter to the first weights, and the bound hardly rises, but plans that
        communicate less may be faster. None where nothing is searched.

        Parameters
        ----------
        bound : float
            The bound so far.
        step_seconds : float
            The shortest step so far.
        """
        if self.is_short or not self.is_large or step_seconds <= bound * (1 + _WIDE):
            return None
        known = len(self.found)
        for links in _MORE_LINKS:
            if self._is_late:
                break
            raised = self._searched(self.weighting.equal(links), bound, is_last=False)
            if raised is None:
                break
            bound = raised
        self.found = self.found[known:]
        return self._overlapped(bound) if self.found else None

    def _meet_by_rule(self, bound: float) -> None:
        """Meet plans built by rule that fit and may be faster than all that were met."""
        if not self._is_near(bound):
            for attempt in self.by_rule(lambda: self._shortest):
                self._meet(attempt)
                if self._is_late:
                    break

    def _overlapped(self, bound: float) -> Overlapped:
        ranked = tuple(sorted(self.found, key=lambda candidate: candidate.step_seconds))
        return Overlapped(ranked, bound, self.searches, self.seconds, self.is_short, self.center)

    def _bound_without_limit(self) -> float:
        """Meet the plans of a search without the memory limit that fit, and return its bound."""
        relaxed = self.relaxed()
        if relaxed is None:
            return 0.0
        self.searches += relaxed.searches
        self.seconds += relaxed.seconds
        self.center = relaxed.center
        for candidate in relaxed.candidates:
            self._consider(candidate.attempt)
        return relaxed.lower_bound

    def _meet_within(self, bound: float) -> None:
        """Meet plans of the best weights that leave memory for the window."""
        weights = self.weighting.of_all(self.center)
        for share in _SHARES:
            if self._is_near(bound) or self._is_late:
                break
            self.searches += 1
            begin = self.budget.spent
            searched = self.within(weights, share)
            self.seconds += self.budget.spent - begin
            for probed in searched:
                self._consider_probed(probed)
                if self._is_near(bound) or self._is_late:
                    break
            if self._has_room:
                break

    @property
    def _has_room(self) -> bool:
        """Whether the fastest plan leaves all the memory for the window that matters to it."""
        if not self.found:
            return False
        fastest = min(self.found, key=lambda candidate: candidate.step_seconds)
        least = seconds_in_any_memory(fastest.attempt.program, self.weighting.cluster)
        return fastest.step_seconds <= least * (1 + _ROOM)

    def _leave_room(self) -> None:
        """Meet plans that leave memory for the window: without it, nothing overlaps."""
        for share in _SHARES:
            if self._is_late:
                break
            try:
                self._meet(self.fit(share))
            except NoPlanError:
                break

    def _meet(self, attempt: Attempt) -> None:
        self.seconds += attempt.result.seconds
        self._consider(attempt)

    def _consider(self, attempt: Attempt) -> None:
        for known in self.found:
            if known.attempt.program is attempt.program:  # its cut is known
                self.found.append(replace(known, attempt=attempt))
                return
        divided = least_loads(attempt.program, self.weighting.cluster, self.weighting.intervals)
        self._add_cut(divided)
        limit, load = self.limits.limit_bytes, float(divided.total.max())
        if attempt.fits(limit) and not (self.is_large and load >= self._shortest):
            self.found.append(candidate_of(attempt, self.weighting.cluster, limit, divided.total))

    def _consider_probed(self, probed: Probed) -> None:
        """Consider the plan of a search by weights; emit it only if it may be the fastest."""
        loads, limit = probed.loads(), self.limits.limit_bytes
        if loads is not None:
            window = limit - probed.memory_bytes
            has_window = window >= _NO_WINDOW * probed.parameter_bytes()
            least = float(loads.total.max()) if has_window else loads.without_window
            if (self.is_large and least >= self._shortest) or probed.memory_bytes > limit:
                self._add_cut(loads)
                return
        first, *others = probed.attempts()
        self._consider(first)
        for attempt in others:
            self._meet(attempt)

    def _add_cut(self, loads: Loads) -> None:
        """Add what a plan takes by any weights."""
        place = {resource: i for i, resource in enumerate(self.weighting.used)}
        self.cuts.append(
            {
                (among, tuple(place[resource] for resource in occupied)): seconds
                for (among, occupied), seconds in loads.seconds.items()
            }
        )
        self.loads.append(float(loads.total.max()))

    def _weigh_host(self) -> None:
        """Give the links to the host a weight, where memory is short: it is not free to offload."""
        hosts = self.weighting.hosts
        if hosts:
            self.center *= 1 - _HOST
            self.center[:, -hosts:] = _HOST / hosts

    def _next_weights(self, bound: float) -> Floats | None:
        """Return the weights by which the bound may rise; None where it is near enough.

        The weights of the highest point of the cuts can be extreme, and the plan that is best by
        them useless: the search is made between them and the weights of the best bound so far. Only
        the compute stream alone is taken as it is, for then the links hardly matter, unless memory
        is short: what takes no time there would be anything that takes memory.
        """
        if self._is_near(bound) or self._is_late:
            return None
        step = self._least_step(bound)
        height, weights = highest_grouped_weights(
            self.cuts, self.weighting.intervals, len(self.weighting.used)
        )
        if min(height, step) - bound <= self._worthwhile(bound):
            return None
        extreme = self._is_compute(weights) and not self.is_short
        return weights if extreme else (weights + self.center) / 2

    def _least_step(self, bound: float) -> float:
        found = [candidate.least_seconds for candidate in self.found]
        return max(bound, min(found or self.loads, default=math.inf))

    def _worthwhile(self, bound: float) -> float:
        """Return how much higher a bound must be to be worth a search."""
        gap = self._least_step(bound) - bound
        return max(_WORTHWHILE * gap, _GAPS * self.limits.gap * bound)

    @property
    def _is_late(self) -> bool:
        return self.budget_note.is_late(self.budget, BY_WEIGHTS)

    @property
    def _shortest(self) -> float:
        return min((candidate.step_seconds for candidate in self.found), default=math.inf)

    def _is_near(self, bound: float) -> bool:
        return relative_gap(self._shortest, bound) <= max(self.limits.gap, OPTIMALITY_GAP)

    def _is_compute(self, weights: Floats) -> bool:
        return bool(weights[:, 0].min() > 1 - LEAST_WEIGHT)
