"""What experts compute on their rows, emitted on rows of experts ``[expert, token..., feature]``.

The experts may be one chain of operators on rows that are sorted by expert, or a chain for each;
then the chains must be the same but for their weights, which are stacked.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardwright.frontends.common.mixtures.probes import attribute_text
from shardwright.frontends.common.patterns.matches import attribute_of
from shardwright.ir.graph import Graph, Node, Value
from shardwright.operators.builder import Builder
from shardwright.operators.elementwise.functions import Binary, Unary
from shardwright.operators.info import operator_class

Names = tuple[str, ...]  # one for each chain
_FEATURES = ("split", "slice")  # operators that may cut features


@dataclass
class Lifting:
    """Chains of operators, emitted on rows of experts.

    Parameters
    ----------
    graph : Graph
        The program.
    build : Builder
        What emits.
    rows : Value
        The rows of experts.
    starts : collection of str
        The rows of the chains.
    constant : collection of str
        Values that depend on parameters alone.
    experts : tuple of int
        The expert of each chain; none for rows that are sorted.
    """

    graph: Graph
    build: Builder
    rows: Value
    starts: Collection[str]
    constant: Collection[str]
    experts: tuple[int, ...] = ()
    made: dict[tuple[Names, int], Value | None] = field(default_factory=dict)

    def lifted(self, names: Names) -> Value | None:
        """Return values of rows on rows of experts; None where they have no such form."""
        if names[0] in self.starts:
            return self.rows if all(name in self.starts for name in names) else None
        nodes = self._alike(names)
        if nodes is None:
            return None
        index = [result.name for result in nodes[0].results].index(names[0])
        key = tuple(node.name for node in nodes), index
        if key not in self.made:
            results = self._computed(nodes)
            for number in range(len(nodes[0].results)):
                self.made[key[0], number] = results[number] if results else None
        return self.made[key]

    def _alike(self, names: Names) -> list[Node] | None:
        """Return the nodes of values if they are of one operator."""
        nodes = [self.graph.producers.get(name) for name in names]
        found = [node for node in nodes if node is not None]
        if len(found) < len(names):
            return None
        first, *others = found
        text = attribute_text(first.attributes)
        same = all(
            one.operator == first.operator
            and attribute_text(one.attributes) == text
            and len(one.operands) == len(first.operands)
            for one in others
        )
        return found if same else None

    def _computed(self, nodes: list[Node]) -> tuple[Value, ...] | None:
        first = nodes[0]
        operands: list[Names] = [*zip(*(node.operands for node in nodes), strict=True)]
        if first.operator in ("dispatch", "combine"):
            found = None if self.experts else self.lifted(operands[0])
        elif first.operator in ("matmul", "grouped_matmul", "einsum"):
            found = self._product(first, operands)
        elif first.operator == "reshape":
            found = self._same_rows(first, operands[0])
        elif first.operator in _FEATURES:
            return self._cut(first, operands[0])
        elif issubclass(operator_class(first.operator), Unary | Binary):
            found = self._by_element(first, operands)
        else:
            found = None
        return None if found is None else (found,)

    def _product(self, first: Node, operands: list[Names]) -> Value | None:
        rows, turned = self.lifted(operands[0]), "transposed"
        if first.operator == "matmul":
            turned = "transpose_b"
            is_plain = self.graph.values[first.operands[1]].type.rank == 2
            if not is_plain or attribute_of(first, "transpose_a") or not self.experts:
                return None
            matrices = self.weights(operands[1])
        elif self.experts or first.operator == "einsum":
            return None
        else:
            matrices = self.graph.values[first.operands[1]]
        if rows is None or matrices is None:
            return None
        is_turned = bool(attribute_of(first, turned))
        return self.build.emit("grouped_matmul", rows, matrices, transposed=is_turned)

    def _same_rows(self, first: Node, names: Names) -> Value | None:
        """Return rows that a reshape leaves as they are, but for dimensions of one."""
        before, after = (
            [size for size in self.graph.values[name].type.shape if size != 1]
            for name in (names[0], first.name)
        )
        widths = [self.graph.values[name].type.shape[-1] for name in (names[0], first.name)]
        return self.lifted(names) if before == after and widths[0] == widths[1] else None

    def _cut(self, first: Node, names: Names) -> tuple[Value, ...] | None:
        """Return parts of the features."""
        kind, rows = self.graph.values[names[0]].type, self.lifted(names)
        if rows is None:
            return None
        last, shape = rows.type.rank - 1, rows.type.shape
        how: dict[str, Any] = dict(first.attributes)
        if first.operator == "split":
            if attribute_of(first, "axis") not in (-1, kind.rank - 1):
                return None
            how["axis"] = last
        else:
            begin, size, stride = (attribute_of(first, key) for key in ("begin", "size", "strides"))
            if not isinstance(begin, tuple) or not isinstance(size, tuple):
                return None
            if any(begin[:-1]) or size[:-1] != kind.shape[:-1]:
                return None
            how["begin"], how["size"] = (*(0,) * last, begin[-1]), (*shape[:-1], size[-1])
            if isinstance(stride, tuple) and stride:
                if any(step != 1 for step in stride[:-1]):
                    return None
                how["strides"] = (*(1,) * last, stride[-1])
        return self.build.emit_all(first.operator, rows, **how)

    def _by_element(self, first: Node, operands: list[Names]) -> Value | None:
        found = [self._operand(names, first) for names in operands]
        given = [one for one in found if one is not None]
        if len(given) < len(found):
            return None
        how: dict[str, Any] = dict(first.attributes)
        return self.build.emit(first.operator, *given, **how)

    def _operand(self, names: Names, first: Node) -> Value | None:
        """Return an operand beside rows: a number, features, or features of each expert."""
        kind = self.graph.values[names[0]].type
        is_row = all(size == 1 for size in kind.shape[:-1])
        if not is_row or not all(name in self.constant for name in names):
            rows = self.lifted(names)
            width = self.graph.values[first.name].type.shape[-1]
            return rows if rows is None or rows.type.shape[-1] == width else None
        value = self.graph.values[names[0]]
        if len({*names}) == 1:
            return value if value.type.rank < 2 else self._flat(value, kind.elements)
        stacked = self.weights(names)
        if stacked is None:
            return None
        ones = (1,) * (self.rows.type.rank - 2)
        shape = (len(names), *ones, kind.elements)
        return self.build.emit("reshape", stacked, shape=shape)

    def _flat(self, value: Value, size: int) -> Value:
        return self.build.emit("reshape", value, shape=(size,))

    def weights(self, names: Names) -> Value | None:
        """Return weights of experts, stacked; None if a value is none."""
        if not all(name in self.constant for name in names):
            return None
        parameters = {parameter.name for parameter in self.graph.parameters}
        if all(name in parameters for name in names):
            return self._stacked(names)
        nodes = self._alike_but_parts(names)
        if nodes is None:
            return None
        whole = self._part_of_one(nodes, names)
        if whole is not None:
            return whole
        if nodes[0].operator == "transpose":
            inner = self.weights(tuple(node.operands[0] for node in nodes))
            order = attribute_of(nodes[0], "permutation") or (1, 0)
            if inner is None or not isinstance(order, tuple):
                return None
            turned = (0, *(int(str(d)) + 1 for d in order))
            return self.build.emit("transpose", inner, permutation=turned)
        return None

    def _alike_but_parts(self, names: Names) -> list[Node] | None:
        nodes = [self.graph.producers.get(name) for name in names]
        found = [node for node in nodes if node is not None]
        is_one = len({node.operator for node in found}) == 1 and len(found) == len(names)
        return found if is_one else None

    def _stacked(self, names: Names) -> Value:
        values = [self.graph.values[name] for name in names]
        shape = (1, *values[0].type.shape)
        rows = [self.build.emit("reshape", value, shape=shape) for value in values]
        return self.build.emit("concat", *rows, axis=0)

    def _part_of_one(self, nodes: list[Node], names: Names) -> Value | None:
        """Return the tensor of which each expert has its own part along the first dimension."""
        if nodes[0].operator != "reshape":
            return None
        cuts = [self.graph.producers.get(node.operands[0]) for node in nodes]
        found = [cut for cut in cuts if cut is not None and cut.operator == "slice"]
        if len(found) < len(nodes) or len({cut.operands[0] for cut in found}) > 1:
            return None
        whole = self.graph.values[found[0].operands[0]]
        part = (1, *whole.type.shape[1:])
        for cut, node, expert in zip(found, nodes, self.experts, strict=True):
            begin = (expert, *(0,) * (whole.type.rank - 1))
            if attribute_of(cut, "begin") != begin or attribute_of(cut, "size") != part:
                return None
            if node.results[0].type.shape != part[1:]:
                return None
        return whole if whole.type.shape[0] == len(names) else None


def constants_of(graph: Graph) -> Mapping[str, bool]:
    """Return values that depend on parameters alone, and whether one of those is trained."""
    found = {parameter.name: parameter.trainable for parameter in graph.parameters}
    for node in graph.nodes:
        if all(name in found for name in node.operands):
            is_trained = any(found[name] for name in node.operands)
            found.update((result.name, is_trained) for result in node.results)
    return found
