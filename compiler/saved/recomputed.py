"""What a program makes again for the gradient: what that costs, and what is not saved so.

An operator is computed again, or its result is redistributed again (regathered).
"""

from shardwright.compiler.plans.compiled import Compiled
from shardwright.compiler.saved.groups import Group, Groups
from shardwright.compiler.saved.offloaded import offloaded_names
from shardwright.cost_model.pipelines.mixed import AnyCluster
from shardwright.cost_model.roofline import node_seconds
from shardwright.ir.graph import Graph, Node, value_bytes
from shardwright.ir.liveness import times_run
from shardwright.ir.mesh import Mesh
from shardwright.operators.info import operator_class


def recomputed(compiled: Compiled, cluster: AnyCluster) -> list[Group]:
    """Return what is computed again, in the order of the model; not regathered parameters.

    The name of a group ends in ``regathered`` where its results are redistributed again.
    """
    program, source = compiled.program, compiled.source
    again = frozenset() if compiled.decisions is None else compiled.decisions.regathered
    mesh, groups = program.mesh or Mesh(()), Groups()
    for node, times in zip(program.nodes, times_run(program), strict=True):
        producer = source.producers.get(node.provenance.tensor)
        if node.provenance.role != "recompute" or producer is None:
            continue
        if producer.name in offloaded_names(compiled):
            continue
        if all(name not in source.producers for name in producer.operands):
            continue  # a parameter, or its copy in lower precision
        regathered = producer.name in again
        group = groups.of(producer, " regathered" if regathered else "")
        group.count += (
            regathered * (not node.provenance.target) or node.operator == producer.operator
        )
        group.seconds += times * node_seconds(node, program, cluster)
        if not operator_class(node.operator).is_view and _is_saved_otherwise(node, program):
            group.bytes += sum(value_bytes(result, mesh) for result in node.results)
            group.bytes -= value_bytes(program.values[producer.name], mesh) if regathered else 0.0
    return groups.all()


def _is_saved_otherwise(node: Node, program: Graph) -> bool:
    """Return whether a gradient reads a result of a node, itself or through views."""
    for value in node.results:
        for reader, _ in program.uses[value.name]:
            if reader.provenance.role == "backward":
                return True
            if operator_class(reader.operator).is_view and _is_saved_otherwise(reader, program):
                return True
    return False
