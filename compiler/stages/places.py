"""The devices of a pipeline: how many a stage has, and the links between stages."""

from shardwright.compiler.options import CompileOptions
from shardwright.cost_model.cluster import Cluster
from shardwright.ir.errors import OptionError


def devices_of_stage(cluster: Cluster, devices: int, options: CompileOptions) -> int:
    """Return the number of devices of each device group of a pipeline; all without one.

    Raises
    ------
    ShardwrightError
        If the devices cannot be divided so, or the groups lie otherwise in the levels.
    """
    if devices % options.groups:
        raise OptionError(
            f"`stages` is {options.stages}, and {devices} devices cannot be divided into so many "
            "groups",
            hint="use a number of stages that divides the number of devices",
        )
    cluster.check_groups(devices, options.groups)
    return devices // options.groups


def level_of_stages(cluster: Cluster, devices: int) -> int:
    """Return the level of the cluster whose links stages use: the outermost that devices span."""
    counts = cluster.for_devices(devices)
    return max((level for level, count in enumerate(counts) if count > 1), default=0)
