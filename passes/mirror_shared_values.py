"""Mirrors in programs that call the communication operators themselves (hybrid parallel mode)."""

from dataclasses import dataclass, field, replace
from typing import Annotated

from shardwright.dataflow.cotangents import cotangent_flow
from shardwright.dataflow.properties import FORWARD, WHOLE
from shardwright.ir.errors import PassError
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.provenance import Provenance
from shardwright.ir.text import node_text
from shardwright.ir.values import POSITIVE_INTEGER
from shardwright.operators.builder import Builder
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.info import operator_class
from shardwright.passes.base import Pass, register_pass


@register_pass
@dataclass(frozen=True)
class MirrorSharedValues(Pass):
    """Mirror trained values that are equal on all ranks, where they enter work that differs.

    For programs that call the communication operators themselves. Each rank makes a part of the
    gradient, and the mirror sums the parts. Work that is equal on all ranks needs none. Inputs are
    equal, parameters are unless they are ``layerwise_parallel``; values begin to differ when a rank
    cuts its slice or meets a value that differs, and are equal again when they are reduced or
    gathered.

    Before::

        part = local_slice(x) {axes=('world',), dimension=0, group_size=8}
        h = matmul(part, w)

    After::

        part = local_slice(x) {axes=('world',), dimension=0, group_size=8}
        w.mirror = mirror(w) {axes=('world',), group_size=8}
        h = matmul(part, w.mirror)

    Parameters
    ----------
    devices : int
        The number of ranks.
    mean : bool
        Whether the gradients of parameters are averaged instead of added.
    """

    name = "mirror_shared_values"
    requires = (WHOLE, FORWARD)
    ensures = (WHOLE,)

    devices: Annotated[int, POSITIVE_INTEGER]
    mean: bool = False

    def run(self, graph: Graph) -> Graph:
        """Return the program with its mirrors.

        Raises
        ------
        PassError
            If the loss differs between ranks, or a trained value is cut that differs already.
        """
        if self.devices == 1:
            return graph
        return _Sharing(graph, mesh_of_world(self.devices), self.mean).mirrored()


def mesh_of_world(devices: int) -> Mesh:
    """Return the mesh of a program that calls the communication operators itself."""
    return Mesh((MeshAxis("world", devices),))


@dataclass
class _Sharing:
    """The values that differ between ranks, and those that carry a cotangent."""

    graph: Graph
    mesh: Mesh
    mean: bool
    differing: set[str] = field(default_factory=set)
    carrying: set[str] = field(default_factory=set)
    mirrors: dict[str, str] = field(default_factory=dict)

    def mirrored(self) -> Graph:
        """Return the graph with its mirrors."""
        build = Builder(None, replace(self.graph, nodes=()))
        for node in self.graph.nodes:
            for result in node.results:
                build.unique_name(result.name)
        self.carrying |= cotangent_flow(self.graph).values
        for parameter in self.graph.parameters:
            if parameter.attributes.get("layerwise_parallel"):
                self.differing.add(parameter.name)
        for node in self.graph.nodes:
            self._take(node, build)
        self._check_loss()
        mirrored = build.graph(self.graph.name, self.graph.outputs)
        return replace(mirrored, recomputed=self.graph.recomputed)

    def _take(self, node: Node, build: Builder) -> None:
        kind = operator_class(node.operator)
        differs = issubclass(kind, Communication) or not self.differing.isdisjoint(node.operands)
        results = {result.name for result in node.results}
        if node.operator == "local_slice":
            self._check_slice(node)
        elif differs:
            values = self.graph.operand_values(node)
            operator = node.provenance.operator
            entering = (self._entering(v, build, operator) for v in values)
            node = replace(node, operands=tuple(entering))
        if differs and not kind.equalizes:
            self.differing |= results
        build.append(node)

    def _entering(self, value: Value, build: Builder, reader: str) -> str:
        """Return the value, or its mirror where each rank computes a part of its gradient."""
        if value.name in self.differing or value.name not in self.carrying:
            return value.name
        if value.name not in self.mirrors:
            build.provenance = Provenance(reader, "mirror", value.name)
            mirror = build.emit(
                "mirror",
                value,
                name=f"{value.name}.mirror",
                axes=self.mesh.names,
                group_size=self.mesh.size,
                mean=self.mean and value.name not in self.graph.producers,
            )
            self.mirrors[value.name] = mirror.name
            self.differing.add(mirror.name)
            self.carrying.add(mirror.name)
        return self.mirrors[value.name]

    def _check_slice(self, node: Node) -> None:
        """Refuse a slice whose transpose is not a gather."""
        if node.operands[0] in self.differing & self.carrying:
            raise PassError(
                f"`{node.operands[0]}` is cut by the rank, but differs between ranks already",
                node_text(node),
                "gather or reduce it first",
            )

    def _check_loss(self) -> None:
        if self.graph.outputs and self.graph.outputs[0] in self.differing & self.carrying:
            raise PassError(
                f"the loss `{self.graph.outputs[0]}` differs between ranks, it must be equal",
                hint="reduce it: `ops.AllReduce()(loss) / get_group_size()`",
            )
