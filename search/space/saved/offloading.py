"""What may be offloaded: tensors saved for backward in host memory, as their operator leaves them.

A tensor is copied to the host when it is made, and back for the first gradient that reads it; its
redistributions run a second time then, as those of a regathered tensor do. The copies are priced
with the operator, the redistributions with the edges.

References
----------
Rhu et al., "vDNN: virtualized deep neural networks for scalable, memory-efficient neural network
design", 2016. Beaumont et al., "Efficient combination of rematerialization and offloading for
training DNNs", 2021.
"""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.profile import OFFLOADED, OperatorTable
from shardwright.ir.graph import Node
from shardwright.ir.layout import Layout, local_bytes
from shardwright.ir.types import TensorType
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.info import operator_class
from shardwright.operators.views import buffer_roots
from shardwright.search.space.context import BuildContext
from shardwright.search.space.saved.regathering import Positions
from shardwright.search.space.space import RecomputedStrategy

Floats = NDArray[np.float64]


@dataclass
class Offloading:
    """The strategies of operators whose result may be saved in host memory.

    What the program marks is offloaded wherever the gradient reads it.

    Parameters
    ----------
    context : BuildContext
        The space.
    excluded : set of str
        Values that are alive at other moments than those of a pass, or that others hold.
    """

    context: BuildContext
    excluded: Set[str]

    def __post_init__(self) -> None:
        self.graph, self.tables = self.context.graph, self.context.tables

    def with_choice(self, node: Node, table: OperatorTable) -> OperatorTable:
        """Return a table with the choice to offload the result, or with nothing else."""
        some, price, intern = self._of(node), self.context.profile.host_copies, self.context.intern
        if node.name in self.marked:
            return intern(("offloaded", table), lambda: _always_offloaded(table, price))
        key = ("may be offloaded", table, some)
        return intern(key, lambda: _with_offloading(table, some, price)) if some else table

    def hold(self, variable: int, table: OperatorTable) -> None:
        """Count the result of an operator in host memory, where it is offloaded."""
        offloaded = table.offloaded
        if offloaded is None:
            return

        def sizes() -> Floats:
            tensor, mesh = table.info.result_types[0], self.context.mesh
            held = [local_bytes(tensor, layout, mesh) for layout in table.results[0]]
            return np.where(offloaded, held, 0.0)

        self.context.memory.hold_hosted(variable, self.context.intern(("in host", table), sizes))

    @cached_property
    def marked(self) -> frozenset[str]:
        """The marked operators whose result is offloaded."""
        nodes = (self.graph.producers[name] for name in self.graph.offloaded)
        return frozenset(node.name for node in nodes if self._is_movable(node))

    def _of(self, node: Node) -> Positions:
        """Return the strategies with which the search may offload the result of an operator."""
        host = self.context.host
        if host is None or not host.offered or not self._is_movable(node):
            return ()
        if node.name in self.marked or node.name in self.graph.recomputed:
            return ()
        layouts = self.tables[node.name].results[0]
        return tuple(i for i, layout in enumerate(layouts) if not layout.partial)

    def _is_movable(self, node: Node) -> bool:
        """Return whether the gradient surely reads the result of an operator, a buffer of its own.

        A tensor that shares its buffer with views stays on the device.
        """
        table = self.tables.get(node.name)
        return (
            table is not None
            and table.recompute is not None
            and bool(node.operands)
            and len(node.results) == 1
            and node.name not in self.excluded
            and node.name not in self._viewed
            and not issubclass(operator_class(node.operator), Communication)
            and self._is_read(node)
        )

    def _is_read(self, node: Node) -> bool:
        """Return whether a gradient saves the result with every strategy.

        Of a tensor with several readers, that of one of them: else it depends on what is recomputed
        whether it is redistributed to the layout that they share.
        """
        uses = self.graph.uses[node.name]
        if len(uses) < 2 and self.tables[node.name].memory.results[0].all():
            return True
        return any(
            reader.name in self.tables and self.tables[reader.name].memory.operands[position].all()
            for reader, position in uses
        )

    @cached_property
    def _viewed(self) -> frozenset[str]:
        roots = buffer_roots(self.graph.nodes)
        return frozenset(roots) | frozenset(roots.values())


CopyCost = Callable[[TensorType, Sequence[Layout]], Floats]


def _always_offloaded(table: OperatorTable, price: CopyCost) -> OperatorTable:
    """Return the table of an operator whose result is offloaded with every strategy."""
    costs = price(table.info.result_types[0], table.results[0])
    return replace(table, cost=table.cost + costs, offloaded=np.ones(len(costs), dtype=bool))


def _with_offloading(table: OperatorTable, some: Positions, price: CopyCost) -> OperatorTable:
    """Return a table with another option for some of its strategies: that its result is offloaded.

    The strategies are the first of the table, as it is without any choice of what is saved.
    """
    if not some or table.recompute is None:
        return table
    chosen, count = list(some), len(table.cost)
    layouts = tuple(table.results[0][i] for i in some)
    costs = table.cost[chosen] + price(table.info.result_types[0], layouts)
    more = tuple(RecomputedStrategy(table.strategies[i].assignment, OFFLOADED) for i in some)
    none = np.zeros(len(chosen), dtype=np.int64)
    recomputed, regathered = table.recomputed, table.regathered
    return replace(
        table,
        strategies=table.strategies + more,
        cost=np.concatenate([table.cost, costs]),
        operands=tuple((*of, *(of[i] for i in some)) for of in table.operands),
        results=tuple((*of, *(of[i] for i in some)) for of in table.results),
        memory=table.memory.and_again(some),
        recompute=table.recompute.and_again(chosen),
        recomputed=None if recomputed is None else np.concatenate([recomputed, none]),
        regathered=None if regathered is None else np.concatenate([regathered, none > 0]),
        offloaded=np.arange(count + len(chosen)) >= count,
    )
