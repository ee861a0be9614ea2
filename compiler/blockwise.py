"""The plan of a program of repeated blocks in one stage, put together from plans of its blocks."""

from dataclasses import dataclass
from math import inf

from shardwright.cost_model.cluster import Cluster
from shardwright.planner.evaluation.simulated_step import tolerance_of
from shardwright.planner.whole.blocks import plan_of_blocks
from shardwright.planner.whole.buckets import Buckets
from shardwright.planner.whole.partitioned import Emitted, Partitioned


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
        where = self.source, self.cluster, self.mesh, self.options
        plan = plan_of_blocks(*where, self.budget, self.below)
        budget, limit = self.budget.beyond(), plan.limits.limit_bytes
        buckets = Buckets(self.source, self.cluster, self.options, limit, budget)
        plan = buckets.best(plan, buckets.least_step(plan))
        return self.emitted(buckets.in_least_memory(plan, tolerance_of(self.options.gap)))
