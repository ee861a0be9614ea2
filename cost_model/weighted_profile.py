"""The profile of a weighted search: the loads of the resources of a rank, summed by weights.

Every schedule of a program takes at least the load of each resource (`streams`): of the compute
stream, and of the links of each level. So for weights that are not negative and sum to 1, the
weighted sum of the loads is a lower bound of the overlapped step. It is a sum over nodes, as the
serial step is: the exact search minimises it, and its lower bound bounds every plan.

Without micro-batches the two passes of a step are bounded one by one. Let t be when the last node
of the forward pass ends that runs in line, that is, computes or communicates blocking. Such nodes
run in program order, all of the forward pass before all of the backward pass. So

- the nodes of the forward pass that run in line have ended at t, and so have the gathers that one
  of them waits for: the gathers of the forward pass (`can_divide` says where each has such a node);
- the nodes of the backward pass that run in line have not started before t, nor has what waits for
  one of them: reductions of gradients, since every gradient is made of that of the loss, and
  updates.

So t is at least the load of each resource by the former, the rest of the step that by the latter,
and each is at least their weighted sum, by weights of its own. A parameter that is gathered again
for the backward pass may be gathered early: whatever part of it is done before t, its seconds count
at least with the lesser of the two weights. A search by equal weights is the sum of the loads of
both passes.

Gradients that are reduced together save latency, so an all-reduce of a gradient counts with its
bytes alone, at the least seconds per byte: no bucket takes less than its gradients.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal, Self

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
from shardwright.ir.graph import Graph, Node
from shardwright.ir.layout import Layout
from shardwright.ir.liveness import times_run
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.operators.communication.rings import RingOperator
from shardwright.operators.info import OperatorInfo, operator_class

Floats = NDArray[np.float64]
_LOCAL = ("local_slice", "local_copy", "to_partial", "mirror")


When = Literal["forward", "backward", "either"]
"""The pass whose time a node takes; ``either`` for what may run in both."""

LEAST_WEIGHT = 1e-10
"""The least weight of a resource: where one is free, paths would go round in circles."""


@dataclass(frozen=True)
class ResourceWeights:
    """The weights of the resources of a rank; they are positive and sum to 1.

    Parameters
    ----------
    compute : float
        Weight of the compute stream.
    levels : tuple of float
        Weights of the links of the levels of the cluster, innermost first.
    backward : ResourceWeights, optional
        The weights in the backward pass; by default the same.
    """

    compute: float
    levels: tuple[float, ...]
    backward: "ResourceWeights | None" = None

    @property
    def literal(self) -> tuple[object, ...]:
        """The numbers: of computation, then of each level; a pair of such where passes differ."""
        numbers = (self.compute, *self.levels)
        return numbers if self.backward is None else (numbers, self.backward.literal)

    def of(self, levels: set[int], deferrable: bool, when: When = "forward") -> float:
        """Return the weight of a second on the links of some levels; of computation on none."""
        if self.backward is not None and when != "forward":
            later = self.backward.of(levels, deferrable)
            return later if when == "backward" else min(later, self.of(levels, deferrable))
        if not levels:
            return self.compute
        links = sum(self.levels[level] for level in levels)
        return links if deferrable else self.compute + links


def weights_of_literal(literal: Sequence[Any]) -> ResourceWeights | None:
    """Return the weights whose numbers a literal has; None for an empty one."""
    if not literal:
        return None
    if isinstance(literal[0], Sequence):
        forward, backward = ((part[0], tuple(part[1:])) for part in literal)
        return ResourceWeights(*forward, ResourceWeights(*backward))
    return ResourceWeights(literal[0], tuple(literal[1:]))


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
    when : str
        The pass whose time they take.
    """

    mesh: Mesh
    cluster: Cluster
    weights: ResourceWeights
    deferrable: bool = False
    when: When = "forward"

    def __call__(self, operator: str, axes: tuple[str, ...], local_bytes: Floats) -> Floats:
        """Return the costs of one operator over axes, for several sizes of its operand."""
        members = [axis for axis in map(self.mesh.axis, axes) if axis.size > 1]
        levels = set() if operator in _LOCAL else {axis.level for axis in members}
        if self.deferrable and levels and operator == "all_reduce":
            seconds = local_bytes * _least_slope(members, self.cluster)
        else:
            seconds = move_seconds(operator, axes, local_bytes, self.mesh, self.cluster)
        return self.weights.of(levels, self.deferrable, self.when) * seconds


def weighted_planner(
    mesh: Mesh, cluster: Cluster, weights: ResourceWeights
) -> RedistributionPlanner:
    """Return the planner of the cheapest paths by weighted seconds."""
    blocking = WeightedMoves(mesh, cluster, weights)
    deferrable = replace(blocking, deferrable=True)
    if weights.backward is None:
        parameters = RedistributionPlanner(mesh, cluster, deferrable)
        return RedistributionPlanner(mesh, cluster, blocking, parameters)
    reductions, again = (
        RedistributionPlanner(mesh, cluster, replace(deferrable, when=when))
        for when in ("backward", "either")
    )
    parameters = RedistributionPlanner(
        mesh, cluster, deferrable, of_gradients=reductions, second=again
    )
    later = replace(blocking, when="backward")
    backward = RedistributionPlanner(mesh, cluster, later, reductions)
    return RedistributionPlanner(mesh, cluster, blocking, parameters, backward)


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
    when : str
        The pass whose time is priced.
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
        when: When = "forward",
    ) -> None:
        super().__init__(planner.mesh, cluster, update_rule, by_orbit, planner, emissions)
        self.weights, self.deferrable, self.when = weights, deferrable, when
        self._moves = WeightedMoves(planner.mesh, cluster, weights, deferrable, when)
        self._others: dict[tuple[bool, When], WeightedProfile] = {(deferrable, when): self}

    @property
    def of_parameters(self) -> Self:
        """The prices of parameters and of their gradients, whose communication is deferrable."""
        return self._other(True, self.when, self.planner.of_parameters)

    @property
    def of_gradients(self) -> Self:
        """The prices of the backward pass."""
        return self._other(self.deferrable, "backward", self.planner.of_gradients)

    @property
    def second(self) -> Self:
        """The prices of redistributing a tensor again; of a parameter in either pass."""
        when: When = "either" if self.deferrable else "backward"
        return self._other(self.deferrable, when, self.planner.second)

    def _other(self, deferrable: bool, when: When, planner: RedistributionPlanner) -> Self:
        """Return the prices of other communication, or of another pass."""
        when = "forward" if self.weights.backward is None else when
        if (deferrable, when) not in self._others:
            made = WeightedProfile(
                *(self.weights, planner, self.cluster, self.update_rule),
                by_orbit=self.orbit_planner is not None,
                deferrable=deferrable,
                when=when,
            )
            made._others = self._others
            self._others[deferrable, when] = made
        return self._others[deferrable, when]  # type: ignore[return-value]

    def operator_cost(
        self, info: OperatorInfo, operands: Sequence[Layout], results: Sequence[Layout]
    ) -> float:
        """Return the weighted seconds of a computing operator; a ring occupies its links, too."""
        axes = info.axes if isinstance(info, RingOperator) else ()
        levels = {axis.level for axis in map(self.mesh.axis, axes) if axis.size > 1}
        weight = self.weights.of(levels, False, self.when)
        return weight * super().operator_cost(info, operands, results)

    def move_costs(self, operator: str, axes: tuple[str, ...], local_bytes: Floats) -> Floats:
        """Return the weighted seconds of a communication operator, for several sizes."""
        return self._moves(operator, axes, local_bytes)

    def program_cost(self, program: Graph) -> float:
        """Return the weighted sum of the loads of a program."""
        mesh = program.mesh or self.mesh
        made = parameter_tensors(program.nodes, (p.name for p in program.parameters))
        prices: dict[tuple[bool, When], WeightedProfile] = {}
        total = 0.0
        for node, times in zip(program.nodes, times_run(program), strict=True):
            kind = is_deferrable(node, made), when_of(node, made)
            if kind not in prices:
                prices[kind] = self._of_kind(*kind)._on(mesh)
            total += times * node_cost(node, program.operand_values(node), mesh, prices[kind])
        return total

    def _of_kind(self, deferrable: bool, when: When) -> "WeightedProfile":
        prices = self.of_parameters if deferrable else self
        if when == "forward":
            return prices
        return prices.of_gradients if when == "backward" else prices.second


def when_of(node: Node, made_of_parameters: set[str]) -> When:
    """Return the pass whose time a node takes.

    What is computed again from parameters alone may feed a gather, and so be early.
    """
    if node.provenance.phase == "forward":
        return "forward"
    if node.provenance.role != "recompute":
        return "backward"
    if is_deferrable(node, made_of_parameters):
        return "either"
    local = not operator_class(node.operator).is_collective
    early = local and node.operands and made_of_parameters.issuperset(node.operands)
    return "either" if early else "backward"


def can_divide(graph: Graph) -> bool:
    """Return whether all gathers of the forward pass end before the backward pass begins.

    An operator on activations must wait for each: not so for a parameter that the program returns,
    or writes to another one.
    """
    made = parameter_tensors(graph.nodes, (p.name for p in graph.parameters))
    ends = {*graph.outputs, *(new for _, new in graph.updates)}
    return made.isdisjoint(ends) and all(
        any(graph.uses[result.name] for result in node.results)
        for node in graph.nodes
        if node.operands and made.issuperset(result.name for result in node.results)
    )


@dataclass(frozen=True)
class Loads:
    """The seconds for which a program occupies the resources of a rank, compute first.

    Parameters
    ----------
    forward, backward : array of shape (resources,)
        Until the backward pass begins, and from then on.
    either : tuple of (array of shape (resources,))
        What may run in both passes: at once on the resources that are not 0.
    """

    forward: Floats
    backward: Floats
    either: tuple[Floats, ...]

    @property
    def total(self) -> Floats:
        """The loads of the whole step."""
        return np.sum([self.forward, self.backward, *self.either], axis=0)

    def divisions(self) -> Iterator[tuple[Floats, Floats]]:
        """Yield the loads of both passes, with all that may run in both in one or the other."""
        for late in product((False, True), repeat=len(self.either)):
            found = self.forward.copy(), self.backward.copy()
            for is_late, more in zip(late, self.either, strict=True):
                found[is_late][:] += more
            yield found


def least_loads(program: Graph, cluster: Cluster) -> Loads:
    """Return the loads of a program in its best buckets, from below."""
    mesh = program.mesh or Mesh(())
    prices = second_prices(mesh, cluster)
    made = parameter_tensors(program.nodes, (p.name for p in program.parameters))
    position = {level.name: 1 + i for i, level in enumerate(cluster.levels)}
    found: dict[tuple[When, tuple[int, ...]], float] = {}
    for node, times in zip(program.nodes, times_run(program), strict=True):
        operands = program.operand_values(node)
        levels = node_levels(node, program, cluster)
        deferrable = bool(levels) and is_deferrable(node, made)
        if deferrable and node.operator == "all_reduce":
            members = map(mesh.axis, node_axes(node, program))
            seconds = value_bytes(operands[0], mesh) * _least_slope(members, cluster)
        else:
            seconds = node_cost(node, operands, mesh, prices)
        occupied = tuple(position[level] for level in levels)
        key = when_of(node, made), occupied if deferrable else (0, *occupied)
        found[key] = found.get(key, 0.0) + times * seconds
    by_pass: dict[When, list[Floats]] = {"forward": [], "backward": [], "either": []}
    for (when, occupied), seconds in found.items():
        by_pass[when].append(np.zeros(1 + len(cluster.levels)))
        by_pass[when][-1][list(occupied)] = seconds
    zeros = np.zeros(1 + len(cluster.levels))
    forward, backward = (np.sum([zeros, *by_pass[w]], axis=0) for w in ("forward", "backward"))
    return Loads(forward, backward, tuple(load for load in by_pass["either"] if load.any()))


def _least_slope(members: Iterable[MeshAxis], cluster: Cluster) -> float:
    """Return the seconds per byte of an all-reduce without its latency."""
    return collective_model("all_reduce", members, cluster)[-1].seconds_per_byte
