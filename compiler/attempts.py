"""Attempts: searches within memory limits, each with the program emitted for its plan."""

import math
import time
from dataclasses import dataclass, replace

from shardwright.compiler.fitting import Attempt, Fitting, LeastMemory, bounded, check_fits
from shardwright.compiler.pipelines import partitioned
from shardwright.compiler.search_request import SearchRequest
from shardwright.cost_model.memory import peak_memory
from shardwright.ir.errors import NoPlanError
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.passes.manager import PassManager
from shardwright.search.least_memory import search_least_memory
from shardwright.search.method import SearchResult
from shardwright.search.options import SearchOptions
from shardwright.search.space.memory_shares import largest_shares
from shardwright.search.space.space import SearchSpace
from shardwright.solver.solution import OPTIMALITY_GAP, relative_gap

_FINE = 3_000  # options up to which every limit below is searched, where a program does not fit
_SHARE = 3 / 4  # of the time left that one search may take


@dataclass(frozen=True)
class Attempts:
    """Searches of one problem until a deadline.

    Parameters
    ----------
    request : SearchRequest
        The problem.
    lowering : LowerRedistributions
        The pass that lowers redistributions to the paths that the search prices.
    limits : SearchOptions
        The limits of the user.
    deadline : float
        The end of all searches, by `time.perf_counter`.
    recomputes : bool
        Whether the search decides what is recomputed.
    """

    request: SearchRequest
    lowering: LowerRedistributions
    limits: SearchOptions
    deadline: float
    recomputes: bool = False

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
        return self._fit_recomputing() if self.request.recomputes else self._fitting().fit()

    def _fitting(self) -> Fitting:
        fine = sum(self.space.problem.sizes) <= _FINE
        where = f"mesh {self.request.planner.mesh}"
        return Fitting(self.attempt, self.least_memory, fine, self.limits, where)

    def _fit_recomputing(self) -> Attempt:
        """Search with recomputation where memory binds, and nowhere else.

        Recomputation adds cost, so without it the optimum without a memory limit is the same.
        """
        limit = math.inf if self.limits.memory_limit is None else self.limits.memory_limit
        try:
            first = self.attempt(self.limits)
        except NoPlanError:
            return replace(self, recomputes=True)._fitting().fit()
        if not first.fits(limit):
            return replace(self, recomputes=True)._fitting().fit()
        return first if first.result.unlimited else self._improved(first)

    def _improved(self, plan: Attempt) -> Attempt:
        """Return a plan that fits, or a better one with recomputation; its bound covers both."""
        free = replace(self.limits, memory_limit=None, time_limit=_SHARE * self._left())
        bound = self.request.solve(self.space, free).lower_bound
        best = plan
        if relative_gap(plan.result.cost, bound) > max(self.limits.gap, OPTIMALITY_GAP):
            try:
                found = replace(self, recomputes=True)._fitting().fit()
            except NoPlanError:  # no time is left
                found = plan
            else:
                bound = max(bound, found.result.lower_bound)
            best = min(found, plan, key=_cost)
        return replace(best, result=bounded(best.result, bound))

    @property
    def space(self) -> SearchSpace:
        """The problem that is searched."""
        return self.request.recompute_space if self.recomputes else self.request.space

    def attempt(self, limits: SearchOptions) -> Attempt:
        """Search within limits and a share of the time that is left, and emit the plan."""
        seconds = _SHARE * self._left()
        limits = replace(limits, time_limit=seconds)
        result = self.request.solve(self.space, limits)
        if result.seconds >= seconds:  # another machine may find another plan
            result = replace(result, how=f"{result.how}; the time limit ended the search")
        return self._emit(limits, result)

    def least_memory(self) -> LeastMemory:
        """Emit the plan that takes the least memory by the account of the search."""
        space = self.space
        result = search_least_memory(space, replace(self.limits, time_limit=self._left()))
        shares = largest_shares(space, result.assignment)
        return LeastMemory(self._emit(self.limits, result), result.lower_bound, shares)

    def _left(self) -> float:
        return max(self.deadline - time.perf_counter(), 0.0)

    def _emit(self, limits: SearchOptions, result: SearchResult) -> Attempt:
        passes = PassManager()
        decisions = self.request.decisions(result)
        pipeline = partitioned(self.request.options, decisions, self.lowering)
        program = passes.run_all(pipeline, self.request.source)
        memory = peak_memory(program)
        records = tuple(passes.records)
        return Attempt(limits, result, program, memory, records, self.recomputes)


def _cost(attempt: Attempt) -> float:
    return attempt.result.cost
