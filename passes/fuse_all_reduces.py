"""All-reduce fusion: one all-reduce for the gradients of many parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from math import prod
from typing import Annotated

from shardwright.cost_model.mindspore.allreduce_fusion import (
    Fusion,
    FusionSettings,
    fusion_graph,
    fusion_ids,
    fusion_ids_by_index,
    fusion_ids_by_size,
)
from shardwright.dataflow.cotangents import gradient_name
from shardwright.dataflow.deferrable import is_deferrable, parameter_tensors
from shardwright.dataflow.properties import LOWERED
from shardwright.ir.attributes import Attribute
from shardwright.ir.errors import PassError
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.layout import Layout
from shardwright.ir.liveness import accumulates
from shardwright.ir.provenance import Provenance
from shardwright.ir.types import TensorType
from shardwright.ir.values import NOT_NEGATIVE, POSITIVE_INTEGER, check_names, wrong_value
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.communication.fusion import buffer_layout, buffer_length
from shardwright.operators.info import operator_class
from shardwright.passes.base import Pass, Spelled, register_pass

Key = tuple[object, ...]


def _read_fusion(literal: object) -> Fusion:
    if isinstance(literal, list | tuple):
        return tuple(literal)
    if isinstance(literal, Mapping):
        check_names("all-reduce fusion has no setting", literal, [f.name for f in fields(_NONE)])
        return FusionSettings(**literal)
    if literal not in NOT_NEGATIVE or not isinstance(literal, int | float):
        raise wrong_value("fusion", literal, _EXPECTED)
    return float(literal)


def _spell_fusion(fusion: Fusion) -> object:
    if not isinstance(fusion, FusionSettings):
        return fusion
    changed = {k: v for k, v in asdict(fusion).items() if v != getattr(_NONE, k)}
    return {"algorithm": fusion.algorithm, **changed}


_NONE = FusionSettings()
_EXPECTED = "a number of megabytes, or a mapping of MindSpore's settings"
_FUSION = Spelled(_EXPECTED, _read_fusion, _spell_fusion, (int, float, tuple, Mapping))


@register_pass
@dataclass(frozen=True)
class FuseAllReduces(Pass):
    """Reduce the gradients of parameters with equal fusion ids in one all-reduce.

    It stands where the last of them is computed. Only all-reduces over the same axes, of the same
    element type and in one pipeline stage are fused; id 0 is no fusion, and uneven slices are not
    fused. Every all-reduce is marked with its id, and one that has a mark is left alone, so that a
    second run changes nothing.

    Before::

        w.grad: f32[4, 8]* = all_reduce(g) {axes=('x',)}
        b.grad: f32[8]* = all_reduce(h) {axes=('x',)}

    After::

        w.grad.packed: f32[40] +x = pack(g, h) {length=40}
        w.grad.reduced: f32[40]* = all_reduce(w.grad.packed) {axes=('x',), fusion=1}
        w.grad: f32[4, 8]*, b.grad: f32[8]* = unpack(w.grad.reduced) {shapes=((4, 8), (8,)), ...}

    Parameters
    ----------
    fusion : FusionSettings, float or tuple of int
        How fusion ids are assigned: by size, in megabytes, by MindSpore's algorithms, or to
        neighbours among the parameters, with the numbers of those that begin a new group. The
        attribute ``fusion`` of a parameter overrides them.
    """

    name = "fuse_all_reduces"
    requires = (LOWERED,)
    ensures = (LOWERED,)

    fusion: Annotated[Fusion, _FUSION] = field(default_factory=FusionSettings)

    def check(self) -> None:
        """Refuse a size below 0, and numbers of parameters that do not rise."""
        if isinstance(self.fusion, tuple):
            check_index("fusion", self.fusion)
        elif not isinstance(self.fusion, FusionSettings):
            NOT_NEGATIVE.check("fusion", self.fusion)

    def run(self, graph: Graph) -> Graph:
        """Return the program with fused all-reduces."""
        return fused_by_ids(graph, self._ids(graph))

    def _ids(self, graph: Graph) -> Mapping[str, int]:
        if isinstance(self.fusion, tuple):
            trained = [p.name for p in graph.parameters if p.trainable]
            return fusion_ids_by_index(trained, self.fusion)
        if not isinstance(self.fusion, FusionSettings):
            return fusion_ids_by_size(reduced_gradients(graph), self.fusion)
        if self.fusion == _NONE:
            return {}
        if not graph.outputs:
            raise PassError("there is no loss to count the computation from", f"graph {graph.name}")
        return fusion_ids(fusion_graph(graph), self.fusion)


def check_index(name: str, begins: Sequence[object]) -> None:
    """Refuse anything but rising numbers of parameters.

    Raises
    ------
    OptionError
        If it is something else.
    """
    whole = all(begin in POSITIVE_INTEGER for begin in begins)
    if not whole or not begins or list(begins) != sorted({*begins}):  # type: ignore[type-var]
        raise wrong_value(name, tuple(begins), "rising numbers of parameters, such as (20, 35)")


def fused_by_ids(graph: Graph, ids: Mapping[str, int]) -> Graph:
    """Return the program in which gradients of parameters with equal ids are reduced at once.

    Parameters
    ----------
    graph : Graph
        A differentiated program, lowered to collectives.
    ids : mapping of str to int
        Fusion ids of parameters. The attribute ``fusion`` of a parameter overrides them.
    """
    groups = [(names, int(str(fusion))) for (fusion, *_), names in _groups(graph, ids).items()]
    graph = _marked(graph, {names[0]: fusion for names, fusion in groups if len(names) == 1})
    for names, fusion in groups:
        if len(names) > 1:
            graph = _fuse(graph, names, fusion)
    return graph


def _marked(graph: Graph, fusions: Mapping[str, int]) -> Graph:
    """Mark all-reduces that are alone in their bucket."""
    if not fusions:
        return graph
    return graph.with_nodes(
        tuple(
            replace(node, attributes={**node.attributes, "fusion": fusions[node.name]})
            if node.name in fusions
            else node
            for node in graph
        )
    )


def reduced_gradients(graph: Graph) -> dict[str, int]:
    """Return the elements that a rank reduces for each parameter whose gradient is all-reduced.

    The last gradients come first, the order that `fusion_ids_by_size` expects.
    """
    parameters = {
        node.name: parameter.name
        for parameter in graph.parameters
        if (node := _all_reduce_of(graph, gradient_name(parameter.name)))
    }
    sizes = {}
    for node in reversed(graph.nodes):
        if node.name in parameters:
            layout, shape = node.results[0].layout, node.results[0].type.shape
            if layout is not None and graph.mesh is not None:
                shape = layout.slice_shape(shape, graph.mesh)
            sizes[parameters[node.name]] = prod(shape)
    return sizes


def _groups(graph: Graph, ids: Mapping[str, int]) -> dict[Key, list[str]]:
    """Return the names of the all-reduces to be fused, by all that must be equal."""
    fusions: dict[str, int] = {}
    for parameter in graph.parameters:
        fusion = parameter.attributes.get("fusion", ids.get(parameter.name, 0))
        node = _all_reduce_of(graph, gradient_name(parameter.name))
        if isinstance(fusion, int) and fusion and node and not node.attributes.get("fusion"):
            fusions[node.name] = min(fusion, fusions.get(node.name, fusion))
    groups: dict[Key, list[str]] = {}
    made = parameter_tensors(graph.nodes, (p.name for p in graph.parameters))
    for name, fusion in fusions.items():
        node = graph.producers[name]
        operand = graph.values[node.operands[0]]
        if (
            graph.mesh
            and operand.layout
            and not operand.layout.is_even(operand.type.shape, graph.mesh)
        ):
            continue  # a buffer is as long on every rank
        partial = operand.layout and (operand.layout.partial, operand.layout.stage)
        # Communication that blocks computation is not mixed with communication that does not.
        attributes = (*sorted(_unfused(node).items()), is_deferrable(node, made))
        groups.setdefault((fusion, operand.type.dtype, partial, attributes), []).append(name)
    return groups


def _all_reduce_of(graph: Graph, gradient: str) -> Node | None:
    """Return the all-reduce of a gradient, through communication and scaling alone."""
    node = graph.producers.get(gradient)
    while node is not None and node.operator != "all_reduce":
        kind = operator_class(node.operator)
        moves = issubclass(kind, Communication) or kind.is_scaling
        node = graph.producers.get(node.operands[0]) if moves else None
    if node is None or node.attributes.get("reduction", "sum") != "sum":
        return None
    if graph.mesh is not None and accumulates(node, graph.mesh.in_time):
        return None
    return node


def _unfused(node: Node) -> dict[str, Attribute]:
    return {key: value for key, value in node.attributes.items() if key != "fusion"}


def _fuse(graph: Graph, names: Sequence[str], fusion: int) -> Graph:
    """Fuse the all-reduces called `names`, as far as none depends on another."""
    left = set(names)
    while left:
        members = independent(graph, left)
        left -= {member.name for member in members}
        if len(members) > 1:
            nodes = with_joint(graph, members, _fused(graph, members, fusion))
            graph = graph.with_nodes(tuple(nodes))
        else:
            graph = _marked(graph, {members[0].name: fusion})
    return graph


def independent(graph: Graph, names: set[str]) -> list[Node]:
    """Return those of some nodes that no other one of them has to come before."""
    members, behind = [], set[str]()
    for node in graph:
        depends = any(name in behind for name in node.operands)
        if node.name in names and not depends:
            members.append(node)
        if node.name in names or depends:
            behind.update(result.name for result in node.results)
    return members


def with_joint(graph: Graph, members: Sequence[Node], joint: Sequence[Node]) -> list[Node]:
    """Return the nodes with `joint` for `members`; what reads early ones moves behind the last."""
    names = {member.name for member in members}
    nodes: list[Node] = []
    moved: list[Node] = []
    late: set[str] = set()
    for node in graph:
        if node.name in names:
            late.update(result.name for result in node.results)
        elif late.intersection(node.operands):
            late.update(result.name for result in node.results)
            moved.append(node)
        else:
            nodes.append(node)
        if node.name == members[-1].name:
            nodes += [*joint, *moved]
            moved, late = [], set()
            names = set()
    return nodes


def _fused(graph: Graph, members: Sequence[Node], fusion: int) -> tuple[Node, Node, Node]:
    """Return the nodes that pack the operands, reduce the buffer, and unpack the results."""
    first, scope = members[0], members[-1].scope
    origin = Provenance(first.provenance.operator, "fusion", first.provenance.tensor)
    operands = [graph.values[member.operands[0]] for member in members]
    names = tuple(value.name for value in operands)
    results = tuple(member.results[0] for member in members)
    packed = buffer_of(graph, f"{first.name}.packed", operands)
    reduced = buffer_of(graph, f"{first.name}.reduced", results)
    pack_attributes: dict[str, Attribute] = {"length": packed.type.elements}
    unpack_attributes: dict[str, Attribute] = {"shapes": tuple(r.type.shape for r in results)}
    if reduced.layout is not None:
        unpack_attributes["splits"] = tuple(r.layout.splits for r in results if r.layout)
    reduce_attributes = {**_unfused(first), "fusion": fusion}
    return (
        Node("pack", names, (packed,), pack_attributes, scope, provenance=origin),
        Node("all_reduce", (packed.name,), (reduced,), reduce_attributes, scope, None, origin),
        Node("unpack", (reduced.name,), results, unpack_attributes, scope, provenance=origin),
    )


def buffer_of(graph: Graph, name: str, parts: Sequence[Value]) -> Value:
    """Return the buffer of some slices."""
    while name in graph.values:
        name += "_"
    layouts: list[Layout] = [part.layout for part in parts if part.layout is not None]
    shapes = [part.type.shape for part in parts]
    length, layout = sum(part.type.elements for part in parts), None
    if graph.mesh is not None and layouts:
        length = buffer_length(shapes, layouts, graph.mesh)
        layout = buffer_layout(layouts, graph.mesh)
    return Value(name, TensorType(parts[0].type.dtype, (length,)), layout)
