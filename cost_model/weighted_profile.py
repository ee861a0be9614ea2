"""The profile of a weighted search: the loads of the resources of a rank, summed by weights.

Every schedule of a program takes at least the load of each resource (`streams`): of the compute
stream, and of the links of each level. So for weights that are not negative and sum to 1, the
weighted sum of the loads is a lower bound of the overlapped step; the same holds in each of the
intervals into which a step is divided (`weighted.intervals`). It is a sum over nodes, as the
serial step is: the exact search minimises it, and its lower bound bounds every plan.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.cluster import HOST_LINKS, Cluster
from shardwright.cost_model.profile import UpdateRule
from shardwright.cost_model.program_profile import Emissions, Tables
from shardwright.cost_model.redistribution.planner import Found, RedistributionPlanner
from shardwright.cost_model.redistribution.seconds import move_seconds, packing_seconds
from shardwright.cost_model.roofline import node_costs
from shardwright.cost_model.time_profile import TimeProfile
from shardwright.cost_model.weighted.intervals import Kind, ResourceWeights
from shardwright.cost_model.weighted.kinds import kinds_of
from shardwright.cost_model.weighted.loads import least_slope
from shardwright.ir.graph import Graph
from shardwright.ir.layout import Layout
from shardwright.ir.liveness import times_run
from shardwright.ir.mesh import Mesh
from shardwright.operators.communication.rings import RingOperator
from shardwright.operators.info import OperatorInfo

Floats = NDArray[np.float64]
_LOCAL = ("local_slice", "local_copy", "to_partial", "mirror")


@dataclass(frozen=True)
class WeightedMoves:
    """The weighted seconds of communication operators.

    Parameters
    ----------
    mesh, cluster : Mesh, Cluster
        Where they run.
    weights : ResourceWeights
        The weights.
    kind : Kind
        When they run, and whether they are deferrable.
    """

    mesh: Mesh
    cluster: Cluster
    weights: ResourceWeights
    kind: Kind

    def __call__(self, operator: str, axes: tuple[str, ...], local_bytes: Floats) -> Floats:
        """Return the costs of one operator over axes, for several sizes of its operand."""
        levels, seconds = self.occupied(operator, axes, local_bytes)
        return self.weights.of(levels, self.kind) * seconds

    def packing(self, operator: str, axes: tuple[str, ...], local_bytes: Floats) -> Floats:
        """Return the further costs of one whose parts are copied while its links are occupied."""
        levels, seconds = self.packed(operator, axes, local_bytes)
        return self.weights.of(levels, self.kind) * seconds

    def packed(
        self, operator: str, axes: tuple[str, ...], local_bytes: Floats
    ) -> tuple[set[int], Floats]:
        """Return what `occupied` does, of the further seconds of one whose parts are copied."""
        levels = {axis.level for axis in map(self.mesh.axis, axes) if axis.size > 1}
        return levels, packing_seconds(operator, axes, local_bytes, self.mesh, self.cluster)

    def occupied(
        self, operator: str, axes: tuple[str, ...], local_bytes: Floats
    ) -> tuple[set[int], Floats]:
        """Return the links that one operator over axes occupies, and the seconds for each size."""
        if operator in HOST_LINKS:
            seconds = move_seconds(operator, axes, local_bytes, self.mesh, self.cluster)
            return {self.cluster.links.index(operator)}, seconds
        members = [axis for axis in map(self.mesh.axis, axes) if axis.size > 1]
        levels = set() if operator in _LOCAL else {axis.level for axis in members}
        if self.kind.deferrable and levels and operator == "all_reduce":
            return levels, local_bytes * least_slope(members, self.cluster)
        return levels, move_seconds(operator, axes, local_bytes, self.mesh, self.cluster)


def computing_place(info: OperatorInfo, mesh: Mesh, kind: Kind) -> tuple[set[int], Kind]:
    """Return the links that a computing operator occupies, and when; a ring's are not deferred."""
    axes = info.axes if isinstance(info, RingOperator) else ()
    levels = {axis.level for axis in map(mesh.axis, axes) if axis.size > 1}
    return levels, Kind(kind.deferrable and not levels, kind.when)


class WeightedPlanner(RedistributionPlanner):
    """Finds the cheapest paths by weighted seconds, of one kind of communication.

    Parameters
    ----------
    moves : WeightedMoves
        The prices.
    known : dict
        What the planners of all kinds have found so far.
    """

    def __init__(self, moves: WeightedMoves, known: dict[Kind, Found] | None = None) -> None:
        super().__init__(moves.mesh, moves, moves.packing)
        self.moves = moves
        self._known = {} if known is None else known
        self.found = self._known.setdefault(moves.kind, self.found)
        self._made: dict[Kind, WeightedPlanner] = {}

    @property
    def of_parameters(self) -> "WeightedPlanner":
        """The planner of parameters, whose communication is deferrable."""
        return self.of_kind(self.moves.kind.of_parameters())

    @property
    def of_gradients(self) -> "WeightedPlanner":
        """The planner of gradients."""
        return self.of_kind(self.moves.kind.of_gradients())

    @property
    def second(self) -> "WeightedPlanner":
        """The planner of what is redistributed again."""
        return self.of_kind(self.moves.kind.second())

    def in_step(self, times: float, of_parameters: bool) -> "WeightedPlanner":
        """Return the planner of what is redistributed so often in a step."""
        return self.of_kind(self.moves.weights.in_step(self.moves.kind, times, of_parameters))

    def of_kind(self, kind: Kind) -> "WeightedPlanner":
        """Return the planner of another kind of communication.

        It knows what all planners of its kind have found; none of them holds another that holds it.
        """
        kind = self.moves.weights.canonical(kind)
        if kind == self.moves.kind:
            return self
        if kind not in self._made:
            self._made[kind] = WeightedPlanner(replace(self.moves, kind=kind), self._known)
        return self._made[kind]


def weighted_planner(mesh: Mesh, cluster: Cluster, weights: ResourceWeights) -> WeightedPlanner:
    """Return the planner of the cheapest paths by weighted seconds."""
    kind = weights.canonical(Kind())
    return WeightedPlanner(WeightedMoves(mesh, cluster, weights, kind))


class WeightedProfile(TimeProfile):
    """The weighted sum of the loads of an emitted program.

    Parameters
    ----------
    weights : ResourceWeights
        The weights.
    planner : WeightedPlanner
        A planner of `weighted_planner`.
    cluster : Cluster
        Where the program runs.
    update_rule : UpdateRule, optional
        The optimizer; None where parameters are not updated.
    by_orbit : bool
        Whether one strategy stands for its orbit.
    emissions : dict, optional
        Emitted operators, to share them with other weights.
    known : dict, optional
        The tables of all kinds of communication so far.
    """

    def __init__(
        self,
        weights: ResourceWeights,
        planner: WeightedPlanner,
        cluster: Cluster,
        update_rule: UpdateRule | None = None,
        by_orbit: bool = False,
        emissions: Emissions | None = None,
        known: dict[Kind, Tables] | None = None,
    ) -> None:
        super().__init__(planner.mesh, cluster, update_rule, by_orbit, planner, emissions)
        self.weights, self.kind, self._paths = weights, planner.moves.kind, planner
        self._moves, self._of_compute = planner.moves, weights.of(set(), planner.moves.kind)
        self._tables_of_kinds = {} if known is None else known
        self._tables = self._tables_of_kinds.setdefault(self.kind, self._tables)
        self._of_kinds: dict[Kind, Self] = {}

    @property
    def of_parameters(self) -> Self:
        """The prices of parameters and of their gradients, whose communication is deferrable."""
        return self._of_kind(self.kind.of_parameters())

    @property
    def of_gradients(self) -> Self:
        """The prices of the backward pass."""
        return self._of_kind(self.kind.of_gradients())

    @property
    def second(self) -> Self:
        """The prices of redistributing a tensor again; of a parameter in either pass."""
        return self._of_kind(self.kind.second())

    @property
    def of_updates(self) -> Self:
        """The prices of the optimizer."""
        return self._of_kind(Kind(False, "after"))

    def in_step(self, times: float, of_parameters: bool) -> Self:
        """Return the prices of what runs so often in a step."""
        return self._of_kind(self.weights.in_step(self.kind, times, of_parameters))

    def _of_kind(self, kind: Kind) -> Self:
        kind = self.weights.canonical(kind)
        if kind == self.kind:
            return self
        if kind not in self._of_kinds:
            self._of_kinds[kind] = type(self)(
                *(self.weights, self._paths.of_kind(kind), self.cluster, self.update_rule),
                by_orbit=self.orbit_planner is not None,
                emissions=self._emissions,
                known=self._tables_of_kinds,
            )
        return self._of_kinds[kind]

    def operator_cost(
        self, info: OperatorInfo, operands: Sequence[Layout], results: Sequence[Layout]
    ) -> float:
        """Return the weighted seconds of a computing operator; a ring occupies its links, too."""
        seconds = super().operator_cost(info, operands, results)
        if not isinstance(info, RingOperator):
            return self._of_compute * seconds
        return self.weights.of(*computing_place(info, self.mesh, self.kind)) * seconds

    def move_costs(self, operator: str, axes: tuple[str, ...], local_bytes: Floats) -> Floats:
        """Return the weighted seconds of a communication operator, for several sizes."""
        return self._moves(operator, axes, local_bytes)

    def packing_costs(self, operator: str, axes: tuple[str, ...], local_bytes: Floats) -> Floats:
        """Return the further weighted seconds of an operator whose parts are copied."""
        return self._moves.packing(operator, axes, local_bytes)

    def host_copy(self, operator: str, local_bytes: Floats) -> Floats:
        """Return the weighted seconds of a copy to or from host memory, for several sizes."""
        kind = Kind(True, "offload" if operator == "to_host" else "either")
        return self._of_kind(kind).move_costs(operator, (), local_bytes)

    def program_cost(self, program: Graph) -> float:
        """Return the weighted sum of the loads of a program."""
        mesh = program.mesh or self.mesh
        kinds = kinds_of(program)
        prices = {kind: self._of_kind(kind)._on(mesh) for kind in set(kinds)}
        costs = node_costs(program, mesh, [prices[kind] for kind in kinds])
        return sum(times * cost for cost, times in zip(costs, times_run(program), strict=True))
