"""Expert plans on the axes of any mesh: who divides the batch, the weights, the sequences.

A named plan says a degree for each purpose. On a given mesh the innermost axes are taken for tensor
ranks, the next for context ranks, and the rest for data ranks: tensor ranks are nearest to each
other, as Megatron places them. Experts are divided over the next axes behind those of tensor ranks;
or, each whole on a rank, over these and the next. Neighbouring axes of one purpose and one level
are merged while the plan is built, since it treats them as one; its decisions are then those of the
given mesh.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import prod

from shardwright.cost_model.streams import parameter_tensors
from shardwright.dataflow.samples import samples_of
from shardwright.ir.decisions import Decisions, SharedLayout
from shardwright.ir.errors import ShardwrightError
from shardwright.ir.graph import Graph
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.operators.info import info_of
from shardwright.search.heuristics.named_plan import ByName, NamedStrategies
from shardwright.search.heuristics.tensor_ranks import attended_lengths
from shardwright.search.named_plan import ZERO, NamedPlan
from shardwright.search.plan_axes import PlanAxes

_EXPERT_RANK = 3  # dimensions of the weights of a product of experts


@dataclass(frozen=True)
class ExpertMesh:
    """The axes of a mesh by their purposes.

    Parameters
    ----------
    mesh : Mesh
        The mesh with the axes of one purpose merged.
    axes : PlanAxes
        Its axes by what they divide.
    members : mapping of str to tuple of str
        The axes of the given mesh that each of them stands for.
    """

    mesh: Mesh
    axes: PlanAxes
    members: Mapping[str, tuple[str, ...]]

    @cached_property
    def plan(self) -> NamedPlan:
        """The plan of these degrees, without ZeRO."""
        axes, extent = self.axes, self.mesh.extent
        return NamedPlan(
            tensor=extent(axes.tensor),
            context=extent(axes.context),
            expert=extent(axes.expert),
            expert_tensor=extent(axes.of_experts),
            data=extent(axes.data),
            sequence_parallel=axes.of_experts != axes.tensor,
        )

    def refined(self, decisions: Decisions, mesh: Mesh) -> Decisions:
        """Return decisions on the merged mesh as those on the given one."""
        if mesh == decisions.mesh:
            return decisions
        return replace(
            decisions,
            mesh=mesh,
            strategies={n: self.refined_strategy(item) for n, item in decisions.strategies.items()},
            stored={n: self._layout(item, mesh) for n, item in decisions.stored.items()},
            shared_layouts={
                name: self._shared(item, mesh) for name, item in decisions.shared_layouts.items()
            },
        )

    def _axes(self, axes: Iterable[str]) -> tuple[str, ...]:
        return tuple(member for axis in axes for member in self.members[axis])

    def refined_strategy(self, strategy: Strategy) -> Strategy:
        """Return a strategy on the merged mesh as one on the given mesh."""
        return Strategy(tuple((f, self._axes(axes)) for f, axes in strategy.assignment))

    def _layout(self, layout: Layout, mesh: Mesh) -> Layout:
        partial = mesh.ordered(self._axes(layout.partial))
        return replace(layout, splits=tuple(map(self._axes, layout.splits)), partial=partial)

    def _shared(self, shared: SharedLayout, mesh: Mesh) -> SharedLayout:
        gradient = mesh.ordered(self._axes(shared.gradient))
        return replace(shared, layout=self._layout(shared.layout, mesh), gradient=gradient)


@dataclass(frozen=True)
class ExpertWalk:
    """The strategies of an expert plan, whatever its ZeRO stage.

    Parameters
    ----------
    on : ExpertMesh
        Its mesh.
    plan : NamedPlan
        The plan without ZeRO.
    graph : Graph
        The program of one micro-batch.
    """

    on: ExpertMesh
    plan: NamedPlan
    graph: Graph

    @cached_property
    def named(self) -> NamedStrategies | None:
        """The strategies; None if the model cannot be divided so."""
        on = self.on
        try:
            return NamedStrategies.of(self.plan, self.graph, on.mesh, on.axes, alike=True)
        except ShardwrightError:
            return None

    def methods(self, passes: int) -> Iterator[ByName]:
        """Yield the plans of all ZeRO stages; of one micro-batch the first two are the same."""
        storage = self.on.mesh.extent(self.on.axes.storage)
        for zero in ZERO if storage > 1 else ZERO[:1]:
            if self.named is not None and (zero != 2 or passes > 1):
                plan = replace(self.plan, zero=zero)
                yield ByName(plan, replace(self.named, plan=plan))


def expert_walks(graph: Graph, mesh: Mesh) -> Iterator[ExpertWalk]:
    """Yield the expert plans of a program on a mesh of ranks, the fewest tensor ranks first.

    Parameters
    ----------
    graph : Graph
        The program of one micro-batch.
    mesh : Mesh
        The mesh; axes of one rank divide nothing.
    """
    batch, lengths = samples_of(graph), attended_lengths(graph)
    experts = _has_experts(graph)
    short = bool(lengths) and batch is not None and batch % mesh.size != 0
    for on in _expert_meshes(mesh, with_context=short, with_experts=experts):
        plan = on.plan
        if batch is not None and batch % (plan.data or 1):
            continue
        if any(length < plan.context for length in lengths):
            continue
        by_position = (plan.sequence_parallel, True) if plan.tensor > 1 else (False,)
        ring = (False, True) if plan.context > 1 else (False,)
        for scattered, passed in product(dict.fromkeys(by_position), ring):
            yield ExpertWalk(on, replace(plan, sequence_parallel=scattered, ring=passed), graph)


def _has_experts(graph: Graph) -> bool:
    """Return whether an operator contracts weights ``[expert, inputs, outputs]``."""
    made = parameter_tensors(graph.nodes, (p.name for p in graph.parameters if p.trainable))
    for node in graph.nodes:
        for i, value in enumerate(graph.operand_values(node)):
            if value.type.rank != _EXPERT_RANK or value.name not in made:
                continue
            rule = info_of(graph, node).rule
            if any(rule.kinds[factor] == "sum" for dim in rule.operands[i] for factor in dim):
                return True
    return False


def _expert_meshes(mesh: Mesh, *, with_context: bool, with_experts: bool) -> Iterator[ExpertMesh]:
    """Yield every division of the axes of a mesh between the purposes, once."""
    nearest = sorted(
        (axis for axis in mesh.axes if axis.size > 1),
        key=lambda axis: (axis.level, -mesh.names.index(axis.name)),
    )
    count = len(nearest)
    for tensor in range(count + 1):
        for context in range(count + 1 - tensor) if with_context else (0,):
            ends = {"tensor": tensor, "context": tensor + context}
            for within, expert in _of_experts(tensor, count) if with_experts else ((tensor, 0),):
                own = {"within": within, "expert": within + expert}
                yield _merged(
                    mesh,
                    {
                        axis.name: (_first_of(ends, at, "data"), _first_of(own, at, "copies"))
                        for at, axis in enumerate(nearest)
                    },
                )


def _of_experts(tensor: int, count: int) -> Iterator[tuple[int, int]]:
    """Yield over how many axes the weights of an expert are divided, and over how many experts."""
    yield from product((tensor,), range(count + 1 - tensor))
    if tensor:
        yield from product((0,), range(tensor, count + 1))


def _first_of(ends: Mapping[str, int], at: int, other: str) -> str:
    return next((name for name, end in ends.items() if at < end), other)


def _merged(mesh: Mesh, purposes: Mapping[str, tuple[str, str]]) -> ExpertMesh:
    """Merge neighbouring axes of one purpose and level, but not those that divide sequences.

    Parameters
    ----------
    mesh : Mesh
        The mesh.
    purposes : mapping of str to tuple of str
        What the ranks of every axis share elsewhere and at experts.
    """
    merged: list[list[MeshAxis]] = []
    for axis in mesh.axes:
        if axis.name not in purposes:
            continue
        last = merged[-1][-1] if merged else None
        joins = last is not None and purposes[last.name] == purposes[axis.name]
        joins = joins and purposes[axis.name][0] != "context"
        if last is not None and joins and last.level == axis.level:
            merged[-1].append(axis)
        else:
            merged.append([axis])
    members = {group[0].name: tuple(axis.name for axis in group) for group in merged}
    axes = [replace(group[0], size=prod(axis.size for axis in group)) for group in merged]

    def of(place: int, purpose: str) -> tuple[str, ...]:
        return tuple(name for name in members if purposes[name][place] == purpose)

    plan = PlanAxes(
        data=of(0, "data"),
        expert=of(1, "expert"),
        tensor=of(0, "tensor"),
        context=of(0, "context"),
        within=of(1, "within"),
    )
    single = len(axes) == sum(axis.size > 1 for axis in mesh.axes)
    if single:
        return ExpertMesh(mesh, plan, {name: (name,) for name in mesh.names})
    return ExpertMesh(Mesh(tuple(axes)), plan, members)
