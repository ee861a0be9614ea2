"""Lowering of redistributions to collectives."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod
from typing import Annotated, NamedTuple

from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.efficiency.lines import DATASHEET, with_figures
from shardwright.cost_model.pipelines.mixed import AnyCluster, any_cluster, groups_on, of_one_kind
from shardwright.cost_model.profile import CostProfile
from shardwright.cost_model.profiles import PROFILES
from shardwright.cost_model.redistribution.moves import Move
from shardwright.cost_model.redistribution.planner import RedistributionPlanner
from shardwright.cost_model.weighted.intervals import ResourceWeights, weights_of_literal
from shardwright.cost_model.weighted.kinds import kinds_of
from shardwright.cost_model.weighted_profile import WeightedPlanner, weighted_planner
from shardwright.dataflow.properties import LOWERED, PARTITIONED
from shardwright.ir.attributes import Attributes
from shardwright.ir.errors import ClusterError, PassError
from shardwright.ir.graph import Graph, Node, Value, renamed
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import TensorType
from shardwright.operators.builder import Builder
from shardwright.operators.info import operator_class
from shardwright.passes.base import Pass, Spelled, register_pass

_WEIGHTS = Spelled(
    "positive numbers, of computation and of each level, also in a tuple of intervals, or ()",
    weights_of_literal,
    lambda weights: () if weights is None else weights.literal,
    (tuple, list),
)


def _line_of(cluster: AnyCluster) -> str:
    """Return the line that is read as a cluster; its name where none is, of a file."""
    for line in (cluster.name, with_figures(cluster.name, DATASHEET)):
        with suppress(ClusterError):
            if any_cluster(line) == cluster:
                return line
    return cluster.name


_CLUSTER = Spelled("the name of a cluster, or a file", any_cluster, _line_of)


@register_pass
@dataclass(frozen=True)
class LowerRedistributions(Pass):
    """Replace every ``redistribute`` by the cheapest collectives that do it.

    Between pipeline stages a ``transfer`` is one of the steps, where a rank holds the
    least of what is summed.

    The search prices the same paths, so the program costs what the search said.

    Before::

        y: f32[8, 4@x] = redistribute(p)

    After::

        y: f32[8, 4@x] = reduce_scatter(p) {axes=('x',), dimension=1}

    Parameters
    ----------
    cluster : Cluster or MixedCluster
        The cluster whose links price the collectives; of parts, that of the stage.
    cost_model : str
        The profile whose cheapest paths are taken.
    weights : ResourceWeights, optional
        Weights of the resources of a rank; paths are then the cheapest by weighted seconds.
    """

    name = "lower_redistributions"
    requires = (PARTITIONED,)
    ensures = (PARTITIONED, LOWERED)

    cluster: Annotated[AnyCluster, _CLUSTER]
    cost_model: str = "time"
    weights: Annotated[ResourceWeights | None, _WEIGHTS] = None

    def run(self, graph: Graph) -> Graph:
        """Return the program without redistributions."""
        assert graph.mesh is not None
        groups, ranks = groups_on(self.cluster, graph.mesh), graph.mesh.of_ranks
        build = Builder(graph.mesh, graph)
        build.nodes = []
        names: dict[str, str] = {}
        for node, kind in zip(graph.nodes, kinds_of(graph), strict=True):
            if node.operator == "redistribute":
                source = graph.values[node.operands[0]]
                read = names.get(source.name, source.name)
                stage = _later_stage(source, node.results[0])
                paths = self.planner(ranks, groups.of(stage))
                if isinstance(paths, WeightedPlanner):
                    paths = paths.of_kind(kind)
                names[node.name] = _lower(build, node, replace(source, name=read), paths)
            else:
                build.nodes.append(renamed(node, names))
        outputs = tuple(names.get(name, name) for name in graph.outputs)
        updates = tuple((name, names.get(new, new)) for name, new in graph.updates)
        return replace(graph, nodes=tuple(build.nodes), outputs=outputs, updates=updates)

    def planner(self, mesh: Mesh, part: Cluster | None = None) -> RedistributionPlanner:
        """Return the planner of the paths on a mesh, the same one in every call.

        Parameters
        ----------
        mesh : Mesh
            The mesh of a stage.
        part : Cluster, optional
            The cluster of the stage; by default the whole one, of one kind of device.
        """
        cluster = part or of_one_kind(self.cluster, "a stage runs on one kind of device")
        if (mesh, cluster) not in self._planners:
            kind = PROFILES[self.cost_model]
            self._planners[mesh, cluster] = _planner(kind, mesh, cluster, self.weights)
        return self._planners[mesh, cluster]

    @cached_property
    def _planners(self) -> dict[tuple[Mesh, Cluster], RedistributionPlanner]:
        return {}


@lru_cache(maxsize=8)  # the next compilation is often for the same devices
def _planner(
    profile: type[CostProfile], mesh: Mesh, cluster: Cluster, weights: ResourceWeights | None
) -> RedistributionPlanner:
    if weights is not None:
        return weighted_planner(mesh, cluster, weights)
    return profile.make_planner(mesh, cluster)


def _later_stage(source: Value, target: Value) -> int:
    """Return the stage whose plan priced a redistribution: of two, the later one."""
    layouts = (value.layout for value in (source, target))
    return max(layout.stage or 0 for layout in layouts if layout is not None)


def _lower(build: Builder, node: Node, source: Value, planner: RedistributionPlanner) -> str:
    """Emit the moves of one redistribution and return the name of the last result.

    In a loop over micro-batches, the moves are those of the slice of one pass.
    """
    target = node.results[0]
    if source.layout is None or target.layout is None:
        raise PassError(f"`{node.name}` redistributes a tensor whose layout is not decided")
    assert build.mesh is not None
    axes = build.mesh.in_time
    outer = source.layout.without(planner.mesh.names)
    if outer.at(None) != target.layout.without(planner.mesh.names).at(None):
        what = f"`{node.name}` redistributes over {list(axes)}, which are run in time"
        raise PassError(what, hint="run `schedule_micro_batches` first")
    inner = source.type.with_shape(outer.slice_shape(source.type.shape, build.mesh))
    begin, end = source.layout.without(axes).at(None), target.layout.without(axes).at(None)
    moves = list(map(_step_of, planner.plan(inner, begin, end)))
    if source.layout.stage != target.layout.stage:
        thinnest = _thinnest((begin, *(move.target for move in moves)), inner, planner.mesh)
        crossing = begin if thinnest == 0 else moves[thinnest - 1].target
        moves.insert(thinnest, _Step("transfer", {"stage": target.layout.stage}, crossing))
    build.scope = node.scope
    value, origin, stage = source, node.provenance, source.layout.stage
    marks: Attributes = {"in_passes": True} if node.attributes.get("in_passes") else {}
    for position, move in enumerate(moves):
        attributes: Attributes = {**move.attributes, **marks}
        if source.layout.reduction != "sum" and operator_class(move.operator).reduces:
            attributes = {**attributes, "reduction": source.layout.reduction}
        stage = target.layout.stage if move.operator == "transfer" else stage
        last = position == len(moves) - 1
        layout = move.target.along(outer, build.mesh).at(stage)
        if layout.partial and source.layout.reduction != "sum":
            layout = layout.with_partial(layout.partial, source.layout.reduction)
        name = target.name if last else build.unique_name(f"{target.name}.step", numbered=True)
        result = Value(name, source.type, layout)
        build.append(
            Node(
                move.operator,
                (value.name,),
                (result,),
                attributes,
                node.scope,
                provenance=origin if last else replace(origin, target=target.name),
            )
        )
        value = result
    return value.name


class _Step(NamedTuple):
    """One step of a redistribution: its operator, and the layout that it leaves."""

    operator: str
    attributes: Attributes
    target: Layout


def _step_of(move: Move) -> _Step:
    return _Step(move.operator, {"axes": move.axes, **dict(move.attributes)}, move.target)


def _thinnest(layouts: Sequence[Layout], tensor: TensorType, mesh: Mesh) -> int:
    """Return the position of the layout in which a rank holds the least; the first of equals.

    What is still to be summed is sent only if it is to arrive so.
    """
    sizes = [
        (bool(layout.partial), prod(layout.slice_shape(tensor.shape, mesh))) for layout in layouts
    ]
    return sizes.index(min(sizes))
