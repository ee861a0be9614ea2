"""The loads of a program: for how many seconds it occupies which resources, in which intervals."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.collectives import least_seconds_per_byte
from shardwright.cost_model.roofline import node_axes, seconds_of_nodes
from shardwright.cost_model.streams import node_levels
from shardwright.cost_model.weighted.intervals import Kind, Part, parts_of
from shardwright.cost_model.weighted.kinds import kinds_of
from shardwright.ir.graph import Graph, value_bytes
from shardwright.ir.liveness import times_run
from shardwright.ir.mesh import Mesh, MeshAxis

Floats = NDArray[np.float64]
Place = tuple[tuple[int, ...], tuple[int, ...]]
"""The intervals in which something may run, and the resources that it occupies at once: 0 for the
compute stream, 1 and on for the links (`Cluster.links`)."""


@dataclass(frozen=True)
class Loads:
    """The seconds for which a program occupies the resources of a rank.

    Parameters
    ----------
    seconds : mapping of (intervals, resources) to float
        The seconds of what may run in some intervals, and occupies some resources.
    resources : int
        Number of resources.
    intervals : int
        Number of intervals.
    """

    seconds: Mapping[Place, float]
    resources: int
    intervals: int

    @property
    def total(self) -> Floats:
        """The load of each resource in the whole step."""
        found = np.zeros(self.resources)
        for (_, occupied), seconds in self.seconds.items():
            found[list(occupied)] += seconds
        return found

    def weighted(self, weights: Floats) -> float:
        """Return the sum by weights of each interval: a lower bound of every schedule."""
        return sum(
            seconds * min(sum(weights[i, r] for r in occupied) for i in among)
            for (among, occupied), seconds in self.seconds.items()
        )


def least_loads(program: Graph, cluster: Cluster, intervals: int = 1) -> Loads:
    """Return the loads of a program in its best buckets, from below.

    Gradients that are reduced together save latency, so an all-reduce of a gradient counts with its
    bytes alone, at the least seconds per byte: no bucket takes less than its gradients.
    """
    mesh = program.mesh or Mesh(())
    position = {name: 1 + i for i, name in enumerate(cluster.links)}
    found: dict[Place, float] = {}
    every = seconds_in_buckets(program, cluster, seconds_of_nodes(program, cluster))
    rows = zip(program.nodes, every, kinds_of(program), times_run(program), strict=True)
    for node, seconds, kind, times in rows:
        levels = node_levels(node, program, cluster)
        if seconds:
            links = tuple(position[level] for level in levels)
            parts = parts_of(kind, intervals, mesh.passes)
            add_seconds(found, links, kind, parts, seconds, times)
    return Loads(found, 1 + len(cluster.links), intervals)


def add_seconds(
    found: dict[Place, float],
    links: tuple[int, ...],
    kind: Kind,
    parts: Iterable[Part],
    seconds: float,
    times: float = 1.0,
) -> None:
    """Add what occupies some links, by parts of it; the compute stream, too, if it is in line."""
    occupied = links if kind.deferrable and links else (0, *links)
    for share, among in parts:
        place = among, occupied
        found[place] = found.get(place, 0.0) + share * times * seconds


def seconds_in_buckets(program: Graph, cluster: Cluster, seconds: Sequence[float]) -> list[float]:
    """Return the seconds of each node, without the latency of all-reduces of gradients."""
    mesh, found = program.mesh or Mesh(()), list(seconds)
    for i, (node, kind) in enumerate(zip(program.nodes, kinds_of(program), strict=True)):
        if node.operator != "all_reduce" or not kind.deferrable:
            continue
        if node_levels(node, program, cluster):
            members = map(mesh.axis, node_axes(node, program))
            nbytes = value_bytes(program.values[node.operands[0]], mesh)
            found[i] = nbytes * least_slope(members, cluster)
    return found


def least_slope(members: Iterable[MeshAxis], cluster: Cluster) -> float:
    """Return the seconds per byte of an all-reduce without its latency."""
    return least_seconds_per_byte("all_reduce", members, cluster)
