"""Programs that call the communication operators themselves (MindSpore's hybrid parallel mode)."""

from dataclasses import replace

from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh
from shardwright.operators.builder import Builder


def mirror_parameters(graph: Graph, mesh: Mesh, mean: bool = False) -> Graph:
    """Mirror every parameter that all ranks hold alike, so that its gradients are summed over them.

    Parameters declared ``layerwise_parallel`` are each rank's own and are left alone.

    Before::

        h = matmul(x, w)

    After::

        w.mirror = mirror(w) {axes=('world',), group_size=8}
        h = matmul(x, w.mirror)

    Parameters
    ----------
    graph : Graph
        What one rank computes.
    mesh : Mesh
        All ranks, along one axis.
    mean : bool
        Average the gradients instead of adding them.
    """
    shared = [
        parameter
        for parameter in graph.parameters
        if parameter.trainable and not parameter.attributes.get("layerwise_parallel")
    ]
    build = Builder(None, replace(graph, nodes=()))
    for name in graph.values:
        build.unique_name(name)
    names = {}
    for parameter in shared if mesh.size > 1 else ():
        mirror = build.emit(
            "mirror",
            parameter.value,
            name=f"{parameter.name}.mirror",
            axes=mesh.names,
            group_size=mesh.size,
            mean=mean,
        )
        names[parameter.name] = mirror.name
    for node in graph.nodes:
        operands = tuple(names.get(name, name) for name in node.operands)
        build.append(replace(node, operands=operands))
    return replace(build.graph(graph.name, graph.outputs), mesh=mesh)
