"""Differentiation of a program, communication included.

The backward program of a *partitioned* graph follows operator by operator. The cotangent of a value
has the value's split and no partial axes: a replicated value has one gradient, and each part of a
partial sum has the gradient of the sum. Before it is complete it may be partial: an operator that
uses a replicated value for a part of its work returns the gradient as partial sums.

Cotangents pass through ``redistribute`` and ``mirror`` unchanged, and one redistribution brings
them to the layout in which they are accumulated. So the transpose of an all-gather whose result
enters split work is one reduce-scatter, and the transpose of a mirror an all-reduce.

Where the gradient reads a tensor that is not saved (see `recompute`), the tensor is computed again;
where it is saved in host memory, it is copied back.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated

from shardwright.dataflow.cotangents import CotangentFlow, cotangent_flow, gradient_name
from shardwright.dataflow.properties import DIFFERENTIATED, FORWARD, LIVE, UNIFORM
from shardwright.dataflow.recomputation import Recomputation
from shardwright.ir.attributes import Attributes
from shardwright.ir.errors import PassError
from shardwright.ir.graph import Graph, Node, Value, renamed
from shardwright.ir.layout import Layout
from shardwright.ir.provenance import Provenance, Role
from shardwright.ir.reachability import live, without_dead_nodes
from shardwright.ir.types import TensorType, item_bytes
from shardwright.operators.builder import Builder
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.info import Linearization, operator_class, operator_info
from shardwright.operators.models.loss_scale import (
    LOSS_SCALE,
    DynamicLossScale,
    LossScale,
    loss_scale,
    loss_scale_literal,
)
from shardwright.passes.base import Pass, Spelled, register_pass

SCALE = Spelled("a positive number or `dynamic`", loss_scale, loss_scale_literal, (int, float, str))
"""How the text of a pipeline spells a loss scale."""


@register_pass
@dataclass(frozen=True)
class Differentiate(Pass):
    """Append the gradient of the first output by every trainable parameter.

    Each parameter that carries a cotangent gets a value ``<parameter>.grad``, among the outputs; of
    a parameter that is read in lower precision only, the gradient has that precision.

    Before::

        h: f32[8@x, 4] = matmul(a, w)
        ...
        return loss

    After::

        w.mirror: f32[16, 4]* = mirror(w) {axes=('x',)}
        h: f32[8@x, 4] = matmul(a, w.mirror)
        ...
        contract_leading_0: f32[16, 4] +x = matmul(a, relu_gradient_0) {transpose_a=True}
        w.grad: f32[16, 4]* = redistribute(contract_leading_0)
        return loss

    Parameters
    ----------
    loss_scale : LossScale
        The factor of all gradients; ``dynamic`` for one that is a state of the program.
    """

    name = "differentiate"
    requires = (FORWARD, UNIFORM)
    ensures = (DIFFERENTIATED, UNIFORM, LIVE)

    loss_scale: Annotated[LossScale, SCALE] = 1.0

    def run(self, graph: Graph) -> Graph:
        """Return the forward program with its backward program.

        Raises
        ------
        PassError
            If the first output is not a real scalar.
        """
        loss = _loss_of(graph)
        build = Builder(graph.mesh, graph)
        backward = _Backward(graph, build, cotangent_flow(graph), Recomputation(graph, build))
        backward.build.provenance = Provenance("", "seed", graph.copied_tensor(loss.name))
        seed = _seed(backward.build, loss, self.loss_scale)
        backward.contribute(loss, seed)
        for node in reversed(graph.nodes):
            backward.visit(node)
        return backward.finish()


def _seed(build: Builder, loss: Value, scale: LossScale) -> Value:
    """Emit the gradient of the loss by itself, times the loss scale."""
    name = f"{loss.name}.grad"
    if isinstance(scale, DynamicLossScale):
        layout = None if build.mesh is None else Layout.replicated(0)
        state = Value(LOSS_SCALE, TensorType("float32", ()), layout)
        initial: Attributes = {"initializer": f"constant({scale.initial:.17g})", "trainable": False}
        build.parameter(state, initial, "state")
        if loss.type.dtype != state.type.dtype:
            return build.emit("cast", state, name=name, dtype=loss.type.dtype)
        return build.emit("identity", state, name=name)
    dtype = loss.type.dtype
    return build.emit("fill", name=name, like=loss, shape=(), dtype=dtype, value=scale)


def _loss_of(graph: Graph) -> Value:
    if not graph.outputs:
        raise PassError("there is no output to differentiate", f"graph {graph.name}")
    loss = graph.value(graph.outputs[0])
    if loss.type.rank or not loss.type.is_float:
        raise PassError(
            f"`{loss.name}` is {loss.type}, only a real scalar can be differentiated",
            f"graph {graph.name}",
            "let the model return its loss first",
        )
    return loss


@dataclass
class _Backward:
    """The state of a walk from the loss to the parameters."""

    graph: Graph
    build: Builder
    flow: CotangentFlow
    recomputation: Recomputation
    cotangents: dict[str, Value] = field(default_factory=dict)
    operator: str = ""

    @cached_property
    def readers(self) -> Counter[str]:
        """How often each value is read, by nodes, as an output or as an update."""
        read = Counter(name for node in self.graph.nodes for name in node.operands)
        return read + Counter(self.graph.outputs) + Counter(new for _, new in self.graph.updates)

    @cached_property
    def _wide_gradients(self) -> Mapping[str, str]:
        """The type in which gradients of copies of parameters are added up, if not the copy's."""
        wide: dict[str, str] = {}
        for node in self.graph.nodes:
            if node.operator == "cast" and node.attributes.get("reduce"):
                wide[node.name] = str(node.attributes["reduce"])
            elif operator_class(node.operator).passes_cotangent and node.operands[0] in wide:
                wide[node.name] = wide[node.operands[0]]
        return wide

    def visit(self, node: Node) -> None:
        """Differentiate one node, if cotangents flow through it."""
        if not self.flow.enters(node):
            return
        self.build.scope, self.operator = node.scope, node.provenance.operator
        self._emit_as("backward")
        operands = self.graph.operand_values(node)
        totals = [self._total(result) for result in node.results]
        if operator_class(node.operator).passes_cotangent and node.results[0].layout is not None:
            self.contribute(operands[0], totals[0])
            return
        info = operator_info(node.operator, [v.type for v in operands], node.attributes)
        at = Linearization(operands, node.results, totals)
        if isinstance(info, Communication):
            self._emit_as("gradient_redistribution", operands[0])
        begin = len(self.build.nodes)
        gradients = self.build.gradients(info, at)
        receiving = self.flow.operands[node.name]
        ends = [v.name for v, r in zip(gradients, receiving, strict=True) if v is not None and r]
        again = self._read_again(begin, ends)
        for operand, gradient, receives in zip(operands, gradients, receiving, strict=True):
            if receives:
                assert gradient is not None
                name = again.get(gradient.name, gradient.name)
                self.contribute(operand, replace(gradient, name=name))

    def _emit_as(self, role: Role, value: Value | None = None) -> None:
        """Set the role of the nodes emitted next, for the visited operator and a tensor."""
        tensor = self.graph.copied_tensor(value.name) if value is not None else ""
        self.build.provenance = Provenance(self.operator, role, tensor)

    def _read_again(self, begin: int, ends: Sequence[str]) -> Mapping[str, str]:
        """Let a gradient, the nodes from `begin` on, read copies of values that are not saved."""
        emitted = self.build.nodes[begin:]
        read = (name for node in emitted for name in node.operands)
        if not any(map(self.recomputation.is_recomputed, (*read, *ends))):
            return {}
        nodes, names = live(emitted, ends)
        del self.build.nodes[begin:]
        again = self.recomputation.values(names)
        self.build.nodes += [renamed(node, again) for node in nodes]
        return again

    def contribute(self, value: Value, gradient: Value) -> None:
        """Add to the cotangent of a value, in the layout in which its cotangents are added up.

        Added at once, so that at most two gradients of a weight with many readers are alive.
        """
        wide = self._wide_gradients.get(value.name)
        if wide is not None and gradient.type.dtype != wide:
            self._emit_as("backward")
            gradient = self.build.emit("convert", gradient, dtype=wide)
        layout = self._accumulation_layout(value)
        if layout is not None and gradient.layout != layout:
            self._emit_as("gradient_redistribution", value)
            gradient = self.build.redistribute(gradient, layout)
        sum_so_far = self.cotangents.get(value.name)
        self._emit_as("accumulation", value)
        total = gradient if sum_so_far is None else self.build.emit("add", sum_so_far, gradient)
        self.cotangents[value.name] = total

    def _accumulation_layout(self, value: Value) -> Layout | None:
        """Return the layout in which cotangents of a value are added up; None for any layout."""
        if value.layout is None:
            return None
        producer = self.graph.producers.get(value.name)
        if producer is not None and producer.operator == "halo_exchange":
            return None  # the cotangent of a halo is reduced where the halo came from
        if producer is None or not operator_class(producer.operator).passes_cotangent:
            return value.layout.reduced()
        if self.readers[value.name] == 1:
            return None
        axes = producer.attributes.get("axes", ()) if producer.operator == "mirror" else ()
        assert isinstance(axes, tuple)
        return value.layout.with_partial(tuple(map(str, axes)))

    def _total(self, value: Value) -> Value:
        total = self.cotangents.get(value.name)
        if total is not None:
            return total
        dtype = value.type.dtype
        return self.build.emit("fill", like=value, shape=value.type.shape, dtype=dtype, value=0.0)

    def finish(self) -> Graph:
        """Name the gradients, and drop dead nodes."""
        names: dict[str, str] = {}
        outputs = []
        made = self.build.graph(self.graph.name, ())
        for parameter in self.graph.parameters:
            if parameter.name not in self.flow.values:
                continue
            self.build.scope, self.operator = "", ""
            self._emit_as("accumulation", parameter.value)
            gradient, name = self.cotangents[parameter.name], gradient_name(parameter.name)
            gradient = _before_widening(made, gradient, self.graph, parameter.name)
            if gradient.name in names or gradient.name in self.graph.values:
                gradient = self.build.emit("identity", gradient)
            names[gradient.name] = name
            outputs.append(name)
        nodes = tuple(
            _with_new_names(node, names)
            for node in self.recomputation.with_host_copies(self.build.nodes)
        )
        whole = self.build.graph(self.graph.name, (*self.graph.outputs, *outputs))
        return without_dead_nodes(whole.with_nodes(nodes))


def _before_widening(graph: Graph, gradient: Value, forward: Graph, parameter: str) -> Value:
    """Return the gradient of a parameter before it is cast to the type of the parameter.

    The update widens what it reads: wide gradients would all be alive until the updates. That is
    so where the parameter itself is cast, which the search counts so.
    """
    node = graph.producers.get(gradient.name)
    if node is None or node.operator != "cast":
        return gradient
    cast = forward.producers.get(node.provenance.operator)
    if cast is None or forward.copied_tensor(cast.operands[0]) != parameter:
        return gradient
    operand = graph.values[node.operands[0]]
    wider = item_bytes(operand.type.dtype) < item_bytes(gradient.type.dtype)
    return operand if wider else gradient


def _with_new_names(node: Node, names: Mapping[str, str]) -> Node:
    node = renamed(node, names)
    if not any(result.name in names for result in node.results):
        return node
    results = tuple(replace(r, name=names.get(r.name, r.name)) for r in node.results)
    return replace(node, results=results)
