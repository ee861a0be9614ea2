"""Finding a plan whose emitted program fits the memory limit.

The search counts memory from below (`space_memory`): no emitted program takes less than it says. So
its lower bound and its proof that nothing fits hold for the limit that the user gave. What it does
not count, such as the buffers of a redistribution or of gradients that wait to be reduced
together, shows in the emitted program. Where that exceeds the limit, the search is repeated within
less memory; the bound stays that of the first search.

Small problems are searched again just below the memory of the plan before, so that every best plan
within any smaller limit is considered: a larger limit then never gives a worse plan. Large ones are
tightened by what the program exceeded, and loosened again by bisection.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from shardwright.cost_model.memory import MemoryUseReport
from shardwright.ir.decisions import Decisions
from shardwright.ir.errors import InfeasibleError, NoPlanError, NotFoundError
from shardwright.ir.graph import Graph
from shardwright.ir.units import bytes_text
from shardwright.passes.manager import PassRecord
from shardwright.search.driver import SearchMode, SearchResult
from shardwright.solver.solution import OPTIMALITY_GAP, relative_gap

_FINE_STEPS = 400
_COARSE_STEPS = 8
_LEAST_STEP = 1 / 400  # least relative tightening of a large problem, doubled every step
_BISECTIONS = 4


@dataclass(frozen=True)
class Attempt:
    """A plan with the program emitted for it.

    Parameters
    ----------
    within : float
        Bytes within which it was searched.
    result, decisions
        What the search says and decides.
    program : Graph
        The emitted program.
    memory : MemoryUseReport
        What the program takes on a rank.
    records : tuple of PassRecord
        What the passes left on the way.
    """

    within: float
    result: SearchResult
    decisions: Decisions
    program: Graph
    memory: MemoryUseReport
    records: tuple[PassRecord, ...]


@dataclass(frozen=True)
class Leanest:
    """The plan that takes the least memory by the search's account.

    Parameters
    ----------
    attempt : Attempt
        The plan and its program.
    bound : float
        Proven: no plan takes fewer bytes.
    shares : str
        What takes most of it.
    """

    attempt: Attempt
    bound: float
    shares: str

    def error(self, kind: type[NoPlanError], what: str, limit: float, where: str) -> NoPlanError:
        """Return the error that no plan fits, or was found to fit."""
        memory = self.attempt.memory
        return kind(
            f"{what} {bytes_text(limit)} on each device: every plan takes at least "
            f"{bytes_text(self.bound)}, the leanest program found takes {memory_text(memory)}",
            where,
            hint=self.shares,
            least_memory_bytes=memory.peak_bytes,
            least_memory_bound=self.bound,
        )


@dataclass(frozen=True)
class Fitting:
    """The search for a plan that fits.

    Parameters
    ----------
    attempt : callable
        Searches within so many bytes and emits; raises `NoPlanError`.
    leanest : callable
        Emits the plan that takes the least memory by the search's account.
    fine : bool
        Whether the problem is small enough for a search at every step.
    gap : float
        The relative gap at which a plan is good enough.
    where : str
        The mesh, for messages: what is proven is proven of its plans.
    """

    attempt: Callable[[float], Attempt]
    leanest: Callable[[], Leanest]
    fine: bool
    gap: float
    where: str

    def within(self, limit: float) -> Attempt:
        """Return the best plan found whose program takes no more than `limit` bytes.

        Raises
        ------
        InfeasibleError
            If it is proven that no plan fits.
        NotFoundError
            If none was found.
        """
        try:
            first = self.attempt(limit)
        except InfeasibleError as error:
            least = self.leanest()
            raise least.error(InfeasibleError, "no plan fits", limit, self.where) from error
        if first.memory.peak_bytes <= limit:
            return first
        fitting, failing = self._tighten(first, limit)
        if fitting is None:
            least = self.leanest()
            fitting = least.attempt
            if fitting.memory.peak_bytes > limit:
                least = replace(least, attempt=min(fitting, failing, key=_peak))
                raise least.error(NotFoundError, "no plan was found that fits", limit, self.where)
        if not self.fine:
            fitting = self._loosen(fitting, failing, limit, first.result.lower_bound)
        return replace(fitting, result=_bounded(fitting.result, first.result.lower_bound))

    def _tighten(self, first: Attempt, limit: float) -> tuple[Attempt | None, Attempt]:
        """Return the first plan that fits, searching within ever less, and the last that does not.

        None if there is no such plan.
        """
        failing = first
        for step in range(_FINE_STEPS if self.fine else _COARSE_STEPS):
            try:
                found = self.attempt(self._less(failing, limit, step))
            except NoPlanError:
                break
            if found.memory.peak_bytes <= limit:
                return found, failing
            failing = found
        return None, failing

    def _less(self, failing: Attempt, limit: float, step: int) -> float:
        counted = failing.result.memory_bytes
        if self.fine:
            return float(np.nextafter(counted, 0.0))
        excess = failing.memory.peak_bytes - limit
        return max(min(counted - excess, counted * (1 - _LEAST_STEP * 2**step)), 0.0)

    def _loosen(self, fitting: Attempt, failing: Attempt, limit: float, bound: float) -> Attempt:
        """Return a better plan that fits, from between one that fits and one that does not."""
        low, high, best = fitting.within, failing.within, fitting
        for _ in range(_BISECTIONS):
            if relative_gap(best.result.cost, bound) <= max(self.gap, OPTIMALITY_GAP):
                break
            try:
                found = self.attempt((low + high) / 2)
            except NoPlanError:  # no time is left
                break
            if found.memory.peak_bytes > limit:
                high = found.within
                continue
            low = found.within
            best = min(best, found, key=lambda attempt: attempt.result.cost)
        return best


def check_fits(attempt: Attempt, limit: float, mode: SearchMode) -> Attempt:
    """Return the plan of a search that does not see the limit.

    Raises
    ------
    NotFoundError
        If its program does not fit.
    """
    if attempt.memory.peak_bytes <= limit:
        return attempt
    raise NotFoundError(
        f"the plan of `{mode}` takes {memory_text(attempt.memory)} on each device, the limit is "
        f"{bytes_text(limit)}",
        hint="search with `exact`, which plans within the limit",
        least_memory_bytes=attempt.memory.peak_bytes,
    )


def memory_text(memory: MemoryUseReport) -> str:
    """Return the peak of a program, and what kinds of tensors take it."""
    kinds = sorted(memory.by_kind.items(), key=lambda item: -item[1])
    parts = ", ".join(f"{kind} {bytes_text(size)}" for kind, size in kinds if size)
    return f"{bytes_text(memory.peak_bytes)} ({parts})"


def _peak(attempt: Attempt) -> float:
    return attempt.memory.peak_bytes


def _bounded(result: SearchResult, bound: float) -> SearchResult:
    """Return a result with the bound of another search."""
    bound = min(bound, result.cost)
    met = relative_gap(result.cost, bound) <= OPTIMALITY_GAP
    return replace(result, lower_bound=bound, status="optimal" if met else "feasible")
