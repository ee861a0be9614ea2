"""Partition: every tensor gets the layout that the strategies demand."""

from dataclasses import dataclass, replace

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
    layout in which its parameter is stored.

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
        decisions = decisions_of(graph)
        build = Builder(decisions.mesh)
        build.reserve(graph.values)
        at: dict[str, Value] = {}
        for value in graph.inputs:
            at[value.name] = _share(build, graph, build.input(value), decisions)
        for parameter in graph.parameters:
            done = (REGATHERED, GATHERED_IN_PASSES)
            attributes = {k: v for k, v in parameter.attributes.items() if k not in done}
            build.parameter(parameter.value, attributes, parameter.role, parameter.weight)
        for parameter in graph.parameters:
            at[parameter.name] = _share(build, graph, parameter.value, decisions)
        for node in graph.nodes:
            build.scope = node.scope
            _emit_operator(build, graph, node, decisions, at)
        outputs = []
        for name in graph.outputs:
            _move_for(build, _owner(graph, name), name)
            whole = Layout.replicated(at[name].type.rank)
            outputs.append(_in_layout(build, at[name], whole).name)
        for name, new in graph.updates:
            _move_for(build, _owner(graph, new), new)
            build.updates.append((name, _in_layout(build, at[new], decisions.stored[name]).name))
        partitioned = build.graph(graph.name, tuple(outputs))
        return replace(
            partitioned, shared_layouts=graph.shared_layouts, recomputed=graph.recomputed
        )


def _emit_operator(
    build: Builder, graph: Graph, node: Node, decisions: Decisions, at: dict[str, Value]
) -> None:
    operands = graph.operand_values(node)
    info = operator_info(node.operator, [value.type for value in operands], node.attributes)
    strategy = decisions.strategies[node.name]
    info.check_strategy(strategy, decisions.mesh)
    layouts = info.rule.operand_layouts(strategy)
    read = []
    for name, layout in zip(node.operands, layouts, strict=True):
        _move_for(build, node.provenance.operator, name)
        stored = stored_tensor(graph, name)
        marks = {
            "recompute": stored in decisions.regathered,
            "in_passes": stored in decisions.gathered_in_passes,
        }
        read.append(_in_layout(build, at[name], layout, **marks))
    split = emit_split(build, node, read, strategy)
    for result, value in zip(node.results, split.results, strict=True):
        at[result.name] = _share(build, graph, value, decisions)


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


def _share(build: Builder, graph: Graph, value: Value, decisions: Decisions) -> Value:
    """Return a value in the layout that its readers share, if one is decided."""
    shared_layout = decisions.shared_layouts.get(value.name)
    if shared_layout is None:
        return value
    _move_for(build, first_reader(graph, value.name), value.name)
    return _in_layout(build, value, shared_layout.layout)


def first_reader(graph: Graph, name: str) -> str:
    """Return the first operator that reads a value; it owns the copy that the readers share."""
    readers = graph.uses[name]
    return readers[0][0].provenance.operator if readers else _owner(graph, name)
