"""The plans of textbooks: data parallel, tensor parallel (Megatron's), fully sharded.

Each walks through the program in order: an operator follows the layouts of its activations, and the
method decides at each weight. The plans are points of the search space, so an exact search is never
worse.
"""

from shardwright.ir.graph import Node
from shardwright.operators.info import OperatorInfo
from shardwright.operators.rule import Rule
from shardwright.search.heuristics.batch import can_split, follow_batch
from shardwright.search.heuristics.completion import complete, replicated, scattered
from shardwright.search.method import Heuristic
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
        parameters = {parameter.name for parameter in space.graph.parameters}
        parameters |= {cast.name for cast in space.casts.values()}

        def at_weight(info: OperatorInfo, node: Node, factors: dict[str, tuple[str, ...]]) -> None:
            if any(set(axes) & set(inner) for axes in factors.values()):
                return
            for i, name in enumerate(node.operands):
                if name in parameters and info.operand_types[i].rank == 2:
                    factor = column_factor(info.rule, i)
                    if factor and can_split(info.rule, factor, inner, space.mesh):
                        factors[factor] = factors.get(factor, ()) + inner
                        return

        return complete(space, follow_batch(space.graph, space.mesh, outer, at_weight), replicated)


def column_factor(rule: Rule, weight: int) -> str | None:
    """Return the factor of a weight that no other operand has: columns, or rows of an embedding."""
    others = {
        factor
        for i, dims in enumerate(rule.operands)
        if i != weight
        for factors in dims
        for factor in factors
    }
    own = [f for factors in rule.operands[weight] for f in factors if f not in others]
    contracted = [factor for factor in own if rule.kinds[factor] == "sum"]
    return next(iter(contracted or own), None)
