"""Pins: strategies that a person has fixed."""

from shardwright.cost_model.profile import OperatorTable
from shardwright.ir.errors import StrategyError
from shardwright.ir.graph import Node
from shardwright.ir.mesh import Mesh
from shardwright.operators.info import SplitCounts


def pinned_table(
    table: OperatorTable, node: Node, counts: SplitCounts, mesh: Mesh, results: bool
) -> OperatorTable:
    """Return the table with only the strategies that split operands, or results, as asked.

    Raises
    ------
    StrategyError
        If there is none.
    """
    counts = tuple(tuple(count) for count in counts)
    info = table.info

    def found(position: int) -> SplitCounts:
        if results:
            return tuple(left[position].counts(mesh) for left in table.results)
        return info.split_counts(table.strategies[position], mesh)

    keep = [i for i in range(len(table.strategies)) if found(i) == counts]
    if not keep:
        shapes = tuple(tensor.shape for tensor in info.operand_types)
        what = "leave its results" if results else "be"
        raise StrategyError(
            f"`{node.operator}` cannot {what} split by {counts}: its operands are {shapes} and the "
            f"mesh is {mesh}",
            f"the strategy pinned on `{node.name}`",
            "give the number of slices of each dimension, for each tensor",
        )
    return OperatorTable(
        info,
        tuple(table.strategies[i] for i in keep),
        table.cost[keep],
        tuple(tuple(ports[i] for i in keep) for ports in table.operands),
        tuple(tuple(left[i] for i in keep) for left in table.results),
        table.memory.of(keep),
    )
