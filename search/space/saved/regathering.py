"""What may be regathered: tensors saved as their operator leaves them, in fewer bytes than read.

An operator leaves its result split finer than a reader takes it, as before a product of tensor
parallelism where the sequence is split. Either the reader's copy is saved for backward, or the
result itself, and its redistribution runs a second time.

References
----------
Korthikanti et al., "Reducing activation recomputation in large transformer models", 2022.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from shardwright.cost_model.profile import OperatorTable
from shardwright.ir.graph import Graph, Node
from shardwright.ir.layout import local_bytes
from shardwright.ir.mesh import Mesh
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.info import operator_class
from shardwright.operators.views import buffer_roots
from shardwright.search.space.space import RecomputedStrategy

Positions = tuple[int, ...]


@dataclass
class Regathering:
    """The strategies of operators whose result may be saved as it is, and regathered.

    Parameters
    ----------
    graph : Graph
        The whole program.
    tables : mapping of str to OperatorTable
        The table of each operator.
    mesh : Mesh
        The mesh.
    excluded : set of str
        Values that are alive at other moments than those of a pass, or that others hold.
    """

    graph: Graph
    tables: Mapping[str, OperatorTable]
    mesh: Mesh
    excluded: Set[str]

    def of(self, node: Node) -> Positions:
        """Return the strategies with which an operator leaves fewer bytes than a reader saves.

        A tensor that shares its buffer with views has none.
        """
        table = self.tables.get(node.name)
        if table is None or table.recompute is None or not self._is_eligible(node):
            return ()
        value, most = node.results[0], 0.0
        for reader, position in self.graph.uses[value.name]:
            read = self.tables.get(reader.name)
            if read is not None and read.memory.operands[position].any():
                layouts = {edge.layout for edge in read.operands[position]}
                sizes = (local_bytes(value.type, layout, self.mesh) for layout in layouts)
                most = max(most, *sizes)
        return tuple(
            i
            for i, layout in enumerate(table.results[0])
            if not layout.partial and local_bytes(value.type, layout, self.mesh) < most
        )

    def _is_eligible(self, node: Node) -> bool:
        return (
            bool(node.operands)
            and len(node.results) == 1
            and node.name not in self.excluded
            and node.name not in self._viewed
            and node.name not in {*self.graph.recomputed, *self.graph.offloaded}
            and not issubclass(operator_class(node.operator), Communication)
        )

    @cached_property
    def _viewed(self) -> frozenset[str]:
        roots = buffer_roots(self.graph.nodes)
        return frozenset(roots) | frozenset(roots.values())


def with_regathering(table: OperatorTable, again: Positions) -> OperatorTable:
    """Return a table with another option for some of its strategies: that its result is regathered.

    The redistribution is priced with the edges.
    """
    if not again or table.recompute is None:
        return table
    some = list(again)
    more = tuple(RecomputedStrategy(table.strategies[i].assignment, 3) for i in again)
    recomputed, none = table.recomputed, np.zeros(len(some), dtype=np.int64)
    return replace(
        table,
        strategies=table.strategies + more,
        cost=np.concatenate([table.cost, table.cost[some]]),
        operands=tuple((*of, *(of[i] for i in again)) for of in table.operands),
        results=tuple((*of, *(of[i] for i in again)) for of in table.results),
        memory=table.memory.and_again(again),
        recompute=table.recompute.and_again(some),
        recomputed=None if recomputed is None else np.concatenate([recomputed, none]),
        regathered=np.arange(len(table.cost) + len(some)) >= len(table.cost),
    )
