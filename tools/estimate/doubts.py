"""What an estimate does not know: where one figure or one buffer decides it."""

from collections.abc import Iterator

from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.efficiency.rings import ring_work
from shardwright.cost_model.pipelines.mixed import AnyCluster
from shardwright.cost_model.roofline import operator_work, seconds_of_nodes
from shardwright.ir.graph import Graph, Node, value_bytes
from shardwright.ir.mesh import Mesh
from shardwright.ir.units import bytes_text, seconds_text
from shardwright.operators.communication.rings import RingOperator
from shardwright.operators.info import info_of
from shardwright.operators.models.precision import LOSSES
from shardwright.operators.products import type_of_products


def doubts(
    program: Graph, cluster: AnyCluster, step: float, peak: float, fits: bool
) -> Iterator[str]:
    """Yield what attention decides of a step, and whole logits of a memory that is too much.

    Parameters
    ----------
    program : Graph
        The program of the plan.
    cluster : Cluster or MixedCluster
        Its cluster, as a training software runs it where one is named.
    step, peak : float
        Seconds of a step, and bytes of a device at the peak.
    fits : bool
        Whether those fit the limit.
    """
    if isinstance(cluster, Cluster) and cluster.device.efficiency is not None:
        best = cluster.device.efficiency.best_attention
        share, attained, source = attention_of(program, cluster)
        if best is not None and 2 * share > 1 and attained < best.value:
            least = step * (1 - share * (1 - attained / best.value))
            yield (
                f"attention takes {share:.0%} of the step, at {attained:.1%} of the peak "
                f"({source}); at {best.value:.0%} ({best.source}) a step takes at least "
                f"{seconds_text(least)}"
            )
    scores = logit_bytes(program)
    if not fits and 2 * scores > peak:
        rest = bytes_text(peak - scores)
        yield (
            f"logits that are whole at once take {bytes_text(scores)} of the memory, all else "
            f"{rest}; a loss by chunks of tokens, which named plans do not have, takes no less "
            "than that"
        )


def attention_of(program: Graph, cluster: Cluster) -> tuple[float, float, str]:
    """Return the share of attention in the seconds of all operators, its rate, and the source.

    Seconds count one after the other; the rate is of all its flops, over the peak.
    """
    device = cluster.device
    assert device.efficiency is not None
    source = device.efficiency.attention.source
    seconds = seconds_of_nodes(program, cluster)
    taken, ideal = 0.0, 0.0
    for node, each in zip(program.nodes, seconds, strict=True):
        if "attention" in node.operator:
            dtype = type_of_products(info_of(program, node))
            taken += each
            ideal += _flops(node, program) / device.flops_per_second(dtype)
            curve = device.kernels and device.kernels.of_attention(dtype, backward=False)
            source = curve.source if curve else source
    return (taken / sum(seconds), ideal / taken, source) if taken else (0.0, 1.0, source)


def _flops(node: Node, program: Graph) -> float:
    """Return the flops of attention on one rank."""
    info, mesh = info_of(program, node), program.mesh or Mesh(())
    operands = [value.known_layout for value in program.operand_values(node)]
    if isinstance(info, RingOperator):
        return sum(turn.flops for turn in ring_work(info, operands, mesh).rounds)
    return operator_work(info, operands, [v.known_layout for v in node.results], mesh).flops


def logit_bytes(program: Graph) -> float:
    """Return the bytes on a rank of the operands and gradients of losses of the logits' shape."""
    mesh = program.mesh or Mesh(())
    shapes = {
        program.values[node.operands[0]].type.shape
        for node in program.nodes
        if node.operator in LOSSES and node.operands
    }
    held = [
        value_bytes(program.values[result.name], mesh)
        for node in program.nodes
        for result in node.results
        if result.type.shape in shapes
    ]
    return sum(sorted(held, reverse=True)[:2])
