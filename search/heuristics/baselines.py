"""The plans of textbooks: data parallel, tensor parallel (Megatron's), fully sharded.

Each walks through the program in order, and an operator follows the layouts of its activations. The
plans are points of the search space, so an exact search is never worse.
"""

from shardwright.search.heuristics.batch import follow_batch
from shardwright.search.heuristics.completion import complete, replicated, scattered
from shardwright.search.heuristics.tensor_ranks import walk
from shardwright.search.method import Heuristic
from shardwright.search.named_plan import PlanAxes
from shardwright.search.space.space import SearchSpace


class DataParallel(Heuristic):
    """Split the batch over all axes and keep every parameter whole."""

    name = "data_parallel"

    def assignment(self, space: SearchSpace) -> tuple[int, ...]:
        """Follow the batch; store parameters as they are read."""
        strategies = follow_batch(space.graph, space.mesh, space.mesh.names)
        return complete(space, strategies, replicated)


class FullySharded(Heuristic):
    """Split the batch over all axes; store parameters split, and gather them for their readers."""

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
