"""What an estimate does not know: where one figure or one buffer decides it."""

from collections.abc import Iterator

from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.pipelines.mixed import AnyCluster
from shardwright.cost_model.roofline import seconds_of_nodes, value_bytes
from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh
from shardwright.ir.units import bytes_text, seconds_text
from shardwright.operators.models.precision import LOSSES

_MOST = 0.5  # of the step, or of the memory: what one operator takes then decides the answer


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
        own, best = cluster.device.efficiency.attention, cluster.device.efficiency.best_attention
        kernels = 1.0 if cluster.software is None else cluster.software.attention_rate
        attained, share = own.value * kernels, attention_share(program, cluster)
        if best is not None and share > _MOST and attained < best.value:
            least = step * (1 - share * (1 - attained / best.value))
            yield (
                f"attention takes {share:.0%} of the step, at {attained:.1%} of the peak "
                f"({own.source}); at {best.value:.0%} ({best.source}) a step takes at least "
                f"{seconds_text(least)}"
            )
    scores = logit_bytes(program)
    if not fits and scores > _MOST * peak:
        rest = bytes_text(peak - scores)
        yield (
            f"logits that are whole at once take {bytes_text(scores)} of the memory, all else "
            f"{rest}; a loss by chunks of tokens, which named plans do not have, takes no less "
            "than that"
        )


def attention_share(program: Graph, cluster: Cluster) -> float:
    """Return the share of attention in the seconds of all operators, one after the other."""
    seconds = seconds_of_nodes(program, cluster)
    pairs = zip(program.nodes, seconds, strict=True)
    own = sum(each for node, each in pairs if "attention" in node.operator)
    return own / sum(seconds) if own else 0.0


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
