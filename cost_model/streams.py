"""The streams of a rank: which resources each node of a program occupies, and in which queue.

A rank computes on one stream, and has the links of each level of the cluster. Communication of
activations and of their gradients is blocking communication: the next operator needs it, so it
occupies the compute stream as well as its links. Communication of parameters (gathered ahead of
their readers) and of the gradients of parameters (reduced behind the backward computation) is
deferrable communication: it occupies its links alone. A collective that spans levels occupies the
links of each, since a hierarchical algorithm uses all of them. Links serve one collective at a
time, in whatever queue it is.

The link to host memory has a direction out and one back. Copies to the host run behind their
producers, as reductions do, and copies from it ahead of their readers, as gathers do.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.redistribution.seconds import move_seconds
from shardwright.cost_model.roofline import node_axes, seconds_of_nodes
from shardwright.dataflow.deferrable import GATHERS, is_deferrable, parameter_tensors
from shardwright.ir.graph import Graph, Node, Value, value_bytes
from shardwright.ir.liveness import times_run
from shardwright.ir.mesh import Mesh
from shardwright.operators.communication.host import HostCopy
from shardwright.operators.info import operator_class

COMPUTE = "compute"
"""The stream of computation; the links have the names of the levels of the cluster."""

Queue = Literal["compute", "blocking", "gathers", "reductions"]
"""``compute`` and ``blocking`` nodes run in program order, the deferrable ones beside them."""

IN_LINE: frozenset[Queue] = frozenset({"compute", "blocking"})
"""Queues of what runs in program order."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a node runs.

    Parameters
    ----------
    queue : str
        The queue that it waits in.
    levels : tuple of str
        The links that it occupies: levels, innermost first, or a direction of the host's.
    """

    queue: Queue
    levels: tuple[str, ...] = ()

    @property
    def resources(self) -> tuple[str, ...]:
        """What the node occupies: the compute stream unless it is deferrable, and its links."""
        if not self.levels:
            return (COMPUTE,)
        return (COMPUTE, *self.levels) if self.queue == "blocking" else self.levels

    @property
    def is_deferrable(self) -> bool:
        """Whether it is communication that computation does not wait for at once."""
        return bool(self.levels) and self.queue != "blocking"


@dataclass(frozen=True, slots=True)
class Task:
    """One node of a program.

    Parameters
    ----------
    placement : Placement
        Its queue and its resources.
    seconds : float
        Its duration.
    after : tuple of int
        The tasks that it waits for, by position; in line, those before it go without saying.
    nbytes : float
        For a gather the bytes that it takes, early where it runs ahead; for a reduction the bytes
        that wait for it, late where it runs behind.
    computing : float
        Seconds for which it computes.
    in_loop : bool
        Whether it is run in every pass over micro-batches.
    host : float
        Seconds in which the host launches it; it starts no earlier than the host has launched it
        and all before it. 0 without a software profile.
    exposed : float
        Share of its seconds for which computation waits, in a step as a software runs it.
    """

    placement: Placement
    seconds: float
    after: tuple[int, ...]
    nbytes: float = 0.0
    computing: float = 0.0
    in_loop: bool = False
    host: float = 0.0
    exposed: float = 1.0

    @property
    def in_line(self) -> bool:
        """Whether it runs in program order, with all others of this kind."""
        return self.placement.queue in IN_LINE

    def waiting_for(self, after: tuple[int, ...]) -> "Task":
        """Return the task, that waits for others; there are many of them."""
        return Task(
            *(self.placement, self.seconds, after, self.nbytes),
            *(self.computing, self.in_loop, self.host, self.exposed),
        )

    def lasting(self, seconds: float, host: float, exposed: float = 1.0) -> "Task":
        """Return the task, that takes other seconds, of its own and of the host."""
        return Task(
            *(self.placement, seconds, self.after, self.nbytes),
            *(self.computing, self.in_loop, host, exposed),
        )


_OF_HOST = {
    "to_host": Placement("reductions", ("to_host",)),
    "from_host": Placement("gathers", ("from_host",)),
}
_ON_DEVICE = {queue: Placement(queue) for queue in ("compute", "gathers", "reductions")}


def placements(graph: Graph, cluster: Cluster) -> list[Placement]:
    """Return where each node of a program, lowered to collectives, runs on a rank.

    Local work on parameters that feeds a gather (a cast, a slice) belongs to the gathers, local
    work on a reduced gradient (a sum, an update) to the reductions: computation waits for neither.

    Parameters
    ----------
    graph : Graph
        The program; without a mesh it runs whole on one device.
    cluster : Cluster
        Its devices and links.

    Raises
    ------
    ClusterError
        If an axis of the mesh belongs to a level that the cluster lacks.
    """
    return graph.analysed(("placements", cluster), lambda: _placements(graph, cluster))


def _placements(graph: Graph, cluster: Cluster) -> list[Placement]:
    made = parameter_tensors(graph.nodes, (p.name for p in graph.parameters))
    moving = {name for name in {n.operator for n in graph.nodes} if _moves(name)}
    found: list[Placement] = []
    behind: set[str] = set()
    for node in graph.nodes:
        levels = node_levels(node, graph, cluster) if node.operator in moving else ()
        placed = _placement(node, levels, made) if levels else _on_device(node, behind)
        if placed.queue == "reductions":
            behind.update([result.name for result in node.results])
        found.append(placed)
    return _with_sources_of_gathers(graph, found, made)


def _moves(operator: str) -> bool:
    """Return whether an operator may use links."""
    kind = operator_class(operator)
    return operator == "transfer" or kind.is_collective or issubclass(kind, HostCopy)


def _placement(node: Node, levels: tuple[str, ...], made: set[str]) -> Placement:
    """Return where a node runs that uses links."""
    if issubclass(operator_class(node.operator), HostCopy):
        return _OF_HOST[node.operator]
    if not is_deferrable(node, made):
        return Placement("blocking", levels)
    gathers = node.provenance.role in GATHERS and made.issuperset(node.operands)
    return Placement("gathers" if gathers else "reductions", levels)


def _on_device(node: Node, behind: set[str]) -> Placement:
    """Return where a node runs that uses no links; it may read what reductions leave."""
    waits = node.provenance.role == "update" or not behind.isdisjoint(node.operands)
    return _ON_DEVICE["reductions" if waits else "compute"]


def _with_sources_of_gathers(
    graph: Graph, found: list[Placement], made: set[str]
) -> list[Placement]:
    """Move the local work that a gather waits for into the queue of gathers."""
    feeding: set[str] = set()
    for i, node in reversed(list(enumerate(graph.nodes))):
        feeds = any([result.name in feeding for result in node.results])
        if feeds and found[i].queue == "compute" and made.issuperset(node.operands):
            found[i] = _ON_DEVICE["gathers"]
        if found[i].queue == "gathers":
            feeding.update(node.operands)
    return found


def node_levels(node: Node, graph: Graph, cluster: Cluster) -> tuple[str, ...]:
    """Return the links that a node uses: levels, innermost first; none for computation.

    A copy to or from host memory uses the link of that name.
    """
    if issubclass(operator_class(node.operator), HostCopy):
        return (node.operator,)
    mesh = graph.mesh
    axes = [mesh.axis(name) for name in node_axes(node, graph)] if mesh else []
    levels = sorted({axis.level for axis in axes if axis.size > 1})
    return tuple(cluster.levels[level].name for level in levels)


def loads(graph: Graph, cluster: Cluster) -> Mapping[str, float]:
    """Return the seconds for which a program occupies each resource.

    Every schedule takes at least the greatest of them.
    """
    busy = dict.fromkeys((COMPUTE, *cluster.links), 0.0)
    placed = placements(graph, cluster)
    every = seconds_of_nodes(graph, cluster)
    for seconds, where, times in zip(every, placed, times_run(graph), strict=True):
        for resource in where.resources:
            busy[resource] += times * seconds
    return busy


@dataclass(frozen=True)
class Sent:
    """What a rank sends to the next stage.

    Parameters
    ----------
    nbytes : float
        Its bytes.
    copies : tuple of str
        Mesh axes whose ranks have the same.
    """

    nbytes: float
    copies: tuple[str, ...]

    @classmethod
    def of(cls, value: Value, mesh: Mesh) -> "Sent":
        """Return what a rank sends of a value."""
        taken = () if value.layout is None else value.layout.split_axes
        without = (*taken, *mesh.in_time, *mesh.of_stages)
        return cls(value_bytes(value, mesh), tuple(n for n in mesh.names if n not in without))


def transfer_seconds(sent: Sent, level: int, mesh: Mesh, cluster: Cluster) -> float:
    """Return the seconds of a transfer over the links of a level."""
    links, software = cluster.levels[level], cluster.software
    seconds = cluster.device.launch_seconds
    if software is None:
        return seconds + links.send_seconds(sent.nbytes)
    seconds += software.transfer.value
    ranks = mesh.extent(sent.copies) if software.transfers == "scattered" else 1
    part = sent.nbytes / ranks
    if ranks > 1:
        gathered = move_seconds("all_gather", sent.copies, np.array([part]), mesh, cluster)
        seconds += float(gathered[0])
    seconds += links.send_seconds(part)
    exposed = software.exposed_transfers
    return seconds if exposed is None else seconds * exposed.value
