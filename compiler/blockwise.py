"""The plan of a program of repeated blocks in one stage, put together from plans of its blocks."""

from dataclasses import dataclass, replace
from math import inf

from shardwright.compiler.attempts import Attempts
from shardwright.compiler.buckets import fusion_text
from shardwright.compiler.fitting import Attempt
from shardwright.compiler.partitioned import Emitted, Partitioned
from shardwright.cost_model.cluster import Cluster
from shardwright.dataflow.schedules import make_schedule
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.planner.choice.stages import StagedBlocks
from shardwright.planner.choice.steps import StepSearch
from shardwright.planner.effort import limits_on
from shardwright.planner.evaluation.simulated_step import in_least_memory, tolerance_of
from shardwright.planner.evaluation.work import charge_emission, charge_simulation
from shardwright.planner.fronts.site import Site
from shardwright.planner.search_request import SearchRequest
from shardwright.search.method import SearchResult


@dataclass(frozen=True)
class BlockwisePlan(Partitioned):
    """The plan whose blocks have plans of their fronts (`planner.choice.steps`).

    Parameters
    ----------
    below : float
        Seconds that the step must undercut to be of use.
    """

    cluster: Cluster
    below: float = inf

    def emit(self) -> Emitted:
        """Emit the plan of the shortest step that was found, without a bound.

        Raises
        ------
        NotFoundError
            If none fits, or none is expected to be of use.
        """
        site = Site.of(self.source, self.cluster, self.mesh, self.options, self.budget)
        blocks = StagedBlocks(site, make_schedule("1f1b", 1, 1, self.options.passes))
        planner = StepSearch(blocks, below=self.below, budget=self.budget)
        best = planner.best()
        limits = planner.site.limits
        memory = best.emitted.memory
        result = SearchResult(
            (),
            best.emitted.decisions,
            best.seconds,
            0.0,
            "feasible",
            memory.peak_bytes,
            self.budget.spent,
            f"plans of {planner.site.words}, {len(planner.steps)} programs",
        )
        attempt = Attempt(limits, result, best.emitted.program, memory, best.emitted.records)
        bucketed = self._searches.with_buckets(attempt, best.choice.seconds, best.timeline)
        bucketed = bucketed.of_all_layers(
            self.source, self.options, best.emitted.decisions, self.cluster
        )
        assert bucketed.timeline is not None
        program = bucketed.attempt.program
        tolerance = tolerance_of(self.options.gap)
        step = in_least_memory(program, self.cluster, bucketed.timeline, tolerance)
        charge_emission(self.budget, bucketed.attempt.records)
        charge_simulation(self.budget, program)
        self.take(bucketed.attempt.records)
        return Emitted(
            program,
            program.mesh or self.mesh,
            step.memory,
            result.decisions,
            replace(result, cost=step.seconds),
            buckets=fusion_text(bucketed.fusion),
            minimizes_step=True,
        )

    @property
    def _searches(self) -> Attempts:
        """What chooses buckets."""
        lowering = LowerRedistributions(self.cluster, self.options.cost_model)
        where = self.source, self.cluster, lowering.planner(self.mesh), self.options
        budget = self.budget.beyond()
        limits = limits_on(self.cluster, self.options, budget, self.progress)
        return Attempts(SearchRequest(*where, budget=budget), lowering, limits, budget)
