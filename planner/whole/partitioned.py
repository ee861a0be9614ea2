"""A program that is partitioned: what the search for its plan is given, and what it returns."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from shardwright.cost_model.buffers import MemoryUseReport
from shardwright.cost_model.pipelines.mixed import AnyCluster
from shardwright.ir.decisions import Decisions
from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh
from shardwright.passes.manager import PassManager, PassRecord
from shardwright.planner.options import CompileOptions
from shardwright.planner.whole.plan import NO_BUCKETS, Plan, fusion_text
from shardwright.search.budget_note import BudgetNote
from shardwright.search.method import SearchResult
from shardwright.search.options import Progress
from shardwright.solver.work import Budget


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
    budget : Budget
        What the search may spend.
    """

    source: Graph
    cluster: AnyCluster
    mesh: Mesh
    options: CompileOptions
    passes: PassManager
    progress: Progress | None
    budget: Budget

    def take(self, records: Iterable[PassRecord]) -> None:
        """Take the records of the plan that is emitted, and verify what was not verified yet."""
        emitting = PassManager(records=list(records))
        if not self.options.extra_passes:  # with them, every program was verified at once
            emitting.verify()
        self.passes.records += emitting.records

    def emitted(self, plan: Plan, pin_prices: Mapping[str, float] | None = None) -> Emitted:
        """Return a plan in one stage, as it is emitted, and take its records.

        Its cost is the overlapped step where that was simulated.
        """
        self.take(plan.records)
        return Emitted(
            plan.program,
            plan.program.mesh or self.mesh,
            plan.memory,
            plan.emitted.decisions,
            plan.result,
            pin_prices or {},
            fusion_text(plan.fusion),
            minimizes_step=plan.timeline is not None,
        )

    @cached_property
    def budget_note(self) -> BudgetNote:
        """Notes whether the budget ended a search."""
        return BudgetNote(self.budget)
