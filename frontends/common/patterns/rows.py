"""Rows that are joined for operators that work row by row, ``[batch token, ...]``, and then parted.

They stay apart, ``[batch, token, ...]``: a split of the batch and one of the tokens reach the
operators together, which no layout of joined rows has.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

from shardwright.frontends.common.patterns.matches import attribute_of
from shardwright.ir.attributes import Attributes
from shardwright.ir.graph import Graph, Node, Value
from shardwright.operators.elementwise.functions import Binary, Unary
from shardwright.operators.info import operator_class, operator_info
from shardwright.operators.rule import Shape

_ALONG = ("reduce_max", "reduce_mean", "reduce_min", "reduce_sum", "softmax", "top_k")


def unjoined(graph: Graph) -> Graph:
    """Return the graph with rows apart, where all that reads them joined parts them again.

    Nodes that are dead then are not removed.

    Parameters
    ----------
    graph : Graph
        The imported program.
    """
    joined = _joined(graph)
    return replace(graph, nodes=_Apart(graph, joined).nodes()) if joined else graph


def _joined(graph: Graph) -> dict[str, Shape]:
    """Return the leading sizes of all joined values that need not be."""
    joins = {node.name: leading for node in graph.nodes if (leading := _of_join(graph, node))}
    found = dict(joins)
    for node in graph.nodes:
        leading = _of_rows(graph, node, found)
        found.update((result.name, leading) for result in node.results if leading)
    count = len(found) + 1
    while len(found) < count:
        count = len(found)
        for node in reversed(graph.nodes):
            if node.name not in joins and not _is_parted(graph, node, found, joins):
                _drop(node, found)
        for node in graph.nodes:
            if node.name not in joins and not _of_rows(graph, node, found):
                _drop(node, found)
    return found


def _drop(node: Node, found: dict[str, Shape]) -> None:
    for result in node.results:
        found.pop(result.name, None)


def _of_join(graph: Graph, node: Node) -> Shape:
    """Return the leading sizes that a node joins; none if it is no join."""
    if node.operator != "reshape":
        return ()
    before, after = (graph.values[name].type.shape for name in (node.operands[0], node.name))
    for count in range(2, len(before) + 1):
        if (prod(before[:count]), *before[count:]) == after:
            return before[:count]
    return ()


def _of_rows(graph: Graph, node: Node, found: Mapping[str, Shape]) -> Shape:
    """Return the leading sizes of joined rows that a node works on one by one; none if not."""
    of = [found.get(name, ()) for name in node.operands]
    types = [graph.values[name].type for name in node.operands]
    leading = next(filter(None, of), ())
    if not leading or any(one not in ((), leading) for one in of):
        return ()
    kind = operator_class(node.operator)
    if node.operator == "matmul":
        first = bool(of[0]) and not of[1] and not attribute_of(node, "transpose_a")
        return leading if first and types[0].rank > 1 and types[1].rank == 2 else ()
    if node.operator in _ALONG:
        return leading if all(d > 0 for d in _axes(node, types[0].rank)) else ()
    shapes = {result.type.shape[:1] for result in node.results}
    if not issubclass(kind, (Unary, Binary)) or shapes != {(prod(leading),)}:
        return ()
    rank = node.results[0].type.rank
    same = all(t.rank == rank if one else t.rank < rank for one, t in zip(of, types, strict=True))
    return leading if same else ()


def _axes(node: Node, rank: int) -> tuple[int, ...]:
    """Return the dimensions that a node works along."""
    axes = attribute_of(node, "axis")
    if isinstance(axes, int):
        axes = (axes,)
    if not isinstance(axes, tuple) or not axes:
        return (*range(rank),)
    return tuple(axis % rank for axis in axes if isinstance(axis, int))


def _is_parted(
    graph: Graph, node: Node, found: Mapping[str, Shape], joins: Collection[str]
) -> bool:
    """Return whether all that reads joined rows works on them one by one, or parts them again."""
    for result in node.results:
        leading = found.get(result.name, ())
        if leading and result.name in graph.kept():
            return False
        for reader, _ in graph.uses[result.name] if leading else ():
            is_row_wise = reader.name in found and reader.name not in joins
            if not is_row_wise and not _parts(reader, leading):
                return False
    return True


def _parts(node: Node, leading: Shape) -> bool:
    shape = node.results[0].type.shape
    return node.operator == "reshape" and shape[: len(leading)] == leading


@dataclass
class _Apart:
    """The nodes of a program, with rows apart.

    Parameters
    ----------
    graph : Graph
        The program.
    joined : dict of str to shape
        The leading sizes of values that need not be joined.
    values : dict of str to Value
        Such values with their rows apart.
    same : dict of str to str
        Values that parted rows, and the ones that have these rows apart.
    """

    graph: Graph
    joined: dict[str, Shape]
    values: dict[str, Value] = field(default_factory=dict)
    same: dict[str, str] = field(default_factory=dict)

    @cached_property
    def _kept(self) -> set[str]:
        return set(self.graph.kept())

    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes."""
        return tuple(new for node in self.graph.nodes for new in self._rewritten(node))

    def _rewritten(self, node: Node) -> Sequence[Node]:
        if _of_join(self.graph, node) and node.name in self.joined:
            plain = self._with_operands(node)
            source = self.graph.values[node.operands[0]]
            self.values[node.name] = replace(source, name=plain.operands[0])
            return [plain]
        if node.name in self.joined:
            return [self._row_wise(node)]
        leading = self.joined.get(node.operands[0], ()) if node.operands else ()
        if not leading or not _parts(node, leading):
            return [self._with_operands(node)]
        source = self.values[node.operands[0]]
        if source.type.shape == node.results[0].type.shape and node.name not in self._kept:
            self.same[node.name] = source.name
            return []
        return [replace(node, operands=(source.name,))]

    def _with_operands(self, node: Node) -> Node:
        return replace(node, operands=tuple(self.same.get(name, name) for name in node.operands))

    def _row_wise(self, node: Node) -> Node:
        """Return a node that works on rows apart."""
        operands = [
            self.values.get(name)
            or replace(self.graph.values[name], name=self.same.get(name, name))
            for name in node.operands
        ]
        attributes = self._attributes(node)
        info = operator_info(node.operator, [value.type for value in operands], attributes)
        results = tuple(
            replace(result, type=kind)
            for result, kind in zip(node.results, info.result_types, strict=True)
        )
        self.values.update((result.name, result) for result in results)
        names = tuple(value.name for value in operands)
        return replace(node, operands=names, results=results, attributes=attributes)

    def _attributes(self, node: Node) -> Attributes:
        if node.operator not in _ALONG:
            return node.attributes
        more = len(self.joined[node.name]) - 1
        axes = _axes(node, self.graph.values[node.operands[0]].type.rank)
        is_one = isinstance(attribute_of(node, "axis"), int)
        moved = tuple(axis + more for axis in axes)
        return {**node.attributes, "axis": moved[0] if is_one else moved}
