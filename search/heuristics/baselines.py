"""The plans of textbooks: data parallel, tensor parallel (Megatron's), fully sharded.

Each walks through the program in order, and an operator follows the layouts of its activations. The
plans are points of the search space, so an exact search is never worse.
"""

from collections.abc import Iterator
from dataclasses import replace

from shardwright.search.heuristics.batch import batch_layout, follow_batch
from shardwright.search.heuristics.completion import complete, replicated, scattered
from shardwright.search.heuristics.tensor_ranks import walk
from shardwright.search.method import Heuristic, SearchResult
from shardwright.search.options import SearchOptions
from shardwright.search.plan_axes import PlanAxes
from shardwright.search.space.space import SearchSpace


class _OverBatch(Heuristic):
    """A plan that splits the batch over all axes that divide it, and says where those are few."""

    def find(self, space: SearchSpace, options: SearchOptions) -> SearchResult:
        """Return the plan; its account tells over how many ranks the batch is split."""
        result = super().find(space, options)
        ranks = space.mesh.of_ranks
        parts = max(_parts(space), default=1)
        if parts == ranks.size:
            return result
        what = f"the batch is split over {parts} of {ranks.size} ranks: no other axis divides it"
        return replace(result, how=f"{result.how}, {what}")


def _parts(space: SearchSpace) -> Iterator[int]:
    """Yield over how many ranks each input is split."""
    mesh = space.mesh
    for value in space.graph.inputs:
        if value.type.rank:
            axes = batch_layout(value, mesh, mesh.names).splits[0]
            yield mesh.extent(axis for axis in axes if axis not in mesh.in_time)


class DataParallel(_OverBatch):
    """Split the batch over all axes that divide it, and keep every parameter whole."""

    name = "data_parallel"

    def assignment(self, space: SearchSpace) -> tuple[int, ...]:
        """Follow the batch; store parameters as they are read."""
        strategies = follow_batch(space.graph, space.mesh, space.mesh.names)
        return complete(space, strategies, replicated)


class FullySharded(_OverBatch):
    """Split the batch over all axes that divide it; store parameters split, gather for readers."""

    name = "fully_sharded"

    def assignment(self, space: SearchSpace) -> tuple[int, ...]:
        """Follow the batch; scatter parameters."""
        strategies = follow_batch(space.graph, space.mesh, space.mesh.names)
        return complete(space, strategies, scattered)


class TensorParallel(Heuristic):
    """Split weights inside a node, alternately by columns and rows, and the batch across nodes.

    References
    ----------
    Shoeybi et al., "Megatron-LM", 2019.
    """

    name = "tensor_parallel"

    def assignment(self, space: SearchSpace) -> tuple[int, ...]:
        """Follow the batch over the outer axes; split weights over the inner ones."""
        inner = tuple(axis.name for axis in space.mesh.axes if axis.level == 0)
        outer = tuple(name for name in space.mesh.names if name not in inner)
        axes = PlanAxes(outer, (), inner)
        found = walk(space.graph, space.mesh, axes, by_position=False)
        return complete(space, found.strategies, replicated)
