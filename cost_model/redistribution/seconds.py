"""The seconds of single moves, and the planner of the paths that take fewest of them."""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.cluster import HOST_LINKS, Cluster, Device
from shardwright.cost_model.collectives import (
    collective_seconds_array,
    exchange_seconds_array,
    is_measured,
    packing_seconds_array,
)
from shardwright.cost_model.redistribution.exchange import Choices
from shardwright.cost_model.redistribution.planner import RedistributionPlanner
from shardwright.ir.errors import ClusterError
from shardwright.ir.mesh import Mesh
from shardwright.operators.communication.collectives import priced_as

Floats = NDArray[np.float64]
_LOCAL = "local_copy"


def fastest_paths(mesh: Mesh, cluster: Cluster) -> RedistributionPlanner:
    """Return the planner of the paths that take the fewest seconds on a mesh of a cluster."""
    return RedistributionPlanner(
        mesh,
        partial(move_seconds, mesh=mesh, cluster=cluster),
        partial(packing_seconds, mesh=mesh, cluster=cluster),
    )


def move_seconds(
    operator: str,
    axes: tuple[str, ...],
    local_bytes: Floats,
    mesh: Mesh,
    cluster: Cluster,
    choices: Choices | None = None,
) -> Floats:
    """Return the seconds of one communication operator, for operands of several sizes.

    Parameters
    ----------
    operator : str
        Name of the communication operator; ``local_copy`` reads and writes on one rank.
    axes : tuple of str
        Mesh axes of its groups.
    local_bytes : array
        Bytes of the operand on a rank.
    mesh, cluster
        Where it runs.
    choices : Choices, optional
        Those of the tokens whose rows it exchanges.
    """
    count, device = mesh.extent(axes), cluster.device
    kind = operator if operator == _LOCAL else priced_as(operator)
    if kind == _LOCAL:
        moved = 2 * local_bytes / (count if operator == "local_slice" else 1)
        return _copy_seconds(operator, moved, device)
    if kind in HOST_LINKS:
        return device.launch_seconds + local_bytes / _host_bandwidth(kind, cluster)
    nbytes = _counted_bytes(kind, local_bytes, count)
    members = [mesh.axis(axis) for axis in axes]
    software = cluster.software
    if choices is not None and software is not None and software.exchange == "ranks":
        copies = partial(choices.copies, gate=software.gate)
        return device.launch_seconds + exchange_seconds_array(nbytes, members, cluster, copies)
    seconds = collective_seconds_array(kind, nbytes, members, cluster)
    return seconds if is_measured(kind, members, cluster) else device.launch_seconds + seconds


def packing_seconds(
    operator: str,
    axes: tuple[str, ...],
    local_bytes: Floats,
    mesh: Mesh,
    cluster: Cluster,
) -> Floats:
    """Return the further seconds of one that `is_packed`; see `move_seconds`."""
    kind, members = priced_as(operator), [mesh.axis(axis) for axis in axes]
    nbytes = _counted_bytes(kind, local_bytes, mesh.extent(axes))
    return packing_seconds_array(kind, nbytes, members, cluster)


def _counted_bytes(kind: str, local_bytes: Floats, count: int) -> Floats:
    """Return the bytes of a collective as the cost model counts them, by those of its operand."""
    return local_bytes * count if kind == "all_gather" else local_bytes


def _copy_seconds(operator: str, moved: Floats, device: Device) -> Floats:
    """Return the seconds of copies on a rank, of so many bytes read and written."""
    own = None if device.efficiency is None else device.efficiency.operators.get(operator)
    if own is not None:
        return own.launch.value + moved / own.rate.value
    return device.launch_seconds + moved / device.achieved_bandwidth


def _host_bandwidth(link: str, cluster: Cluster) -> float:
    """Return the bytes per second of a device over a link to or from host memory.

    Raises
    ------
    ClusterError
        If the cluster has no host memory.
    """
    if cluster.host is None:
        raise ClusterError(
            f"the program copies tensors `{link}`, and the cluster `{cluster.name}` has no `host`",
            hint="describe the host memory in a cluster file, and pass that",
        )
    return cluster.host.to_host if link == "to_host" else cluster.host.from_host
