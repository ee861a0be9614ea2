"""Fusion of gathers: one all-gather for many parameters, one reduce-scatter for many gradients."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Annotated

from shardwright.cost_model.mindspore.allreduce_fusion import fusion_ids_by_size
from shardwright.dataflow.deferrable import is_deferrable, parameter_tensors
from shardwright.dataflow.properties import LOWERED
from shardwright.ir.attributes import Attributes
from shardwright.ir.errors import StrategyError
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.liveness import accumulates, loop_of
from shardwright.ir.provenance import Provenance
from shardwright.ir.values import NOT_NEGATIVE
from shardwright.operators.communication.fusion import buffer_layout
from shardwright.operators.communication.member_buffers import wide_layout
from shardwright.passes.base import Pass, register_pass
from shardwright.passes.fuse_all_reduces import buffer_of, independent, with_joint

Key = tuple[object, ...]


@register_pass
@dataclass(frozen=True)
class FuseGathers(Pass):
    """Gather parameters with equal fusion ids at once, and scatter their gradients at once.

    An all-gather stands where the first of them is needed, a reduce-scatter where the last gradient
    is computed. They are fused over the same axes, of the same element type, in the same pipeline
    stage and in the same part of a loop over micro-batches, where slices are equally large and no
    other axis that splits a part comes after theirs in the mesh.

    Before::

        w: f32[4, 8]* = all_gather(w.part) {axes=('x',), dimension=0}
        b: f32[8]* = all_gather(b.part) {axes=('x',), dimension=0}

    After::

        w.packed: f32[40@x] = pack(w.part, b.part) {length=40}
        w.gathered: f32[40]* = all_gather(w.packed) {axes=('x',), dimension=0}
        w: f32[4, 8]*, b: f32[8]* = unpack_gathered(w.gathered) {axes=('x',), count=2, ...}

    Parameters
    ----------
    allgather, reducescatter : float
        Megabytes up to which they are fused by size; 0 for none. The attribute ``fusion`` of a
        parameter overrides them.
    """

    name = "fuse_gathers"
    requires = (LOWERED,)
    ensures = (LOWERED,)

    allgather: Annotated[float, NOT_NEGATIVE] = 0.0
    reducescatter: Annotated[float, NOT_NEGATIVE] = 0.0

    def run(self, graph: Graph) -> Graph:
        """Return the program with fused gathers."""
        if graph.mesh is None:
            return graph
        for operator, megabytes in (
            ("reduce_scatter", self.reducescatter),
            ("all_gather", self.allgather),
        ):
            for names in _Gathers(graph, operator, megabytes).groups:
                graph = _fused(graph, operator, set(names))
        return graph


@dataclass(frozen=True)
class _Gathers:
    """The gathers of parameters of a program, or the reductions of their gradients."""

    graph: Graph
    operator: str
    megabytes: float

    @property
    def groups(self) -> list[list[str]]:
        """The names of the nodes that are fused, several in each group."""
        ids = self._ids()
        groups: dict[Key, list[str]] = {}
        for position, node in self._nodes.items():
            fusion = ids.get(node.name, 0)
            if fusion:
                groups.setdefault((fusion, *self._key(position, node)), []).append(node.name)
        return [names for names in groups.values() if len(names) > 1]

    @cached_property
    def _roots(self) -> Mapping[str, str]:
        """The parameter that each copy of one is of."""
        roots = {p.name: p.name for p in self.graph.parameters}
        made = parameter_tensors(self.graph.nodes, roots)
        for node in self.graph.nodes:
            if made.issuperset(r.name for r in node.results) and len(node.operands) == 1:
                roots[node.results[0].name] = roots.get(node.operands[0], node.operands[0])
        return roots

    @cached_property
    def _nodes(self) -> dict[int, Node]:
        """The nodes that can be fused, by their positions."""
        roots, mesh = self._roots, self.graph.mesh
        assert mesh is not None
        return {
            i: node
            for i, node in enumerate(self.graph.nodes)
            if node.operator == self.operator
            and is_deferrable(node, set(roots))
            and (self.operator == "reduce_scatter" or node.operands[0] in roots)
            and not accumulates(node, mesh.in_time)
            and self._fits(node)
        }

    def _fits(self, node: Node) -> bool:
        """Return whether slices are equally large, and the axes the last that split a buffer."""
        mesh, slices = self.graph.mesh, _slices(self.graph, node)
        assert mesh is not None
        if slices.layout is None or not slices.layout.is_even(slices.type.shape, mesh):
            return False
        try:
            wide_layout([slices.layout], _axes(node), mesh)
        except StrategyError:
            return False
        return True

    def _ids(self) -> Mapping[str, int]:
        """Return the fusion id of each node: that of its parameter, or by size."""
        sizes, ids = dict[str, int](), dict[str, int]()
        parameters = {p.name: p.attributes for p in self.graph.parameters}
        for node in self._nodes.values():
            root = self._roots.get(node.provenance.tensor, "")
            own = parameters.get(root, {}).get("fusion")
            if isinstance(own, int):
                ids[node.name] = own
            elif self.megabytes:
                sizes[node.name] = self._elements(node)
        # Numbers of users begin anywhere: those by size are kept apart from them.
        by_size = fusion_ids_by_size(sizes, self.megabytes) if sizes else {}
        return {**{name: -number for name, number in by_size.items()}, **ids}

    def _elements(self, node: Node) -> int:
        value = node.results[0]
        assert value.layout is not None
        assert self.graph.mesh is not None
        return prod(value.layout.slice_shape(value.type.shape, self.graph.mesh))

    def _key(self, position: int, node: Node) -> Key:
        """Return what gathers that are fused have in common."""
        loop, slices = loop_of(self.graph), _slices(self.graph, node)
        assert slices.layout is not None
        place = 0 if loop is None else (position >= loop.start) + (position >= loop.stop)
        held = buffer_layout([slices.layout], self.graph.mesh).splits  # type: ignore[arg-type]
        rest = {k: v for k, v in node.attributes.items() if k != "dimension"}
        operand = self.graph.values[node.operands[0]].layout
        assert operand is not None
        stage, partial = slices.layout.stage, operand.partial
        role, kind = node.provenance.role, slices.type.dtype
        return (place, stage, partial, role, kind, held, repr(sorted(rest.items())))


def _axes(node: Node) -> tuple[str, ...]:
    axes = node.attributes["axes"]
    assert isinstance(axes, tuple)
    return tuple(map(str, axes))


def _slices(graph: Graph, node: Node) -> Value:
    """Return the side of a gather, or of a scatter, on which each rank has a slice."""
    return node.results[0] if node.operator == "reduce_scatter" else graph.values[node.operands[0]]


def _fused(graph: Graph, operator: str, names: set[str]) -> Graph:
    """Return the program with some gathers or scatters fused."""
    members = independent(graph, names)
    if len(members) < 2:
        return graph
    joint = _joint(graph, operator, members)
    if operator == "reduce_scatter":
        return graph.with_nodes(tuple(with_joint(graph, members, joint)))
    return graph.with_nodes(tuple(_with_early(graph, members, joint)))


def _with_early(graph: Graph, members: Sequence[Node], joint: Sequence[Node]) -> Iterator[Node]:
    """Yield the nodes with `joint` at the first of `members`, and before it what they read."""
    names = {member.name for member in members}
    needed, behind = set[str](), {name for member in members for name in member.operands}
    for node in reversed(graph.nodes):
        if any(result.name in behind for result in node.results):
            needed.add(node.name)
            behind.update(node.operands)
    done = set[str]()
    for node in graph.nodes:
        if node.name == members[0].name:
            early = [n for n in graph.nodes if n.name in needed and n.name not in done]
            done.update(n.name for n in early)
            yield from (*early, *joint)
        elif node.name not in names and node.name not in done:
            done.add(node.name)
            yield node


def _joint(graph: Graph, operator: str, members: Sequence[Node]) -> tuple[Node, Node, Node]:
    """Return the nodes that pack, gather or scatter, and unpack."""
    mesh, first = graph.mesh, members[0]
    assert mesh is not None
    axes, slices = _axes(first), [_slices(graph, member) for member in members]
    layouts = [value.layout for value in slices if value.layout is not None]
    narrow = buffer_of(graph, f"{first.name}.packed", slices)
    assert narrow.layout is not None
    wide = wide_layout(layouts, axes, mesh).at(narrow.layout.stage)
    members_of: Attributes = {
        "axes": axes,
        "count": mesh.extent(axes),
        "dimensions": tuple(int(str(m.attributes.get("dimension", 0))) for m in members),
        "splits": tuple(layout.splits for layout in layouts),
    }
    shapes: Attributes = {"shapes": tuple(value.type.shape for value in slices)}
    moved = {**first.attributes, "dimension": 0}
    operands = tuple(member.operands[0] for member in members)
    results = tuple(member.results[0] for member in members)
    length: Attributes = {"length": narrow.type.elements}
    if operator == "all_gather":
        whole = replace(buffer_of(graph, f"{first.name}.gathered", slices), layout=wide)
        origin = first.provenance
        return (
            Node("pack", operands, (narrow,), length, first.scope, None, origin),
            Node(operator, (narrow.name,), (whole,), moved, first.scope, None, origin),
            Node(
                "unpack_gathered",
                (whole.name,),
                results,
                {**shapes, **members_of},
                first.scope,
                None,
                origin,
            ),
        )
    origin = Provenance(first.provenance.operator, "fusion", first.provenance.tensor)
    partial = graph.values[first.operands[0]].layout
    assert partial is not None
    whole = replace(narrow, layout=wide.with_partial(partial.partial, partial.reduction))
    dealt, scope = buffer_of(graph, f"{first.name}.dealt", slices), members[-1].scope
    cut: Attributes = {**shapes, "splits": members_of["splits"]}
    return (
        Node("pack_dealt", operands, (whole,), {**length, **members_of}, scope, None, origin),
        Node(operator, (whole.name,), (dealt,), moved, scope, None, origin),
        Node("unpack", (dealt.name,), results, cut, scope, None, origin),
    )
