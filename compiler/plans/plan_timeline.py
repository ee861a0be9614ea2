"""The simulated step of a plan, of the memory that its document states."""

from math import inf

from shardwright.compiler.plans.plan import Plan
from shardwright.cost_model.events import Timeline
from shardwright.cost_model.pipelines.mixed import AnyCluster
from shardwright.cost_model.pipelines.step import MemoryLimit
from shardwright.cost_model.timeline import simulate, with_window


def timeline_of_plan(
    plan: Plan, cluster: AnyCluster | None = None, limit: MemoryLimit | None = None
) -> Timeline:
    """Return the timeline whose memory a plan states; of one that does not fit, the fastest.

    Parameters
    ----------
    plan : Plan
        The plan.
    cluster : Cluster or MixedCluster, optional
        The devices; by default the plan's.
    limit : float or tuple of float, optional
        Memory limit of a device in bytes, or of those of each device group; by default the plan's.
    """
    memory, program = plan.document.memory, plan.program
    cluster = cluster or plan.document.cluster
    if memory.window_bytes is not None:
        return with_window(program, cluster, memory.window_bytes)
    if limit is None:
        limit = memory.limit_by_group or (inf if memory.limit is None else memory.limit)
    return simulate(program, cluster, limit if memory.fits(limit) else inf)
