"""Finding a plan whose emitted program fits the memory limit.

The search counts memory from below (`search.space.memory`): every emitted program takes at least
what the search counts, so its lower bound and its proof that nothing fits hold for the limit of the
user. What it does not count, such as the buffers of a redistribution or of gradients that wait to
be reduced together, shows in the emitted program. Where that exceeds the limit, the search is
repeated with a smaller limit; the bound is that of the first search.

Small problems are searched again just below the memory of the plan before, so that every best plan
within any smaller limit is considered: a larger limit then never gives a worse plan. Large ones are
tightened by what the program exceeded, and loosened again by bisection.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from shardwright.cost_model.buffers import MemoryUseReport
from shardwright.cost_model.profile import CostProfile
from shardwright.ir.errors import InfeasibleError, NoPlanError, NotFoundError, PassError
from shardwright.ir.graph import Graph
from shardwright.ir.units import bytes_text
from shardwright.passes.manager import PassRecord
from shardwright.search.method import SearchResult
from shardwright.search.named_plan import NamedPlan
from shardwright.search.options import SearchOptions
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
    limits : SearchOptions
        The limits of its search.
    result : SearchResult
        The plan.
    program : Graph
        The emitted program.
    memory : MemoryUseReport
        Peak memory of the program on a rank.
    records : tuple of PassRecord
        What the passes recorded.
    recomputes : bool
        Whether the search decided what is recomputed.
    """

    limits: SearchOptions
    result: SearchResult
    program: Graph
    memory: MemoryUseReport
    records: tuple[PassRecord, ...]
    recomputes: bool = False

    @property
    def memory_limit(self) -> float:
        """The memory limit of its search, in bytes."""
        return self.limits.limit_bytes

    def fits(self, memory_limit: float) -> bool:
        """Return whether the program takes no more than the limit."""
        return self.memory.peak_bytes <= memory_limit


@dataclass(frozen=True)
class LeastMemory:
    """The plan that takes the least memory by the account of the search.

    Parameters
    ----------
    attempt : Attempt
        The plan and its program.
    bound : float
        Proven: no plan takes fewer bytes.
    shares : str
        The choices that take most of it.
    """

    attempt: Attempt
    bound: float
    shares: str

    def error(
        self, kind: type[NoPlanError], what: str, memory_limit: float, where: str
    ) -> NoPlanError:
        """Return the error that no plan fits, or was found to fit."""
        memory = self.attempt.memory
        return kind(
            f"{what} {bytes_text(memory_limit)} on each device: every plan takes at least "
            f"{bytes_text(self.bound)}, the smallest program found takes {memory_text(memory)}",
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
        Searches within limits and emits; raises `NoPlanError`.
    least_memory : callable
        Emits the plan that takes the least memory by the account of the search.
    fine : bool
        Whether the problem is small enough for a search at every step.
    limits : SearchOptions
        The limits of the user: the plan's program must fit, the searches may be tighter.
    where : str
        The mesh, for messages: proofs are about plans on this mesh.
    """

    attempt: Callable[[SearchOptions], Attempt]
    least_memory: Callable[[], LeastMemory]
    fine: bool
    limits: SearchOptions
    where: str

    def fit(self) -> Attempt:
        """Return the best plan found whose program fits the memory limit.

        Raises
        ------
        InfeasibleError
            If it is proven that no plan fits.
        NotFoundError
            If none was found.
        """
        memory_limit = self.limits.limit_bytes
        try:
            first = self.attempt(self.limits)
        except InfeasibleError as error:
            least = self.least_memory()
            raise least.error(InfeasibleError, "no plan fits", memory_limit, self.where) from error
        if first.fits(memory_limit):
            return first
        fitting, failing = self._tighten(first, memory_limit)
        if fitting is None:
            fitting = self._smallest(failing, memory_limit)
        if not self.fine:
            fitting = self._loosen(fitting, failing, memory_limit, first.result.lower_bound)
        return replace(fitting, result=bounded(fitting.result, first.result.lower_bound))

    def _within(self, memory_limit: float) -> Attempt:
        return self.attempt(replace(self.limits, memory_limit=memory_limit))

    def _smallest(self, failing: Attempt, memory_limit: float) -> Attempt:
        """Return the plan that takes the least memory, if it fits.

        Raises
        ------
        NotFoundError
            If it does not.
        """
        least = self.least_memory()
        if least.attempt.fits(memory_limit):
            counted = least.attempt.result.memory_bytes
            return replace(least.attempt, limits=replace(self.limits, memory_limit=counted))
        smallest = min(least.attempt, failing, key=lambda attempt: attempt.memory.peak_bytes)
        what = "no plan was found that fits"
        raise replace(least, attempt=smallest).error(NotFoundError, what, memory_limit, self.where)

    def _tighten(self, first: Attempt, memory_limit: float) -> tuple[Attempt | None, Attempt]:
        """Return the first plan that fits, by ever smaller limits, and the last that does not.

        None if there is no such plan.
        """
        failing = first
        for step in range(_FINE_STEPS if self.fine else _COARSE_STEPS):
            try:
                found = self._within(self._tighter(failing, memory_limit, step))
            except NoPlanError:
                break
            if found.fits(memory_limit):
                return found, failing
            failing = found
        return None, failing

    def _tighter(self, failing: Attempt, memory_limit: float, step: int) -> float:
        """Return the limit of the next search: less than the failing plan takes."""
        counted = failing.result.memory_bytes
        if self.fine:
            return float(np.nextafter(counted, 0.0))
        excess = failing.memory.peak_bytes - memory_limit
        return max(min(counted - excess, counted * (1 - _LEAST_STEP * 2**step)), 0.0)

    def _loosen(
        self, fitting: Attempt, failing: Attempt, memory_limit: float, bound: float
    ) -> Attempt:
        """Return a better plan that fits, by limits between those of the two plans."""
        low, high, best = fitting.memory_limit, failing.memory_limit, fitting
        for _ in range(_BISECTIONS):
            if relative_gap(best.result.cost, bound) <= max(self.limits.gap, OPTIMALITY_GAP):
                break
            try:
                found = self._within((low + high) / 2)
            except NoPlanError:  # nothing is left
                break
            if not found.fits(memory_limit):
                high = found.memory_limit
                continue
            low = found.memory_limit
            best = min(best, found, key=lambda attempt: attempt.result.cost)
        return best


def check_fits(attempt: Attempt, method: str, is_named: bool = False) -> Attempt:
    """Return the plan of a search method that ignores the limit.

    Raises
    ------
    InfeasibleError
        If its program does not fit, and the user asks for this very plan.
    NotFoundError
        If its program does not fit, and another search may find one that does.
    """
    if attempt.fits(attempt.memory_limit):
        return attempt
    kind = InfeasibleError if is_named else NotFoundError
    of = attempt.result.how if is_named else method
    hint = "search with `exact`, which plans within the limit"
    raise kind(
        f"the plan `{of}` takes {memory_text(attempt.memory)} on each device, the limit is "
        f"{bytes_text(attempt.memory_limit)}",
        hint=NamedPlan.parse(of).hint if is_named else hint,
        least_memory_bytes=attempt.memory.peak_bytes,
    )


def memory_text(memory: MemoryUseReport) -> str:
    """Return the peak memory of a program, and the kinds of tensors that take it."""
    kinds = sorted(memory.by_kind.items(), key=lambda item: -item[1])
    parts = ", ".join(f"{kind} {bytes_text(size)}" for kind, size in kinds if size)
    return f"{bytes_text(memory.peak_bytes)} ({parts})"


def bounded(result: SearchResult, bound: float) -> SearchResult:
    """Return a result with the bound of another search."""
    bound = min(bound, result.cost)
    met = relative_gap(result.cost, bound) <= OPTIMALITY_GAP
    return replace(result, lower_bound=bound, status="optimal" if met else "feasible")


def check_cost(attempt: Attempt, profile: CostProfile) -> None:
    """Refuse a program that does not cost what the search said, before gradients are fused.

    Raises
    ------
    PassError
        If it does not.
    """
    records = [record for record in attempt.records if record.name == profile.priced_after]
    emitted, result = profile.program_cost(records[0].graph), attempt.result
    if abs(emitted - result.cost) > 1e-6 * max(emitted, result.cost):
        raise PassError(
            f"the emitted program costs {emitted:.9g}, the search said {result.cost:.9g}"
        )
