"""Partition: every tensor gets the layout that the strategies demand."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from shardwright.dataflow.placement import Placement
from shardwright.dataflow.properties import ANNOTATED, FORWARD, PARTITIONED
from shardwright.ir.decisions import Decisions
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.layout import Layout
from shardwright.ir.provenance import Provenance
from shardwright.operators.builder import Builder
from shardwright.operators.info import operator_info
from shardwright.operators.windows.halo_exchange import emit_split
from shardwright.passes.annotate import GATHERED_IN_PASSES, REGATHERED, decisions_of
from shardwright.passes.base import Pass, register_pass


@register_pass
@dataclass(frozen=True)
class Partition(Pass):
    """Give every tensor its layout; insert ``redistribute`` where a reader needs another one.

    Where windows are split, a ``halo_exchange`` is inserted too. A tensor with several readers is
    redistributed once, to the layout that they share. Outputs are replicated; an update gets the
    layout in which its parameter is stored. A ``redistribute`` also brings a tensor to another
    pipeline stage, once for all of its readers there.

    Before::

        input x: f32[8@x, 16]
        parameter w: f32[16@x, 4]
        h: f32[8, 4] = matmul(x, w) split(m=x)

    After::

        input x: f32[8@x, 16]
        parameter w: f32[16@x, 4]
        w.to_0: f32[16, 4]* = redistribute(w)
        h: f32[8@x, 4] = matmul(x, w.to_0) split(m=x)
    """

    name = "partition"
    requires = (ANNOTATED, FORWARD)
    ensures = (PARTITIONED,)

    def run(self, graph: Graph) -> Graph:
        """Return the partitioned program.

        Raises
        ------
        StrategyError
            If a strategy does not fit its operator.
        """
        return _Partitioning(graph, decisions_of(graph)).run()


@dataclass
class _Partitioning:
    """A program on the way to the layouts and places that its decisions demand."""

    graph: Graph
    decisions: Decisions
    made: dict[str, Value] = field(default_factory=dict)  # or as it is fed or stored
    copies: dict[tuple[str, int | None], Value] = field(default_factory=dict)  # for a stage

    @cached_property
    def build(self) -> Builder:
        build = Builder(self.decisions.mesh)
        build.reserve(self.graph.values)
        return build

    @cached_property
    def places(self) -> Mapping[str, int | None]:
        """The stage of every operator; empty without stages."""
        return Placement(self.graph).operators

    def run(self) -> Graph:
        graph, build = self.graph, self.build
        for value in graph.inputs:
            self._make(value.name, build.input(value))
        for parameter in graph.parameters:
            done = (REGATHERED, GATHERED_IN_PASSES)
            attributes = {k: v for k, v in parameter.attributes.items() if k not in done}
            build.parameter(parameter.value, attributes, parameter.role, parameter.weight)
        for parameter in graph.parameters:
            self._make(parameter.name, parameter.value)
        for node in graph.nodes:
            build.scope = node.scope
            self._emit_operator(node)
        whole = {name: self._returned(name, None).name for name in dict.fromkeys(graph.outputs)}
        outputs = tuple(whole[name] for name in graph.outputs)
        for name, new in graph.updates:
            stored = self.decisions.stored[name]
            build.updates.append((name, self._returned(new, stored).name))
        return replace(
            build.graph(graph.name, outputs),
            shared_layouts=graph.shared_layouts,
            recomputed=graph.recomputed,
            regathered=graph.regathered,
            offloaded=graph.offloaded,
            schedule=graph.schedule,
        )

    def _returned(self, name: str, layout: Layout | None) -> Value:
        """Return an output, replicated where it is made, or an update in its layout."""
        stage = _stage(self.made[name])
        value = self._for_stage(name, stage)
        _move_for(self.build, _owner(self.graph, name), name)
        whole = Layout.replicated(value.type.rank).at(stage)
        return _in_layout(self.build, value, whole if layout is None else layout)

    def _emit_operator(self, node: Node) -> None:
        operands = self.graph.operand_values(node)
        info = operator_info(node.operator, [value.type for value in operands], node.attributes)
        strategy, stage = self.decisions.strategies[node.name], self.places.get(node.name)
        info.check_strategy(strategy, self.decisions.mesh)
        layouts = info.rule.operand_layouts(strategy)
        if any(strategy.axes.get(factor) for factor in info.halos):
            layouts = tuple(layout.at(stage) for layout in layouts)  # where halos are exchanged
        read = [
            self._operand(node, name, layout)
            for name, layout in zip(node.operands, layouts, strict=True)
        ]
        split = emit_split(self.build, node, read, strategy, stage)
        for result, value in zip(node.results, split.results, strict=True):
            self._make(result.name, value)

    def _make(self, name: str, value: Value) -> None:
        """Take a value as made, and redistribute it for the readers at its place."""
        self.made[name] = value
        if not self.places or _stage(value) in self._reading(name):
            self._for_stage(name, _stage(value))

    # Readers

    def _operand(self, node: Node, name: str, layout: Layout) -> Value:
        """Return a value in the layout in which a node reads it."""
        stored, stage = stored_tensor(self.graph, name), self.places.get(node.name)
        marks = {
            "recompute": stored in self.decisions.regathered and stored not in self.graph.producers,
            "in_passes": stored in self.decisions.gathered_in_passes,
        }
        value = self._for_stage(name, stage, whole=not any(marks.values()))
        _move_for(self.build, node.provenance.operator, name)
        if value.layout == layout:  # it is on every stage, or there are none
            return value
        return _in_layout(self.build, value, layout.at(stage), **marks)

    def _for_stage(self, name: str, stage: int | None, *, whole: bool = True) -> Value:
        """Return a value in the layout that its readers in a stage share.

        A single reader in another stage brings the value over itself, in the layout that it reads.
        What is to be gathered again is brought over as it is stored, if not `whole`.
        """
        made = self.made[name]
        assert made.layout is not None
        if made.layout.stage not in (None, stage) and whole and self._reading(name)[stage] == 1:
            return made
        shared_layout = self.decisions.shared_layouts.get(name)
        layout = made.layout if shared_layout is None else shared_layout.layout
        if made.layout.stage not in (None, stage) and not whole:
            layout = made.layout
        if made.layout.stage is None and layout == made.layout:
            return made
        if (name, stage) not in self.copies:
            _move_for(self.build, self._first_reader(name, stage), name)
            self.copies[name, stage] = _in_layout(self.build, made, layout.at(stage))
        return self.copies[name, stage]

    def _reading(self, name: str) -> Counter[int | None]:
        """Return how often a value is read in each stage."""
        return Counter(self.places.get(node.name) for node, _ in self.graph.uses[name])

    def _first_reader(self, name: str, stage: int | None) -> str:
        """Return the first operator in a stage that reads a value; it owns the copy there."""
        for node, _ in self.graph.uses[name]:
            if self.places.get(node.name) == stage:
                return node.provenance.operator
        return _owner(self.graph, name)


def _stage(value: Value) -> int | None:
    return None if value.layout is None else value.layout.stage


def stored_tensor(graph: Graph, name: str) -> str:
    """Return the parameter of which a value is the copy in another element type; else the value."""
    producer = graph.producers.get(name)
    return name if producer is None or producer.operator != "cast" else producer.operands[0]


def _owner(graph: Graph, name: str) -> str:
    """Return the operator that computes a value; empty for inputs and parameters."""
    producer = graph.producers.get(name)
    return producer.provenance.operator if producer is not None else ""


def _move_for(build: Builder, operator: str, tensor: str) -> None:
    """Set the provenance of redistributions of a tensor for a reader."""
    build.provenance = Provenance(operator, "redistribution", tensor)


def _in_layout(build: Builder, value: Value, layout: Layout, **marks: bool) -> Value:
    """Return a value in a layout, redistributed if it has another one."""
    return value if value.layout == layout else build.redistribute(value, layout, **marks)


def first_reader(graph: Graph, name: str) -> str:
    """Return the first operator that reads a value; it owns the copy that the readers share."""
    readers = graph.uses[name]
    return readers[0][0].provenance.operator if readers else _owner(graph, name)
