"""What blocks save of what others make: a part of the memory that no plan is without.

Blocks alone count no buffer that two of them touch, so that none counts twice. But a value with
samples that one block hands to another, of another segment, is never computed again. Where a
gradient of the block that reads it reads it too, some copy of it is held from forward to backward,
of at least its share of the mesh, in whatever layout. It counts in the block that receives it, if
that is the only one.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from shardwright.cost_model.emission import emit
from shardwright.dataflow.segments import segments
from shardwright.dataflow.stretches import Stretch
from shardwright.ir.layout import Strategy
from shardwright.ir.mesh import Mesh
from shardwright.operators.info import info_of
from shardwright.operators.views import buffer_roots
from shardwright.planner.plan.blocks import Blocks


@dataclass
class PassedBytes:
    """The bytes of what blocks save of others.

    Parameters
    ----------
    blocks : Blocks
        The blocks of a program.
    """

    blocks: Blocks

    def of(self, block: int) -> float:
        """Return the bytes of what a block receives and saves in each micro-batch, whole."""
        part = self.blocks.stretch(block, block + 1)
        saved = {self._root(name) for name in part.received if self._is_saved(name, part)}
        values = self.blocks.loop.graph.values
        return float(sum(values[root].type.nbytes for root in saved))

    def _root(self, name: str) -> str:
        return self._roots.get(name, name)

    def _is_saved(self, name: str, part: Stretch) -> bool:
        """Return whether some copy of a value is saved for the gradients of a block alone."""
        loop, maker = self.blocks.loop, self.blocks.line.graph.producers.get(name)
        alone = self._receivers[self._root(name)] == 1
        if maker is None or not alone or not loop.is_split(name) or name in self._late:
            return False
        readers = [(n, at) for n, at in part.graph.uses[name] if n.name not in self._everywhere]
        handed_on = all(self._segments[n.name] != self._segments[maker.name] for n, _ in readers)
        return handed_on and any(self._saves(n.name, at, part) for n, at in readers)

    def _saves(self, name: str, position: int, part: Stretch) -> bool:
        """Return whether the gradient of an operator reads one of its operands."""
        graph = self.blocks.loop.graph
        node = next(node for node in graph.nodes if node.name == name)
        emission = emit(info_of(graph, node), Strategy(), part.flow.operands[name], Mesh(()))
        return emission.saved_operands[position] > 0

    @property
    def _everywhere(self) -> frozenset[str]:
        return self.blocks.line.everywhere

    @property
    def _late(self) -> frozenset[str]:
        """The values that exist once, after all micro-batches."""
        loop = self.blocks.loop
        return loop.late if loop.passes > 1 else frozenset()

    @cached_property
    def _roots(self) -> dict[str, str]:
        return dict(buffer_roots(self.blocks.line.graph.nodes))

    @cached_property
    def _segments(self) -> dict[str, int]:
        return segments(self.blocks.line.graph)

    @cached_property
    def _receivers(self) -> Counter[str]:
        """For each buffer, the number of blocks that receive it."""
        parts = (self.blocks.stretch(block, block + 1) for block in range(len(self.blocks)))
        return Counter(root for part in parts for root in {*map(self._root, part.received)})
