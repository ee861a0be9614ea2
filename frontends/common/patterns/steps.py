"""What many steps compute alike, as one computation of all steps.

A loop that was unrolled leaves for every step the same operators on its own slices of some tensors.
Together they are one operator on the tensors, which have one dimension more: that of the steps.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from shardwright.frontends.common.patterns.matches import attribute_of
from shardwright.ir.graph import Graph, Node, Value
from shardwright.operators.builder import Builder
from shardwright.operators.elementwise.functions import Binary, Unary
from shardwright.operators.info import operator_class
from shardwright.operators.rule import Shape

Names = tuple[str, ...]


@dataclass(frozen=True)
class OfSteps:
    """A value of every step.

    Parameters
    ----------
    value : Value
        The values of all steps.
    axis : int or None
        The dimension of the steps; None where the value is the same in all steps.
    """

    value: Value
    axis: int | None

    @property
    def shape(self) -> Shape:
        """The shape of the value of one step."""
        shape = self.value.type.shape
        return shape if self.axis is None else (*shape[: self.axis], *shape[self.axis + 1 :])


class Steps:
    """Finds the values of many steps, and emits them as one value.

    Parameters
    ----------
    graph : Graph
        The program.
    build : Builder
        Emits.
    """

    def __init__(self, graph: Graph, build: Builder) -> None:
        self.graph, self.build = graph, build
        self.known: dict[Names, OfSteps | None] = {}
        self.views: dict[str, Value] = {}  # the tensors that reshaped ones are made of

    def of(self, names: Names, pending: Collection[str] = ()) -> OfSteps | None:
        """Return the values of all steps as one; None where they are not alike.

        Parameters
        ----------
        names : tuple of str
            The value of each step.
        pending : collection of str
            Values that must not be read.
        """
        if names not in self.known:
            self.known[names] = self._found(names, pending)
        return self.known[names]

    def _found(self, names: Names, pending: Collection[str]) -> OfSteps | None:
        if any(name in pending for name in names):
            return None
        if len(set(names)) == 1:
            return OfSteps(self.graph.values[names[0]], None)
        nodes = [node for name in names if (node := self.graph.producers.get(name)) is not None]
        first = nodes[0] if nodes else None
        if first is None or len(nodes) < len(names) or len(first.results) > 1:
            return None
        if any(node.operator != first.operator for node in nodes):
            return None
        if first.operator == "slice" and (whole := self._sliced(nodes)) is not None:
            return whole
        if any(node.attributes != first.attributes for node in nodes):
            return None
        columns = zip(*(node.operands for node in nodes), strict=True)
        operands = [self.of(column, pending) for column in columns]
        found = [operand for operand in operands if operand is not None]
        if len(found) < len(operands):
            return None
        if all(operand.axis is None for operand in found):
            return OfSteps(first.results[0], None)
        return self._applied(first, found)

    def _sliced(self, nodes: Sequence[Node]) -> OfSteps | None:
        """Return the tensor of which every step takes the next slice of size one."""
        first = nodes[0]
        if len({node.operands for node in nodes}) > 1 or first.attributes.get("strides"):
            return None
        begins, sizes = ([_numbers(node, key) for node in nodes] for key in ("begin", "size"))
        begin, size = begins[0], sizes[0]
        moving = [d for d in range(len(size)) if any(b[d] != begin[d] for b in begins)]
        if any(other != size for other in sizes) or len(moving) != 1 or size[moving[0]] != 1:
            return None
        axis = moving[0]
        if any(b[axis] != begin[axis] + step for step, b in enumerate(begins)):
            return None
        whole = self.graph.values[first.operands[0]]
        wanted = (*size[:axis], len(nodes), *size[axis + 1 :])
        if whole.type.shape != wanted:
            whole = self.build.emit("slice", whole, begin=begin, size=wanted)
        shape = first.results[0].type.shape
        return OfSteps(self._reshaped(whole, (*shape[:axis], len(nodes), *shape[axis:])), axis)

    def _applied(self, node: Node, operands: Sequence[OfSteps]) -> OfSteps | None:
        """Return an operator of every step as one of all steps."""
        kind = operator_class(node.operator)
        if node.operator in ("cast", "where") or issubclass(kind, (Unary, Binary)):
            return self._elementwise(node, operands)
        if node.operator == "matmul":
            return self._product(node, *operands)
        if node.operator in ("reshape", "squeeze", "expand_dims"):
            return self._in_shape(operands[0], node.results[0].type.shape)
        if node.operator == "transpose":
            rank = len(operands[0].shape)
            order = _numbers(node, "permutation") or tuple(reversed(range(rank)))
            turned = (0, *(d % rank + 1 for d in order))
            value = self.moved(operands[0], 0)
            return OfSteps(self.build.emit("transpose", value, permutation=turned), 0)
        if node.operator == "broadcast_to":
            return self.broadcast(operands[0], node.results[0].type.shape)
        return None

    def _elementwise(self, node: Node, operands: Sequence[OfSteps]) -> OfSteps | None:
        rank = node.results[0].type.rank
        moved = next(x for x in operands if x.axis is not None)
        assert moved.axis is not None
        behind = len(moved.shape) - moved.axis
        values = [self._aligned(operand, behind) for operand in operands]
        how: dict[str, Any] = {**node.attributes}
        found = self.build.emit(node.operator, *values, **how)
        return OfSteps(found, rank - behind)

    def _aligned(self, x: OfSteps, behind: int) -> Value:
        """Return a value whose steps stand before so many dimensions, which may be broadcast."""
        shape = x.shape
        missing = max(behind - len(shape), 0)
        front, back = shape[: len(shape) - behind + missing], shape[len(shape) - behind + missing :]
        if x.axis is None:
            is_wide = len(shape) > behind
            return self._reshaped(x.value, (*front, 1, *back)) if is_wide else x.value
        steps = x.value.type.shape[x.axis]
        value = self.moved(x, len(front))
        return self._reshaped(value, (*front, steps, *(1,) * missing, *back))

    def moved(self, x: OfSteps, axis: int) -> Value:
        """Return the values with their steps along another dimension."""
        assert x.axis is not None
        order = [d for d in range(x.value.type.rank) if d != x.axis]
        order.insert(axis, x.axis)
        if x.axis == axis:
            return x.value
        return self.build.emit("transpose", x.value, permutation=tuple(order))

    def broadcast(self, x: OfSteps, shape: Shape, steps: int | None = None) -> OfSteps:
        """Return the values, each repeated to a shape; with `steps` in each of so many steps."""
        if x.axis is None:
            if steps is None:
                return x
            whole = self.build.emit("broadcast_to", x.value, shape=(steps, *shape))
            return OfSteps(whole, 0)
        behind = len(x.shape) - x.axis
        axis, count = len(shape) - behind, x.value.type.shape[x.axis]
        wanted = (*shape[:axis], count, *shape[axis:])
        if x.value.type.shape == wanted:
            return x
        return OfSteps(self.build.emit("broadcast_to", x.value, shape=wanted), axis)

    def _in_shape(self, x: OfSteps, shape: Shape) -> OfSteps:
        """Return the values, each reshaped."""
        assert x.axis is not None
        before = prod(x.shape[: x.axis])
        places = [p for p in range(len(shape) + 1) if prod(shape[:p]) == before]
        axis = places[0] if places else 0
        value = x.value if places else self.moved(x, 0)
        count = x.value.type.shape[x.axis]
        return OfSteps(self._reshaped(value, (*shape[:axis], count, *shape[axis:])), axis)

    def _product(self, node: Node, a: OfSteps, b: OfSteps) -> OfSteps | None:
        """Return the products of all steps, without moving a dimension."""
        if min(len(a.shape), len(b.shape)) < 2:
            return None
        left, right = self._letters(a, "mk", node, "a"), self._letters(b, "kn", node, "b")
        sizes: dict[str, int] = {}
        for letters, x in ((left, a), (right, b)):
            for letter, size in zip(letters, x.value.type.shape, strict=True):
                if sizes.setdefault(letter, size) != size:
                    return None
        leading = ("".join(c for c in letters if c not in "kmns") for letters in (left, right))
        result = max(leading, key=len) + "mn"
        first, most = (a.axis, len(result)) if a.axis is not None else (b.axis, len(result) - 2)
        assert first is not None
        axis = min(first, most)
        equation = f"{left},{right}->{result[:axis]}s{result[axis:]}"
        return OfSteps(self.build.emit("einsum", a.value, b.value, equation=equation), axis)

    def _letters(self, x: OfSteps, last: str, node: Node, which: str) -> str:
        """Return a letter for each dimension of a factor; ``s`` for that of the steps."""
        count = len(x.shape) - 2
        turned = attribute_of(node, f"transpose_{which}")
        letters = "zyxwvut"[7 - count :] + (last[::-1] if turned else last)
        return letters if x.axis is None else f"{letters[: x.axis]}s{letters[x.axis :]}"

    def _reshaped(self, value: Value, shape: Shape) -> Value:
        """Return a value in another shape, of a reshaped one by a single reshape."""
        source = self.views.get(value.name, value)
        if source.type.shape == shape:
            return source
        found = self.build.emit("reshape", source, shape=shape)
        self.views[found.name] = source
        return found

    def rename(self, value: Value, name: str) -> None:
        """Remember that a value has another name."""
        for names, found in self.known.items():
            if found is not None and found.value == value:
                self.known[names] = replace(found, value=replace(value, name=name))
        self.views.pop(value.name, None)
        self.views = {n: x for n, x in self.views.items() if x != value}


def _numbers(node: Node, attribute: str) -> Shape:
    found = attribute_of(node, attribute)
    assert isinstance(found, tuple)
    return tuple(n for n in found if isinstance(n, int))
