"""Operators of MindSpore that write slices into a tensor at positions, as compositions."""

from collections.abc import Sequence
from typing import ClassVar

from shardwright.ir.graph import Node, Value
from shardwright.operators.indexing.scatter import emit_scatter_nd_add
from shardwright.operators.info import SplitCounts
from shardwright.ops.composite import Composition
from shardwright.tensor import Tensor, TracedTensor
from shardwright.tracer import current_tracer


class Written(Composition):
    """The base of operators that write slices into a tensor at tuples of positions."""

    rows: ClassVar[bool] = False  # whether positions are single numbers, of rows

    def alike(self, shapes: Sequence[tuple[int, ...]]) -> str:
        """Split what the slices have of the tensor as there, and other dimensions as positions."""
        tensor, positions, _ = shapes
        depth = 1 if self.rows else positions[-1]
        places = len(positions) - (0 if self.rows else 1)
        v, e, i = (
            " ".join(f"{letter}{d}" for d in range(count))
            for letter, count in (("v", depth), ("e", len(tensor) - depth), ("i", places))
        )
        return f"{v} {e}, {i}{'' if self.rows else ' k^'}, {i} {e} -> {v} {e}"

    def _pins(self, nodes: Sequence[Node], values: Sequence[Value]) -> dict[str, SplitCounts]:
        """Split the operator that writes, of which single numbers are positions of one entry."""
        pins = super()._pins(nodes, values)
        x, positions, updates = self.in_strategy or ()
        whole = (x, (*positions, 1) if self.rows else positions, updates)
        own = (node for node in nodes if len(node.operands) == len(values))
        return pins | {node.name: whole for node in own if node.operands[0] == values[0].name}


class TensorScatterAdd(Written):
    """A tensor plus slices at tuples of positions; slices at one position add up."""

    sign = 1.0

    def compose(self, input_x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
        """Add."""
        tracer = current_tracer()
        updates = updates if self.sign > 0 else -updates
        values = (item.value(tracer) for item in (input_x, indices, updates))
        return TracedTensor(emit_scatter_nd_add(tracer, *values))


class TensorScatterSub(TensorScatterAdd):
    """A tensor less slices at tuples of positions; slices at one position add up."""

    sign = -1.0
