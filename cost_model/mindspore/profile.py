"""The profile that minimises what MindSpore's search minimises."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.mindspore.costs import MindSporeCosts, is_followed
from shardwright.cost_model.profile import EdgeLayout, OperatorTable, operator_table
from shardwright.cost_model.redistribution.moves import Kinds
from shardwright.cost_model.redistribution.planner import RedistributionPlanner
from shardwright.ir.graph import Graph
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import TensorType
from shardwright.operators.info import OperatorInfo, operator_info

Floats = NDArray[np.float64]


class MindSporeProfile:
    """MindSpore's objective: weighed bytes, not seconds.

    Its conventions differ from those of `TimeProfile`: a parameter is stored as its reader takes
    it, outputs stay as they are, and adding gradients and updating parameters are free.

    Parameters
    ----------
    costs : MindSporeCosts
        Weights and era.
    mesh : Mesh
        Axes of size two.
    """

    name = "mindspore"
    kinds: Kinds | None = None
    orbit_planner: RedistributionPlanner | None = None

    def __init__(self, costs: MindSporeCosts, mesh: Mesh) -> None:
        self.costs = costs
        self.mesh = mesh
        self._tables: dict[object, OperatorTable] = {}

    def readers_share_layout(self) -> bool:
        """Return False: every reader pays by itself."""
        return False

    def stays(self, maker: OperatorInfo | None) -> bool:
        """Return True of a parameter whose readers agree, and of functions where they follow."""
        if maker is None:
            return self.costs.readers_agree
        return self.costs.elementwise_follow and is_followed(maker)

    def stored_freely(self) -> bool:
        """Return False: a parameter lies as its reader takes it."""
        return False

    def constant(self) -> float:
        """Return zero."""
        return 0.0

    def table(
        self,
        info: OperatorInfo,
        wanted: tuple[bool, ...],
        stored: tuple[bool, ...],
        pinned: bool = False,
    ) -> OperatorTable:
        """Return MindSpore's strategies of an operator with the cost of each."""
        key = (info, wanted, stored, pinned)
        if key not in self._tables:
            enumerated = self.costs.configurable if pinned else self.costs.strategies
            strategies = enumerated(info, self.mesh)
            cost = [self.costs.operator_cost(info, s, self.mesh, stored) for s in strategies]
            self._tables[key] = operator_table(info, strategies, np.array(cost), wanted, self.mesh)
        return self._tables[key]

    def edges(
        self, tensor: TensorType, sources: Sequence[EdgeLayout], targets: Sequence[EdgeLayout]
    ) -> Floats:
        """Return the cost of MindSpore's redistribution for each pair of layouts."""
        starts = list(dict.fromkeys(port.layout.reduced() for port in sources))
        ends = list(dict.fromkeys(port.layout.reduced() for port in targets))
        table = np.array([[self._edge(tensor, start, end) for end in ends] for start in starts])
        rows = [starts.index(port.layout.reduced()) for port in sources]
        columns = [ends.index(port.layout.reduced()) for port in targets]
        return table[np.ix_(rows, columns)]

    def _edge(self, tensor: TensorType, source: Layout, target: Layout) -> float:
        return self.costs.redistribution_cost(tensor, source, target, self.mesh)

    def again(
        self, tensor: TensorType, sources: Sequence[Layout], targets: Sequence[Layout]
    ) -> Floats:
        """Return zeros: nothing is gathered."""
        return np.zeros((len(sources), len(targets)))

    def leaving(
        self, tensor: TensorType, sources: Sequence[EdgeLayout], target: EdgeLayout
    ) -> Floats:
        """Return zeros: outputs stay as they are."""
        return np.zeros((len(sources), 1))

    def accumulation(self, tensor: TensorType, layout: Layout) -> float:
        """Return zero."""
        return 0.0

    def update(self, tensor: TensorType, layout: Layout) -> float:
        """Return zero."""
        return 0.0

    def program_cost(self, graph: Graph) -> float:
        """Return the objective of a partitioned forward program, read off its nodes.

        Parameters
        ----------
        graph : Graph
            A program whose operators have strategies, with ``redistribute`` nodes between them.
        """
        stored = {p.name for p in graph.parameters if p.trainable}
        leaving = {name for name in graph.outputs if not graph.uses[name]}
        total = 0.0
        for node in graph.nodes:
            operands = graph.operand_values(node)
            if node.operator == "redistribute" and node.operands[0] in stored:
                stored.add(node.name)  # a parameter that several read, brought to one of them
            if node.operator == "redistribute" and node.name not in leaving:
                source, target = operands[0].layout, node.results[0].layout
                assert source is not None
                assert target is not None
                total += self._edge(operands[0].type, source, target)
            elif node.strategy is not None:
                types = [value.type for value in operands]
                info = operator_info(node.operator, types, node.attributes)
                flags = [name in stored for name in node.operands]
                total += self.costs.operator_cost(info, node.strategy, self.mesh, flags)
        return total
