"""The loop over micro-batches: what runs before it, in every pass, and after it."""

from dataclasses import dataclass, field, replace
from typing import TypeVar

from shardwright.dataflow.properties import DIFFERENTIATED, PARTITIONED, SCHEDULED
from shardwright.ir.attributes import Attribute, Attributes
from shardwright.ir.errors import OptionError, PassError
from shardwright.ir.graph import Graph, Node, Parameter, Value
from shardwright.ir.layout import Layout
from shardwright.ir.liveness import accumulates, mentions
from shardwright.ir.text import node_text
from shardwright.operators.builder import Builder
from shardwright.operators.models.precision import accumulate_type, is_narrower
from shardwright.passes.annotate import REDUCED_IN_PASSES
from shardwright.passes.base import Pass, register_pass
from shardwright.passes.partition import stored_tensor

Marked = TypeVar("Marked", Node, Parameter)


@register_pass
@dataclass(frozen=True)
class ScheduleMicroBatches(Pass):
    """Put the nodes in the order of a loop over the mesh axis that is run in time.

    Each ``redistribute`` that sums or concatenates over the axis is divided: an ``all_reduce`` or
    ``all_gather`` over the axis accumulates, before or after the communication between ranks. What
    depends on parameters alone runs before the loop, what reads accumulated values after it.

    Before::

        w.to: f32[16, 4]* = redistribute(w)
        h: f32[8@micro@x, 4] = matmul(a, w.to)
        ...
        g: f32[16, 4] +micro+x = matmul(a, dh) {transpose_a=True}
        w.grad: f32[16@x, 4] = redistribute(g)

    After::

        g.sum: f32[16, 4] +x = all_reduce(g) {axes=('micro',)}
        w.grad: f32[16@x, 4] = redistribute(g.sum)
    """

    name = "schedule_micro_batches"
    requires = (PARTITIONED, DIFFERENTIATED)
    ensures = (PARTITIONED, DIFFERENTIATED, SCHEDULED)

    def run(self, graph: Graph) -> Graph:
        """Return the program in the order of the loop.

        Raises
        ------
        OptionError
            If a pass would need what only all passes together know.
        """
        if graph.mesh is None or not graph.mesh.in_time:
            return graph
        divided = _divided(graph)
        parameters = tuple(_unmarked(p, REDUCED_IN_PASSES) for p in graph.parameters)
        scheduled = replace(divided, parameters=parameters)
        return scheduled.with_nodes(_Order(scheduled, graph.mesh.in_time).nodes())


def _unmarked(item: Marked, mark: str) -> Marked:
    """Return a node or a parameter without one of its attributes."""
    if mark not in item.attributes:
        return item
    kept = {key: value for key, value in item.attributes.items() if key != mark}
    return replace(item, attributes=kept)


# Redistributions over the axis


def _divided(graph: Graph) -> Graph:
    """Return the program with accumulation and communication between ranks apart."""
    assert graph.mesh is not None
    in_passes = {p.name for p in graph.parameters if p.attributes.get(REDUCED_IN_PASSES)}
    build, wide = Builder.rewriting(graph), accumulate_type(graph)
    for node in graph.nodes:
        division = _Division(build, graph, node, wide) if node.operator == "redistribute" else None
        if division is None or not division.is_needed:
            build.nodes.append(node)
            continue
        build.scope, build.provenance = node.scope, node.provenance
        origin = node.provenance
        reduced = origin.role == "gradient_redistribution"
        division.emit(ranks_first=reduced and stored_tensor(graph, origin.tensor) in in_passes)
    return replace(graph, nodes=tuple(build.nodes))


class _Division:
    """A redistribution that may accumulate over the axis."""

    def __init__(self, build: Builder, graph: Graph, node: Node, wide: str | None) -> None:
        assert build.mesh is not None
        self.build, self.node, self.mesh = build, node, build.mesh
        self.source, self.target = graph.values[node.operands[0]], node.results[0]
        assert self.source.layout is not None
        assert self.target.layout is not None
        self.before, self.after = self.source.layout, self.target.layout
        self.axes = self.mesh.in_time
        self.wide = wide if wide is not None and is_narrower(self.source.type, wide) else None

    @property
    def is_needed(self) -> bool:
        """Whether the layouts use the axis in different ways."""
        ranks = self.mesh.of_ranks.names
        return self.before.without(ranks).at(None) != self.after.without(ranks).at(None)

    def emit(self, *, ranks_first: bool) -> None:
        """Emit the redistribution in two steps; the ranks first, or the passes.

        What the passes accumulate crosses to another stage after them.

        Raises
        ------
        PassError
            If the result would be split over the axis, or is split along other dimensions.
        """
        if self.after.mentions(self.axes):
            what = f"`{self.node.name}` would slice a tensor in the loop over `{self.axes[0]}`"
            raise PassError(what, node_text(self.node), "train with one micro-batch")
        own = self.after.at(self.before.stage)
        dimension = next((i for i, a in enumerate(self.before.splits) if a[:1] == self.axes), None)
        if dimension is not None:
            outer = self.before.without(self.mesh.of_ranks.names)
            operand = self._redistributed(self.source, own.along(outer, self.mesh))
            total = self._total(own)
            self._accumulate("all_gather", operand.name, total, dimension=dimension)
        elif ranks_first:
            inner = own.with_partial(self.axes, self.before.reduction)
            total = self._total(own)
            self._reduce(self._redistributed(self.source, inner), total)
        else:
            total = self._total(self.before.without(self.axes))
            self._reduce(self.source, total)
        if total is not self.target:
            self.build.append(replace(self.node, operands=(total.name,)))

    def _total(self, layout: Layout) -> Value:
        """Return what the passes accumulate: the result, if it has this layout."""
        if layout == self.after:
            return self.target
        name = self.build.unique_name(f"{self.target.name}.sum")
        return Value(name, self.source.type, layout)

    def _redistributed(self, value: Value, layout: Layout) -> Value:
        return value if value.layout == layout else self.build.redistribute(value, layout)

    def _reduce(self, operand: Value, result: Value) -> None:
        """Emit the sum over the passes, in the type that the copy of a parameter asks for."""
        kind = self.before.reduction
        others: Attributes = {} if kind == "sum" else {"reduction": kind}
        if not self.wide or kind != "sum":
            self._accumulate("all_reduce", operand.name, result, **others)
            return
        wide = self.build.emit("convert", operand, dtype=self.wide)
        total = replace(result, name=self.build.unique_name(f"{result.name}.sum"), type=wide.type)
        self._accumulate("all_reduce", wide.name, total)
        narrow: Attributes = {"dtype": result.type.dtype}
        self.build.append(
            replace(
                self.node,
                operator="convert",
                operands=(total.name,),
                results=(result,),
                attributes=narrow,
            )
        )

    def _accumulate(
        self, operator: str, operand: str, result: Value, **attributes: Attribute
    ) -> None:
        attributes["axes"] = self.axes
        self.build.append(
            replace(
                self.node,
                operator=operator,
                operands=(operand,),
                results=(result,),
                attributes=attributes,
            )
        )


# Order


@dataclass
class _Order:
    """The nodes of a program before, in and after the loop."""

    graph: Graph
    axes: tuple[str, ...]
    after: set[str] = field(default_factory=set)  # values known after the loop
    inside: set[str] = field(default_factory=set)  # values made in a pass

    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes in the order of the loop."""
        repeated = self._repeated_operators()
        phases = [self._phase(node, repeated) for node in self.graph.nodes]
        late = self._late(phases)
        order: dict[str, list[Node]] = {"before": [], "loop": [], "after": []}
        for position, (node, phase) in enumerate(zip(self.graph.nodes, phases, strict=True)):
            node = node if phase == "loop" else _unmarked(node, "in_passes")
            order["after" if position in late else phase].append(node)
        return (*order["before"], *order["loop"], *order["after"])

    def _repeated_operators(self) -> frozenset[str]:
        """Return the operators of the model that run in every pass."""
        return frozenset(
            node.name
            for node in self.graph.nodes
            if node.provenance.role == "forward" and mentions(self.graph, node, self.axes)
        )

    def _phase(self, node: Node, repeated: frozenset[str]) -> str:
        names = [result.name for result in node.results]
        reads_sums = next((name for name in node.operands if name in self.after), None)
        if reads_sums is None and accumulates(node, self.axes):
            self.after.update(names)
            return "loop"
        runs_in_passes = mentions(self.graph, node, self.axes) or not self.inside.isdisjoint(
            node.operands
        )
        if reads_sums is not None:
            if runs_in_passes:
                raise OptionError(
                    f"`{node.operator}` reads `{reads_sums}`, which is computed of all samples, in "
                    f"a pass over `{self.axes[0]}`: the program cannot run in micro-batches",
                    node_text(node),
                    "train with one micro-batch",
                )
            self.after.update(names)
            return "after"
        if runs_in_passes or self._is_repeated(node, repeated):
            self.inside.update(names)
            return "loop"
        return "before"

    def _is_repeated(self, node: Node, repeated: frozenset[str]) -> bool:
        """Return whether every pass runs a node that depends on no sample."""
        if node.provenance.operator not in repeated:
            return False
        marked = node.attributes.get("in_passes") or node.attributes.get("recompute")
        return bool(marked) or node.provenance.phase == "backward"

    def _late(self, phases: list[str]) -> set[int]:
        """Return the nodes of the backward pass that could run before, and are read after."""
        late: set[int] = set()
        read: dict[str, bool] = {}  # whether a value is read only after the loop
        for position in range(len(phases) - 1, -1, -1):
            node, phase = self.graph.nodes[position], phases[position]
            only_after = all(read.get(result.name, True) for result in node.results)
            if phase == "before" and node.provenance.phase != "forward" and only_after:
                late.add(position)
                phase = "after"
            for name in node.operands:
                read[name] = read.get(name, True) and phase == "after"
        return late
