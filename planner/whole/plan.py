"""A plan of a program as one block, from the search to the answer."""

from dataclasses import dataclass, replace
from math import inf

from shardwright.cost_model.buffers import MemoryUseReport
from shardwright.cost_model.events import Timeline
from shardwright.cost_model.mindspore.allreduce_fusion import Fusion, FusionSettings
from shardwright.cost_model.profile import CostProfile
from shardwright.ir.errors import InfeasibleError, NotFoundError, PassError
from shardwright.ir.graph import Graph
from shardwright.ir.rounding import OF_SEARCH
from shardwright.ir.units import bytes_text
from shardwright.passes.manager import PassRecord
from shardwright.planner.evaluation.programs import EmittedPlan
from shardwright.search.method import SearchResult
from shardwright.search.named_plan import NamedPlan
from shardwright.search.options import SearchOptions
from shardwright.solver.solution import OPTIMALITY_GAP, relative_gap

NO_BUCKETS = FusionSettings()


@dataclass(frozen=True)
class Plan:
    """A plan with the program that was emitted for it.

    Parameters
    ----------
    result : SearchResult
        What the search decided, with its cost and bound.
    emitted : EmittedPlan
        The program, and the memory that it takes.
    limits : SearchOptions
        The limits of its search.
    recomputes : bool
        Whether the search decided what is recomputed.
    fusion : FusionSettings or float
        How gradients are reduced together.
    timeline : Timeline or None
        The overlapped step within the memory limit, once it was simulated.
    """

    result: SearchResult
    emitted: EmittedPlan
    limits: SearchOptions
    recomputes: bool = False
    fusion: Fusion = NO_BUCKETS
    timeline: Timeline | None = None

    @property
    def program(self) -> Graph:
        """The training step of a rank."""
        return self.emitted.program

    @property
    def memory(self) -> MemoryUseReport:
        """The peak memory of a rank."""
        return self.emitted.memory

    @property
    def records(self) -> tuple[PassRecord, ...]:
        """What the passes recorded."""
        return self.emitted.records

    @property
    def step_seconds(self) -> float:
        """The overlapped step; infinite where it was not simulated."""
        return inf if self.timeline is None else self.timeline.step_seconds

    def fits(self, memory_limit: float) -> bool:
        """Return whether the program takes no more than the limit."""
        return self.memory.peak_bytes <= memory_limit

    def with_bound(self, bound: float) -> "Plan":
        """Return the plan with the bound of another search."""
        return replace(self, result=bounded(self.result, bound))


def bounded(result: SearchResult, bound: float) -> SearchResult:
    """Return a result with the bound of another search."""
    bound = min(bound, result.cost)
    met = relative_gap(result.cost, bound) <= OPTIMALITY_GAP
    return replace(result, lower_bound=bound, status="optimal" if met else "feasible")


def is_near(cost: float, bound: float, gap: float) -> bool:
    """Return whether a cost is as near to a bound as is asked for."""
    return relative_gap(cost, bound) <= max(gap, OPTIMALITY_GAP)


def check_cost(plan: Plan, profile: CostProfile) -> None:
    """Refuse a program that does not cost what the search said, before gradients are fused.

    Raises
    ------
    PassError
        If it does not.
    """
    records = [record for record in plan.records if record.name == profile.priced_after]
    emitted, result = profile.program_cost(records[0].graph), plan.result
    if abs(emitted - result.cost) > OF_SEARCH * max(emitted, result.cost):
        raise PassError(
            f"the emitted program costs {emitted:.9g}, the search said {result.cost:.9g}"
        )


def check_fits(plan: Plan, method: str, is_named: bool = False) -> Plan:
    """Return the plan of a search method that ignores the limit.

    Raises
    ------
    InfeasibleError
        If its program does not fit, and the user asks for this very plan.
    NotFoundError
        If its program does not fit, and another search may find one that does.
    """
    if plan.fits(plan.limits.limit_bytes):
        return plan
    kind = InfeasibleError if is_named else NotFoundError
    of = plan.result.how if is_named else method
    hint = "search with `exact`, which plans within the limit"
    raise kind(
        f"the plan `{of}` takes {memory_text(plan.memory)} on each device, the limit is "
        f"{bytes_text(plan.limits.limit_bytes)}",
        hint=NamedPlan.parse(of).hint if is_named else hint,
        least_memory_bytes=plan.memory.peak_bytes,
    )


def memory_text(memory: MemoryUseReport) -> str:
    """Return the peak memory of a program, and the kinds of tensors that take it."""
    kinds = sorted(memory.by_kind.items(), key=lambda item: -item[1])
    parts = ", ".join(f"{kind} {bytes_text(size)}" for kind, size in kinds if size)
    return f"{bytes_text(memory.peak_bytes)} ({parts})"


def fusion_text(fusion: Fusion) -> str:
    """Return how gradients are bucketed, in words."""
    if isinstance(fusion, tuple):
        return f"buckets of the parameters before {', '.join(map(str, fusion))}, and the others"
    if not isinstance(fusion, FusionSettings):
        return f"buckets of {fusion:g} MB"
    if fusion.algorithm == 0:
        return "each gradient alone"
    return f"buckets by MindSpore's algorithm {fusion.algorithm}"
