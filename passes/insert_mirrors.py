"""Mirrors: where equal copies of a tensor enter work that is split."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardwright.dataflow.cotangents import cotangent_flow
from shardwright.dataflow.properties import FORWARD, PARTITIONED, UNMIRRORED
from shardwright.ir.errors import PassError
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.layout import Layout
from shardwright.ir.provenance import Provenance
from shardwright.operators.builder import Builder
from shardwright.operators.info import info_of
from shardwright.passes.base import Pass, register_pass
from shardwright.passes.partition import first_reader


@register_pass
@dataclass(frozen=True)
class InsertMirrors(Pass):
    """Insert a ``mirror`` wherever copies that are equal on all ranks enter work that is split.

    A parameter used by data-parallel work, and an activation used by a column-split product, are
    one case: the gradients of the copies are partial sums. Readers of one tensor share a mirror
    where their `SharedLayout` says so.

    Before::

        h: f32[8@x, 4] = matmul(x, w) split(m=x)

    After::

        w.mirror: f32[16, 4]* = mirror(w) {axes=('x',)}
        h: f32[8@x, 4] = matmul(x, w.mirror) split(m=x)
    """

    name = "insert_mirrors"
    requires = (PARTITIONED, FORWARD, UNMIRRORED)
    ensures = (PARTITIONED,)

    def run(self, graph: Graph) -> Graph:
        """Return the program with its mirrors."""
        flow = cotangent_flow(graph)
        shared = _shared_mirrors(graph)
        build = Builder(graph.mesh)
        build.inputs, build.parameters = list(graph.inputs), list(graph.parameters)
        for name in graph.values:
            build.unique_name(name)
        at = dict(graph.values)

        def shared_axes(name: str) -> tuple[str, ...]:
            return shared.get(_before_halos(graph, name), ())

        for start in (*graph.inputs, *(p.value for p in graph.parameters)):
            at[start.name] = _mirrored(build, graph, start, shared.get(start.name, ()))
        for node in graph.nodes:
            build.scope = node.scope
            receiving = flow.operands[node.name]
            # A tensor crosses to another stage as it is made, so that its copies have own mirrors.
            held = graph.values if graph.changes_stage(node) else at
            read = [
                _for_reader(build, graph, node, i, held[name], receiving[i], shared_axes(name))
                for i, name in enumerate(node.operands)
            ]
            build.append(replace(node, operands=tuple(value.name for value in read)))
            for result in node.results:
                at[result.name] = _mirrored(build, graph, result, shared.get(result.name, ()))
        build.updates = [(name, at[new].name) for name, new in graph.updates]
        mirrored = build.graph(graph.name, tuple(at[name].name for name in graph.outputs))
        return replace(
            mirrored,
            recomputed=graph.recomputed,
            regathered=graph.regathered,
            offloaded=graph.offloaded,
            schedule=graph.schedule,
        )


def _shared_mirrors(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Return the axes of the mirrors that readers share, by the mirrored value."""
    axes = {}
    for name, shared_layout in graph.shared_layouts:
        if shared_layout.gradient:
            copies = _shared_copies(graph, graph.values[name], shared_layout.layout)
            axes.update(dict.fromkeys(copies, shared_layout.gradient))
    return axes


def _shared_copies(graph: Graph, value: Value, layout: Layout) -> Iterator[str]:
    """Yield the copies of a tensor in the layout that its readers share: one in each stage."""
    assert value.layout is not None
    if value.layout.at(None) == layout:
        yield value.name
        copied = [node for node, _ in graph.uses[value.name] if graph.changes_stage(node)]
    else:
        copied = [node for node, _ in graph.uses[value.name] if node.operator == "redistribute"]
        if not copied and not graph.stages:
            raise PassError(
                f"the readers of `{value.name}` share the layout {layout}, but no `redistribute` "
                f"leaves it",
                f"graph {graph.name}",
            )
    for node in copied:
        found = node.results[0].layout
        if found is not None and found.at(None) == layout:
            yield node.name


def _before_halos(graph: Graph, name: str) -> str:
    """Return the value before halos were exchanged, whose layout the readers share."""
    producer = graph.producers.get(name)
    while producer is not None and producer.operator == "halo_exchange":
        name = producer.operands[0]
        producer = graph.producers.get(name)
    return name


def _mirrored(build: Builder, graph: Graph, value: Value, axes: tuple[str, ...]) -> Value:
    if not axes:
        return value
    tensor = graph.copied_tensor(value.name)
    build.provenance = Provenance(first_reader(graph, value.name), "mirror", tensor)
    return build.emit("mirror", value, name=f"{value.name}.mirror", axes=axes)


def _for_reader(
    build: Builder,
    graph: Graph,
    node: Node,
    position: int,
    value: Value,
    wanted: bool,
    shared: tuple[str, ...],
) -> Value:
    if node.strategy is None or not wanted:
        return value
    assert graph.mesh is not None
    rule = info_of(graph, node).rule
    axes = rule.mirror_axes(position, node.strategy, graph.mesh)
    if not axes or axes == shared:
        return value
    tensor = graph.copied_tensor(node.operands[position])
    build.provenance = Provenance(node.provenance.operator, "mirror", tensor)
    return build.emit("mirror", value, name=f"{value.name}.mirror", axes=axes)
