"""The profile of a weighted search: the loads of the resources of a rank, summed by weights.

Every schedule of a program takes at least the load of each resource (`streams`): of the compute
stream, and of the links of each level. So for weights that are not negative and sum to 1, the
weighted sum of the loads is a lower bound of the overlapped step. It is a sum over nodes, as the
serial step is: the exact search minimises it, and its lower bound bounds every plan.

Gradients that are reduced together save latency, so an all-reduce of a gradient counts with its
bytes alone, at the least seconds per byte: no bucket takes less than its gradients.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.collectives import collective_model
from shardwright.cost_model.profile import UpdateRule
from shardwright.cost_model.program_profile import Emissions
from shardwright.cost_model.redistribution.planner import RedistributionPlanner, move_seconds
from shardwright.cost_model.roofline import node_axes, node_cost, second_prices, value_bytes
from shardwright.cost_model.streams import is_deferrable, node_levels, parameter_tensors
from shardwright.cost_model.time_profile import TimeProfile
from shardwright.ir.graph import Graph
from shardwright.ir.layout import Layout
from shardwright.ir.liveness import times_run
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.operators.communication.rings import RingOperator
from shardwright.operators.info import OperatorInfo

Floats = NDArray[np.float64]
_LOCAL = ("local_slice", "local_copy", "to_partial", "mirror")


@dataclass(frozen=True)
class ResourceWeights:
    """The weights of the resources of a rank; they are positive and sum to 1.

    Parameters
    ----------
    compute : float
        Weight of the compute stream.
    levels : tuple of float
        Weights of the links of the levels of the cluster, innermost first.
    """

    compute: float
    levels: tuple[float, ...]

    def of(self, levels: set[int], deferrable: bool) -> float:
        """Return the weight of a second on the links of some levels; of computation on none."""
        if not levels:
            return self.compute
        links = sum(self.levels[level] for level in levels)
        return links if deferrable else self.compute + links


@dataclass(frozen=True)
class WeightedMoves:
    """The weighted seconds of communication operators.

    Parameters
    ----------
    mesh, cluster : Mesh, Cluster
        Where they run.
    weights : ResourceWeights
        The weights.
    deferrable : bool
        Whether they gather parameters and reduce their gradients.
    """

    mesh: Mesh
    cluster: Cluster
    weights: ResourceWeights
    deferrable: bool = False

    def __call__(self, operator: str, axes: tuple[str, ...], local_bytes: Floats) -> Floats:
        """Return the costs of one operator over axes, for several sizes of its operand."""
        members = [axis for axis in map(self.mesh.axis, axes) if axis.size > 1]
        levels = set() if operator in _LOCAL else {axis.level for axis in members}
        if self.deferrable and levels and operator == "all_reduce":
            seconds = local_bytes * _least_slope(members, self.cluster)
        else:
            seconds = move_seconds(operator, axes, local_bytes, self.mesh, self.cluster)
        return self.weights.of(levels, self.deferrable) * seconds


def weighted_planner(
    mesh: Mesh, cluster: Cluster, weights: ResourceWeights
) -> RedistributionPlanner:
    """Return the planner of the cheapest paths by weighted seconds."""
    moves = WeightedMoves(mesh, cluster, weights)
    deferrable = RedistributionPlanner(mesh, cluster, replace(moves, deferrable=True))
    return RedistributionPlanner(mesh, cluster, moves, deferrable)


class WeightedProfile(TimeProfile):
    """The weighted sum of the loads of an emitted program.

    Parameters
    ----------
    weights : ResourceWeights
        The weights.
    planner : RedistributionPlanner
        A planner of `weighted_planner`.
    cluster : Cluster
        Where the program runs.
    update_rule : UpdateRule, optional
        The optimizer; None where parameters are not updated.
    by_orbit : bool
        Whether one strategy stands for its orbit.
    emissions : dict, optional
        Emitted operators, to share them with other weights.
    deferrable : bool
        Whether redistributions are of parameters.
    """

    def __init__(
        self,
        weights: ResourceWeights,
        planner: RedistributionPlanner,
        cluster: Cluster,
        update_rule: UpdateRule | None = None,
        by_orbit: bool = False,
        emissions: Emissions | None = None,
        deferrable: bool = False,
    ) -> None:
        super().__init__(planner.mesh, cluster, update_rule, by_orbit, planner, emissions)
        self.weights = weights
        self._moves = WeightedMoves(planner.mesh, cluster, weights, deferrable)
        self._of_parameters = None if deferrable else self._deferrable(by_orbit)

    def _deferrable(self, by_orbit: bool) -> "WeightedProfile":
        return WeightedProfile(
            self.weights,
            self.planner.of_parameters,
            self.cluster,
            self.update_rule,
            by_orbit,
            deferrable=True,
        )

    @property
    def of_parameters(self) -> Self:
        """The prices of parameters and of their gradients, whose communication is deferrable."""
        return self if self._of_parameters is None else self._of_parameters  # type: ignore[return-value]

    def operator_cost(
        self, info: OperatorInfo, operands: Sequence[Layout], results: Sequence[Layout]
    ) -> float:
        """Return the weighted seconds of a computing operator; a ring occupies its links, too."""
        axes = info.axes if isinstance(info, RingOperator) else ()
        levels = {axis.level for axis in map(self.mesh.axis, axes) if axis.size > 1}
        weight = self.weights.of(levels, deferrable=False)
        return weight * super().operator_cost(info, operands, results)

    def move_costs(self, operator: str, axes: tuple[str, ...], local_bytes: Floats) -> Floats:
        """Return the weighted seconds of a communication operator, for several sizes."""
        return self._moves(operator, axes, local_bytes)

    def program_cost(self, program: Graph) -> float:
        """Return the weighted sum of the loads of a program."""
        mesh = program.mesh or self.mesh
        blocking, deferrable = self._on(mesh), self.of_parameters._on(mesh)
        made = parameter_tensors(program.nodes, (p.name for p in program.parameters))
        total = 0.0
        for node, times in zip(program.nodes, times_run(program), strict=True):
            prices = deferrable if is_deferrable(node, made) else blocking
            total += times * node_cost(node, program.operand_values(node), mesh, prices)
        return total


def least_loads(program: Graph, cluster: Cluster) -> Floats:
    """Return the loads of a program in its best buckets, from below: compute, then each level."""
    mesh = program.mesh or Mesh(())
    prices = second_prices(mesh, cluster)
    made = parameter_tensors(program.nodes, (p.name for p in program.parameters))
    position = {level.name: 1 + i for i, level in enumerate(cluster.levels)}
    found = np.zeros(1 + len(cluster.levels))
    for node, times in zip(program.nodes, times_run(program), strict=True):
        operands = program.operand_values(node)
        levels = node_levels(node, program, cluster)
        deferrable = bool(levels) and is_deferrable(node, made)
        if deferrable and node.operator == "all_reduce":
            members = map(mesh.axis, node_axes(node, program))
            seconds = value_bytes(operands[0], mesh) * _least_slope(members, cluster)
        else:
            seconds = node_cost(node, operands, mesh, prices)
        seconds *= times
        found[[position[level] for level in levels]] += seconds
        found[0] += 0.0 if deferrable else seconds
    return found


def _least_slope(members: Iterable[MeshAxis], cluster: Cluster) -> float:
    """Return the seconds per byte of an all-reduce without its latency."""
    return collective_model("all_reduce", members, cluster)[-1].seconds_per_byte
