"""Drafts of one stage: a plan that fits, found by one search, without a bound.

Of a large problem, as on a mesh of three axes, operators keep the strategies of the best plan
without a memory limit, which elimination finds soon; what is recomputed, regathered and split in
storage is searched (`planner.fronts.narrow`).
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile

from shardwright.compiler.attempts import Attempts, Probe
from shardwright.compiler.buckets import Bucketed
from shardwright.compiler.fitting import Attempt, bounded
from shardwright.compiler.partitioning import Emitted, Partitioning, priced
from shardwright.compiler.stages.evaluation import tolerance_of
from shardwright.cost_model.timeline import simulate
from shardwright.cost_model.weighted.intervals import ResourceWeights
from shardwright.ir.errors import NoPlanError, NotFoundError
from shardwright.planner.fronts.narrow import narrowed
from shardwright.search.options import SearchOptions

_SHARES = (0.95, 0.85, 0.7)  # of the memory limit: the rest is for the window
_CLOSER = (0.97, 0.93, *_SHARES[1:])  # the same, where a large problem is searched in a small space
_SIZE = 150_000  # options, above which operators keep their strategies
_OF_TIME = 1 / 2  # of the time left that one search may take
_GAP = 2e-2  # of a search
_CLOSE = 2e-3  # of one in a small space


@dataclass(frozen=True)
class Drafting(Partitioning):
    """The search for a draft of one configuration."""

    def draft(self) -> Emitted:
        """Emit the first plan that fits, of the weights by which the search begins.

        Raises
        ------
        NotFoundError
            If none was found that fits.
        """
        limit = self.limits.limit_bytes
        found = next((one for one in self._drafts() if one.fits(limit)), None)
        if found is None:
            raise NotFoundError("no draft fits within the memory limit", hint="allow more time")
        if not self._serial.request.simulates_step:
            found = replace(found, result=bounded(found.result, 0.0))
            return self._emitted(self._serial.with_buckets(found), {})
        timeline = simulate(found.program, self.cluster, limit)
        bucketed = Bucketed(found, self.options.fusion, timeline)
        step = self._in_least_memory(bucketed, tolerance_of(self.options.gap))
        result = replace(found.result, cost=step.seconds, lower_bound=0.0, status="feasible")
        best = replace(bucketed, attempt=replace(found, result=result))
        return self._emitted(best, {}, step.memory)

    def _drafts(self) -> Iterator[Attempt]:
        """Yield plans that leave ever more memory for the window; at last, some that recompute."""
        overlaps = self._serial.request.simulates_step
        weights = self._overlap_search.first_weights if overlaps else None
        attempts = self._attempts(weights)
        request = attempts.request
        if request.recomputes and sum(request.space.problem.sizes) > _SIZE:
            yield from self._near_unlimited(attempts)
            return
        for recomputes in (False, True) if request.recomputes else (False,):
            drafted = map(partial(self._drafted, weights, recomputes), _SHARES)
            yield from takewhile(lambda one: one is not None, drafted)

    def _near_unlimited(self, attempts: Attempts) -> Iterator[Attempt]:
        """Yield plans whose operators have the strategies of the best plan without a limit."""
        request = attempts.request
        limits = replace(self._limits_in(_OF_TIME), memory_limit=None, gap=_CLOSE)
        free = request.solve(request.space, limits)
        if free.memory_bytes <= _SHARES[0] * self.limits.limit_bytes:
            yield priced(attempts, Probe(attempts, limits, free).emit)
            return
        space = narrowed(request.recompute_space, request.planner, free.decisions.strategies)
        searches = replace(attempts, recomputes=True)
        for share in _CLOSER:
            limits = replace(self._limits_within(share), gap=max(self.limits.gap, _CLOSE))
            limits = replace(limits, time_limit=self._limits_in(_OF_TIME).time_limit)
            try:
                found = request.solve(space, limits)
            except NoPlanError:
                return
            yield priced(attempts, Probe(searches, limits, found).emit)

    def _limits_in(self, share: float) -> SearchOptions:
        """Return the limits of a search in a share of the time that is left."""
        left = max(self.deadline - time.perf_counter(), 0.0)
        return replace(self.limits, time_limit=share * left)

    def _drafted(
        self, weights: ResourceWeights | None, recomputes: bool, share: float
    ) -> Attempt | None:
        """Return a plan within a share of the memory limit; None if none was found."""
        now = time.perf_counter()
        limits = replace(self._limits_within(share), gap=max(self.limits.gap, _GAP))
        end = now + _OF_TIME * max(self.deadline - now, 0.0)
        searches = replace(self._attempts(weights), recomputes=recomputes, deadline=end)
        try:
            return priced(searches, partial(searches.attempt, limits))
        except NoPlanError:
            return None
