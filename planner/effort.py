"""Effort: what the user lets a search spend, as work that is counted (`solver.work`)."""

from shardwright.cost_model.cluster import Cluster
from shardwright.planner.options import CompileOptions
from shardwright.search.options import Progress, SearchOptions
from shardwright.solver.work import Budget, StoppedWork, Work

_SECONDS = 60.0  # seconds of work on one configuration with effort 1 (`benchmarks/work.md`)


def budget_of(options: CompileOptions) -> Budget:
    """Return what the search for the plan of one configuration may spend."""
    limit = options.time_limit
    work = Work() if limit is None else StoppedWork.after(limit)
    return Budget(_SECONDS * options.effort, work)


def limits_on(
    cluster: Cluster, options: CompileOptions, budget: Budget, progress: Progress | None
) -> SearchOptions:
    """Return the limits of a search for a cluster, of what may be spent on all searches."""
    memory_limit = options.memory_on(cluster)
    return SearchOptions(memory_limit, budget, options.gap, progress, options.effort)
