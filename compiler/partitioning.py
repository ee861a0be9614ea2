"""The plan of one configuration: a program on one mesh, with one number of micro-batches."""

from dataclasses import dataclass, field

from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.program_profile import Emissions
from shardwright.planner.search_request import SearchRequest
from shardwright.planner.whole.partitioned import Emitted, Partitioned
from shardwright.planner.whole.search import WholeSearch


@dataclass(frozen=True)
class Partitioning(Partitioned):
    """The search for the plan of one configuration.

    Parameters
    ----------
    emissions : dict
        Emitted operators, to share them with other searches for the same program and optimizer.
    known : SearchRequest, optional
        A problem of this configuration that has been searched before.
    """

    cluster: Cluster
    emissions: Emissions = field(default_factory=dict)
    known: SearchRequest | None = None

    def emit(self) -> Emitted:
        """Search for the best plan that fits, and emit it."""
        where = self.source, self.cluster, self.mesh, self.options, self.budget, self.progress
        search = WholeSearch(*where, self.emissions, self.known)
        plan = search.run()
        return self.emitted(plan, search.pin_prices(plan))
