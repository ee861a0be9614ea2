"""The profile that minimises what MindSpore's search minimises."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.mindspore.conventions import conventions_of
from shardwright.cost_model.mindspore.costs import (
    MindSporeCosts,
    mesh_of_binary_axes,
)
from shardwright.cost_model.profile import (
    CostProfile,
    EdgeLayout,
    OperatorTable,
    ProfileRequest,
    SpaceRules,
    never,
    operator_table,
)
from shardwright.cost_model.redistribution.planner import RedistributionPlanner
from shardwright.cost_model.redistribution.seconds import fastest_paths
from shardwright.ir.graph import Graph, Value
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import TensorType
from shardwright.operators.communication.inserted import Redistribute
from shardwright.operators.info import OperatorInfo, operator_class, operator_info

Floats = NDArray[np.float64]


def _follows_consumers(info: OperatorInfo) -> bool:
    return conventions_of(type(info)).follows_consumers


class MindSporeProfile(CostProfile):
    """MindSpore's objective: weighed bytes, not seconds.

    Its conventions differ from those of `TimeProfile`: a parameter is stored in the layout of its
    reader, outputs keep their layouts, and adding gradients and updating parameters are free.

    Parameters
    ----------
    costs : MindSporeCosts
        Weights and era.
    mesh : Mesh
        Axes of size two.
    """

    name = "mindspore"
    priced_after = "partition"

    def __init__(self, costs: MindSporeCosts, mesh: Mesh) -> None:
        self.costs, self.mesh = costs, mesh
        self.rules = SpaceRules(
            share_layouts=False,
            free_storage=False,
            whole_inputs=True,
            parameters_agree=costs.readers_agree,
            fixes_consumers=_follows_consumers if costs.elementwise_follow else never,
        )
        self._tables: dict[object, OperatorTable] = {}

    @classmethod
    def create(cls, request: ProfileRequest) -> "MindSporeProfile":
        """Return the profile of a compilation."""
        agree = request.minimizes_cost and not request.scattered
        weights = request.weights
        costs = weights if isinstance(weights, MindSporeCosts) else MindSporeCosts()
        return cls(replace(costs, readers_agree=agree), request.planner.mesh)

    @classmethod
    def make_planner(cls, mesh: Mesh, cluster: Cluster) -> RedistributionPlanner:
        """Return the planner of the fastest paths, as programs that run have them."""
        return fastest_paths(mesh, cluster)

    @classmethod
    def default_mesh(cls, cluster: Cluster, devices: int) -> Mesh:
        """Return a mesh of binary axes."""
        return mesh_of_binary_axes(devices)

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
        starts = list(dict.fromkeys(edge.layout.reduced() for edge in sources))
        ends = list(dict.fromkeys(edge.layout.reduced() for edge in targets))
        table = np.array([[self._edge(tensor, start, end) for end in ends] for start in starts])
        rows = [starts.index(edge.layout.reduced()) for edge in sources]
        columns = [ends.index(edge.layout.reduced()) for edge in targets]
        return table[np.ix_(rows, columns)]

    def _edge(self, tensor: TensorType, source: Layout, target: Layout) -> float:
        return self.costs.redistribution_cost(tensor, source, target, self.mesh)

    def output(
        self, tensor: TensorType, sources: Sequence[EdgeLayout], target: EdgeLayout
    ) -> Floats:
        """Return zeros: outputs keep their layouts."""
        return np.zeros((len(sources), 1))

    def program_cost(self, program: Graph) -> float:
        """Return the objective of a partitioned forward program, read off its nodes.

        Parameters
        ----------
        program : Graph
            A program whose operators have strategies, with ``redistribute`` nodes between them.
        """
        stored = {p.name for p in program.parameters if p.trainable}
        outputs = {name for name in program.outputs if not program.uses[name]}
        total = 0.0
        for node in program.nodes:
            operands = program.operand_values(node)
            if operator_class(node.operator) is Redistribute:
                if node.operands[0] in stored:  # for one of several readers
                    stored.add(node.name)
                if node.name not in outputs:
                    total += self._redistribution(operands[0], node.results[0])
            elif node.strategy is not None:
                types = [value.type for value in operands]
                info = operator_info(node.operator, types, node.attributes)
                flags = [name in stored for name in node.operands]
                total += self.costs.operator_cost(info, node.strategy, self.mesh, flags)
        return total

    def _redistribution(self, source: Value, target: Value) -> float:
        assert source.layout is not None
        assert target.layout is not None
        return self._edge(source.type, source.layout, target.layout)
