"""Effort: what the user lets a search spend, as work that is counted (`solver.work`)."""

from shardwright.cost_model.cluster import Cluster
from shardwright.planner.options import CompileOptions
from shardwright.search.options import Progress, SearchOptions
from shardwright.solver.methods import DEFAULT_SECONDS
from shardwright.solver.work import Budget, StoppedWork, Work

LARGE = 200
"""Operators above which a program is large, so that less is tried of it.

Its serial step is not searched, too, where another plan fits, and fewer named plans are emitted for
its stages. At half, less is tried of programs of 100 to 200 operators; at twice, more is tried of
those of 200 to 400, which takes longer."""

SMALL = 600
"""Options of the problems of a plan up to which all plans are met that may be faster."""

FRONTIER = 40
"""Plans of ever tighter limits that are met at most of such a problem, or of a cut in stages."""

ROUGH_WITHIN = 5e-3
"""Gap at which a search within the memory limit ends, for a bound or where memory is short."""

GAIN = 1e-3
"""Share of a step that counts: what a plan must be expected to gain of the best one, by how much
one in less memory may be slower, and how near to each other the cuts of a group are.

With twice as much the same is planned of the models in `benchmarks/whole_plans.md`; with none, of
Llama 3 405B on 1,024 H100 a mesh too whose bound is the same up to rounding, for 14 s of work."""

RISE = 1e-4
"""What another plan of a block must save, or another path raise a bound by, relatively."""


def budget_of(options: CompileOptions) -> Budget:
    """Return what the search for the plan of one configuration may spend."""
    limit = options.time_limit
    work = Work() if limit is None else StoppedWork.after(limit)
    return Budget(DEFAULT_SECONDS * options.effort, work)


def limits_on(
    cluster: Cluster, options: CompileOptions, budget: Budget, progress: Progress | None
) -> SearchOptions:
    """Return the limits of a search for a cluster, of what may be spent on all searches."""
    memory_limit = options.memory_on(cluster)
    return SearchOptions(memory_limit, budget, options.gap, progress, options.effort)
