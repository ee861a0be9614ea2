"""Mirrors in programs that call the communication operators themselves (hybrid parallel mode)."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from shardwright.dataflow.cotangents import cotangent_flow
from shardwright.dataflow.properties import FORWARD, WHOLE
from shardwright.ir.attributes import Attributes
from shardwright.ir.errors import PassError
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.provenance import Provenance
from shardwright.ir.text import node_text
from shardwright.ir.values import POSITIVE_INTEGER
from shardwright.operators.builder import Builder
from shardwright.operators.communication.collectives import Communication, Groups
from shardwright.operators.communication.ranks import OwnGradient
from shardwright.operators.info import info_of
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

    Values may be equal on some ranks alone, as after a reduction over groups. A mirror sums over
    the ranks that share the value, and counts the gradient of ranks that do the same work once.

    Parameters
    ----------
    devices : int
        The number of ranks.
    mean : bool
        Whether the mean over the ranks of their losses is differentiated; else the loss, which must
        be equal on all ranks.
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
            If the loss differs between ranks and is the objective, or a trained value is cut that
            differs already.
        """
        if self.devices == 1:
            return graph
        return _Sharing(graph, mesh_of_world(self.devices), self.mean).mirrored()


def mesh_of_world(devices: int, level: int = 0) -> Mesh:
    """Return the mesh of a program that calls the communication operators itself."""
    return Mesh((MeshAxis("world", devices, level),))


Blocks = tuple[int, ...]
"""For each rank the first one that holds the same value."""


def _blocks(keys: Sequence[object]) -> Blocks:
    """Return the ranks with equal keys."""
    first: dict[object, int] = {}
    return tuple(first.setdefault(key, rank) for rank, key in enumerate(keys))


def _members(blocks: Blocks) -> Groups:
    """Return the ranks of each block."""
    return tuple(
        tuple(r for r, first in enumerate(blocks) if first == head) for head in sorted(set(blocks))
    )


@dataclass
class _Sharing:
    """On which ranks each value is equal, and which values carry a cotangent."""

    graph: Graph
    mesh: Mesh
    mean: bool
    differing: dict[str, Blocks] = field(default_factory=dict)  # the others are equal on all ranks
    carrying: set[str] = field(default_factory=set)
    mirrors: dict[tuple[str, Blocks], str] = field(default_factory=dict)

    @property
    def own(self) -> Blocks:
        """The blocks of a value that differs on every rank."""
        return tuple(range(self.mesh.size))

    def blocks(self, name: str) -> Blocks:
        """Return on which ranks a value is equal."""
        return self.differing.get(name, (0,) * self.mesh.size)

    def mirrored(self) -> Graph:
        """Return the graph with its mirrors."""
        build = Builder(None, replace(self.graph, nodes=()))
        for node in self.graph.nodes:
            for result in node.results:
                build.unique_name(result.name)
        self.carrying |= cotangent_flow(self.graph).values
        for parameter in self.graph.parameters:
            if parameter.attributes.get("layerwise_parallel"):
                self.differing[parameter.name] = self.own
        for node in self.graph.nodes:
            self._take(node, build)
        outputs = (self._objective(self.graph.outputs[0], build), *self.graph.outputs[1:])
        mirrored = build.graph(self.graph.name, outputs)
        marked = self.graph.recomputed, self.graph.offloaded
        return replace(mirrored, recomputed=marked[0], offloaded=marked[1])

    def _take(self, node: Node, build: Builder) -> None:
        info = info_of(self.graph, node)
        if isinstance(info, Communication) and not isinstance(info, OwnGradient):
            self._communicate(node, info, build)
            return
        held = [self.blocks(name) for name in node.operands]
        shared = _blocks(list(zip(*held, strict=True))) if held else (0,) * self.mesh.size
        build.append(self._reading(node, shared, build))
        self._hold(node, shared)

    def _communicate(self, node: Node, info: Communication, build: Builder) -> None:
        """Take a node that communicates, which reads the values that each rank has of its own."""
        held = self.blocks(node.operands[0])
        groups = info.groups or (tuple(range(self.mesh.size)),)
        group_of = {rank: group for group in groups for rank in group}
        if node.operator == "local_slice":
            self._check_slice(node, held, groups)
            places = [group_of[rank].index(rank) for rank in self.own]
            build.append(node)
            self._hold(node, _blocks(list(zip(held, places, strict=True))))
            return
        node = self._reading(node, self.own, build)
        if not info.equalizes:
            build.append(node)
            self._hold(node, self.own)
            return
        read = {g: tuple(held[rank] for rank in g) for g in groups}
        if "root" in info.attributes:
            read = {g: members[info.attributes["root"] :][:1] for g, members in read.items()}
        shared = _blocks([read[group_of[rank]] for rank in self.own])
        counted = tuple(r for r in self.own if shared[r] in group_of[r])
        if len(counted) < self.mesh.size and node.results[0].name in self.carrying:
            node = self._counted_once(node, counted, build)
        build.append(node)
        self._hold(node, shared)

    def _hold(self, node: Node, blocks: Blocks) -> None:
        if any(blocks):
            self.differing.update((result.name, blocks) for result in node.results)

    def _counted_once(self, node: Node, ranks: Sequence[int], build: Builder) -> Node:
        """Append a node, several groups of which have one result; return the mark behind it."""
        (result,) = node.results
        inner = replace(result, name=build.unique_name(f"{result.name}.group"))
        build.append(replace(node, results=(inner,)))
        attributes: Attributes = {"axes": self.mesh.names, "members": tuple(ranks)}
        return replace(node, operator="own_gradient", operands=(inner.name,), attributes=attributes)

    def _reading(self, node: Node, blocks: Blocks, build: Builder) -> Node:
        """Return a node that reads mirrors, where what it computes is equal on fewer ranks."""
        operator = node.provenance.operator
        values = self.graph.operand_values(node)
        entering = tuple(self._entering(value, blocks, build, operator) for value in values)
        return replace(node, operands=entering)

    def _entering(self, value: Value, blocks: Blocks, build: Builder, reader: str) -> str:
        """Return the value, or its mirror where ranks that share it each make a part of a gradient.

        Parameters
        ----------
        value : Value
            The value.
        blocks : tuple of int
            The ranks that do equal work on it.
        build : Builder
            Emits the mirror.
        reader : str
            The operator that reads the value.
        """
        held = self.blocks(value.name)
        if held == blocks or value.name not in self.carrying:
            return value.name
        key = (value.name, blocks)
        if key not in self.mirrors:
            build.provenance = Provenance(reader, "mirror", value.name)
            name = f"{value.name}.mirror"
            groups = _members(held)
            places: dict[str, Any] = {"axes": self.mesh.names, "group_size": len(groups[0])}
            if len(groups) > 1:
                places["groups"] = groups
            mirror = build.emit("mirror", value, name=name, **places)
            if blocks != self.own:
                heads = tuple(sorted(set(blocks)))
                mirror = build.emit("own_gradient", mirror, axes=self.mesh.names, members=heads)
            self.mirrors[key] = mirror.name
        return self.mirrors[key]

    def _check_slice(self, node: Node, held: Blocks, groups: Groups) -> None:
        """Refuse a slice whose transpose is not a gather."""
        differs = any(held[rank] != held[group[0]] for group in groups for rank in group)
        if differs and node.operands[0] in self.carrying:
            raise PassError(
                f"`{node.operands[0]}` is cut by the rank, but differs between ranks already",
                node_text(node),
                "gather or reduce it first",
            )

    def _objective(self, loss: str, build: Builder) -> str:
        """Return the name of what is differentiated, a loss of which each rank has its own."""
        blocks = self.blocks(loss)
        if not any(blocks) or loss not in self.carrying:
            return loss
        if not self.mean:
            raise PassError(
                f"the loss `{loss}` differs between ranks, it must be equal",
                hint="reduce it: `ops.AllReduce()(loss) / get_group_size()`; or train on the mean "
                "of the losses of all ranks, with `gradients_mean`",
            )
        sizes = {blocks.count(head) for head in blocks}
        if len(sizes) > 1:
            raise PassError(
                f"the loss `{loss}` is equal on groups of {sorted(sizes)} ranks, expected groups "
                f"of one size",
                hint="reduce it over all ranks",
            )
        places: dict[str, Any] = {"axes": self.mesh.names, "factor": sizes.pop() / self.mesh.size}
        producer = self.graph.producers.get(loss)
        reader = producer.provenance.operator if producer else loss
        build.provenance = Provenance(reader, "mirror", loss)
        return build.emit(
            "own_gradient", self.graph.values[loss], name=f"{loss}.own", **places
        ).name
