"""The time of operators whose ranks pass parts round while they compute."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.efficiency.work import attention_share
from shardwright.cost_model.redistribution.seconds import move_seconds
from shardwright.ir.graph import Graph, Node
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.operators.attention.scaled_dot_product import Attention
from shardwright.operators.communication.rings import RingOperator, Round
from shardwright.operators.info import operator_class, operator_info
from shardwright.operators.products import type_of_products

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class RingWork:
    """The work of an operator whose ranks pass parts round, without the rates of a device.

    Parameters
    ----------
    dtype : str
        The element type that it computes in.
    axes : tuple of str
        The mesh axes of the ring.
    rounds : tuple of Round
        The rounds of the busiest rank.
    operator : str
        The name of the operator.
    keys, width : float
        The keys of a rank's part, which a query reads in a round, and the features of each.
    backward : bool
        Whether it is the gradient of attention.
    """

    dtype: str
    axes: tuple[str, ...]
    rounds: tuple[Round, ...]
    operator: str
    keys: float = 1.0
    width: float = 1.0
    backward: bool = False


def ring_work(info: RingOperator, operands: Sequence[Layout], mesh: Mesh) -> RingWork:
    """Return the work of a ring."""
    dtype = type_of_products(info)
    found = RingWork(dtype, info.axes, tuple(info.rounds(operands, mesh)), info.name)
    if not isinstance(info, Attention):
        return found
    at = info.first + 1
    _, _, keys, width = operands[at].slice_shape(info.operand_types[at].shape, mesh)
    return replace(found, keys=keys, width=width, backward=info.first > 0)


def ring_seconds(work: RingWork, mesh: Mesh, cluster: Cluster) -> float:
    """Return the seconds of the rounds of a ring: the greater of computing and sending in each."""
    sizes = np.array([turn.sent_bytes for turn in work.rounds])
    sent = move_seconds("collective_permute", work.axes, sizes, mesh, cluster)
    sent = np.where(sizes > 0, sent, 0.0)
    return float(np.maximum(_computing(work, cluster), sent).sum())


def ring_computing(work: RingWork, cluster: Cluster) -> float:
    """Return the seconds for which a ring computes."""
    return float(_computing(work, cluster).sum())


def _computing(work: RingWork, cluster: Cluster) -> Floats:
    """Return the seconds of computation in each round, by its own rate or the roofline."""
    device = cluster.device
    if device.efficiency is not None and work.operator in device.efficiency.operators:
        own = device.efficiency.operators[work.operator]
        return np.array([own.seconds(turn.flops, turn.moved_bytes) for turn in work.rounds])
    share = attention_share(
        device, cluster.software, work.dtype, work.backward, work.keys, work.width
    )
    peak = device.flops_per_second(work.dtype) * share * device.over_short(work.dtype)
    return np.array(
        [
            max(turn.flops / peak, turn.moved_bytes / device.achieved_bandwidth)
            + (device.launch_seconds if turn.moved_bytes else 0.0)
            for turn in work.rounds
        ]
    )


def computing_seconds(node: Node, graph: Graph, cluster: Cluster) -> float:
    """Return the seconds for which a node that communicates computes: in the rounds of a ring."""
    if not issubclass(operator_class(node.operator), RingOperator):
        return 0.0
    operands, mesh = graph.operand_values(node), graph.mesh or Mesh(())
    info = operator_info(node.operator, [value.type for value in operands], node.attributes)
    assert isinstance(info, RingOperator)
    layouts = [value.known_layout for value in operands]
    return ring_computing(ring_work(info, layouts, mesh), cluster)
