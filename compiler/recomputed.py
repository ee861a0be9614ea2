"""What a program makes again for the gradient: what that costs, and what is not saved so.

An operator is computed again, or its result is redistributed again (regathered).
"""

from dataclasses import dataclass

from shardwright.compiler.compiled import Compiled
from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.roofline import node_seconds, value_bytes
from shardwright.ir.graph import Graph, Node
from shardwright.ir.liveness import times_run
from shardwright.ir.mesh import Mesh
from shardwright.ir.units import pattern
from shardwright.operators.info import operator_class


@dataclass
class Recomputed:
    """Equal operators of repeated layers that are computed again, with their communication.

    Parameters
    ----------
    operator : str
        Their scope and kind, with ``*`` for the number of the layer; ``regathered`` follows where
        their results are redistributed again.
    count : int
        Number of operators.
    seconds : float
        Predicted time of a step that the second computation takes.
    bytes : float
        Bytes of the tensors that a device would otherwise save for backward.
    """

    operator: str
    count: int = 0
    seconds: float = 0.0
    bytes: float = 0.0


def recomputed(compiled: Compiled, cluster: Cluster) -> list[Recomputed]:
    """Return what is computed again, in the order of the model; not regathered parameters."""
    program, source = compiled.program, compiled.source
    again = frozenset() if compiled.decisions is None else compiled.decisions.regathered
    mesh, groups = program.mesh or Mesh(()), dict[str, Recomputed]()
    for node, times in zip(program.nodes, times_run(program), strict=True):
        producer = source.producers.get(node.provenance.tensor)
        if node.provenance.role != "recompute" or producer is None:
            continue
        if all(name not in source.producers for name in producer.operands):
            continue  # a parameter, or its copy in lower precision
        label = f"{producer.scope}/{producer.operator}" if producer.scope else producer.operator
        regathered = producer.name in again
        label += " regathered" if regathered else ""
        group = groups.setdefault(pattern(label), Recomputed(pattern(label)))
        group.count += (
            regathered * (not node.provenance.target) or node.operator == producer.operator
        )
        group.seconds += times * node_seconds(node, program, cluster)
        if not operator_class(node.operator).is_view and _is_saved_otherwise(node, program):
            group.bytes += sum(value_bytes(result, mesh) for result in node.results)
            group.bytes -= value_bytes(program.values[producer.name], mesh) if regathered else 0.0
    return list(groups.values())


def _is_saved_otherwise(node: Node, program: Graph) -> bool:
    """Return whether a gradient reads a result of a node, itself or through views."""
    for value in node.results:
        for reader, _ in program.uses[value.name]:
            if reader.provenance.role == "backward":
                return True
            if operator_class(reader.operator).is_view and _is_saved_otherwise(reader, program):
                return True
    return False
