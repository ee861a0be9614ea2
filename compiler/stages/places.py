"""The devices of a pipeline: how many a stage has, their cluster, and the links between stages."""

from shardwright.cost_model.pipelines.mixed import (
    AnyCluster,
    GroupClusters,
    MixedCluster,
    groups_on,
    needs_stages,
)
from shardwright.cost_model.pipelines.step import MemoryLimit
from shardwright.ir.errors import OptionError
from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh
from shardwright.ir.units import bytes_text
from shardwright.planner.option_checks import SEARCHED
from shardwright.planner.options import CompileOptions


def devices_of_stage(cluster: AnyCluster, devices: int, options: CompileOptions) -> int:
    """Return the number of devices of each device group of a pipeline; all without one.

    Raises
    ------
    ShardwrightError
        If the devices cannot be divided so, or the groups lie otherwise in the levels.
    """
    if isinstance(cluster, MixedCluster):
        cluster.in_groups(devices, options.groups)
        return devices // options.groups
    if devices % options.groups:
        raise OptionError(
            f"`stages` is {options.stages}, and {devices} devices cannot be divided into so many "
            "groups",
            hint="use a number of stages that divides the number of devices",
        )
    cluster.check_groups(devices, options.groups)
    return devices // options.groups


def level_of_stages(cluster: AnyCluster, devices: int, groups: int) -> int:
    """Return the level of the cluster whose links stages use: the outermost that devices span."""
    if isinstance(cluster, MixedCluster):
        return cluster.in_groups(devices, groups).level
    counts = cluster.for_devices(devices)
    return max((level for level, count in enumerate(counts) if count > 1), default=0)


def clusters_of_groups(cluster: AnyCluster, mesh: Mesh, groups: int, level: int) -> GroupClusters:
    """Return the cluster of each device group of a pipeline, by the mesh of one."""
    if isinstance(cluster, MixedCluster):
        return cluster.in_groups(mesh.size * groups, groups)
    return GroupClusters((cluster,) * groups, (0,) * groups, (level,) * groups)


def memory_in_groups(groups: GroupClusters, options: CompileOptions) -> tuple[float, ...]:
    """Return the memory limit of a device of each device group of a pipeline, in bytes."""
    return tuple(options.memory_on(cluster) for cluster in groups.clusters)


def memory_limit_of(cluster: AnyCluster, mesh: Mesh, options: CompileOptions) -> MemoryLimit:
    """Return the memory limit of a device; with parts, of each device group of a mesh."""
    if isinstance(cluster, MixedCluster):
        return memory_in_groups(groups_on(cluster, mesh), options)
    return options.memory_on(cluster)


def limits_text(limit: MemoryLimit) -> str:
    """Return the memory limit in words: one, or that of each device group."""
    if not isinstance(limit, tuple):
        return bytes_text(limit)
    if len(set(limit)) == 1:
        return bytes_text(limit[0])
    return f"{', '.join(map(bytes_text, limit))} by device group"


def check_parts(
    cluster: AnyCluster, graph: Graph, options: CompileOptions, mesh: object = None
) -> None:
    """Refuse what is not compiled for a cluster of several parts.

    Raises
    ------
    ShardwrightError
        If the cluster has parts, and the program has one stage, or its stages are planned by
        anything else than the exact search or a named plan.
    """
    if not isinstance(cluster, MixedCluster):
        return
    named = options.named_plan
    wanted = {"mode": "auto_parallel", "search": "exact", "cost_model": "time"}
    for name, value in wanted.items() if named is None else ():
        found = getattr(options, name)
        if found != value:
            why = f"the {name.replace('_', ' ')} `{found}` plans for one kind of device"
            raise needs_stages(cluster, why, "leave it out, or use a cluster of one part")
    searched = {name: getattr(options, name) for name in ("stages", "micro_batches")}
    for name, value in {**searched, "mesh": mesh}.items():
        if value == SEARCHED:
            why = f"`{name}` is not searched for several kinds of devices"
            raise needs_stages(cluster, why, f"give another value of `{name}`")
    if options.explain_search:
        why = "`explain_search` explains searches for one kind of device"
        raise needs_stages(cluster, why, "leave it out, or use a cluster of one part")
    stages = options.groups if named is None else named.pipeline
    if stages == 1 and not graph.cuts:
        raise needs_stages(cluster, "a program in one stage runs on one kind of device")
