"""The optimizer's update of every trained parameter."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Self

from shardwright.dataflow.cotangents import gradient_name
from shardwright.dataflow.properties import DIFFERENTIATED, UNIFORM, UPDATED
from shardwright.ir.attributes import Attribute
from shardwright.ir.errors import PassError
from shardwright.ir.graph import Graph, Value
from shardwright.ir.layout import Layout
from shardwright.ir.provenance import Provenance
from shardwright.ir.types import TensorType
from shardwright.ir.values import POSITIVE, wrong_value
from shardwright.operators.builder import Builder
from shardwright.operators.models.optimizer import STEP, Kind, Optimizer, state_type
from shardwright.passes.base import Pass, register_pass


@register_pass
@dataclass(frozen=True)
class AppendOptimizer(Pass):
    """Append the update of every parameter that has a gradient.

    States have the layout of their parameter, so that an optimizer of split parameters is split
    itself.

    Before::

        w.grad: f32[16@x, 4] = reduce_scatter(g) {axes=('x',), dimension=0}
        return loss, w.grad

    After::

        w.grad: f32[16@x, 4] = reduce_scatter(g) {axes=('x',), dimension=0}
        w.next: f32[16@x, 4] = sgd_update(w, w.grad) {learning_rate=0.01}
        update w = w.next
        return loss

    Parameters
    ----------
    optimizer : str
        The rule of the update.
    settings : mapping
        Attributes of the update operator: ``{'learning_rate': 0.1}``.
    overrides : mapping
        Settings of single parameters, by name: ``{'w': {'learning_rate': 0.2}}``.
    loss_scale : float
        The factor that the gradients carry; it is divided out first.
    """

    name = "append_optimizer"
    requires = (DIFFERENTIATED, UNIFORM)
    ensures = (UPDATED, UNIFORM)

    optimizer: Kind = "sgd"
    settings: Mapping[str, Attribute] = field(default_factory=lambda: Optimizer().settings)
    overrides: Mapping[str, Mapping[str, Attribute]] = field(default_factory=dict)
    loss_scale: Annotated[float, POSITIVE] = 1.0

    def check(self) -> None:
        """Check the settings of the optimizer."""
        for name, settings in self.overrides.items():
            if not isinstance(settings, Mapping):
                raise wrong_value(f"overrides of {name}", settings, "a mapping")
        _ = self._rule

    @classmethod
    def of(cls, optimizer: Optimizer, loss_scale: float = 1.0) -> Self:
        """Return the pass for an optimizer."""
        return cls(optimizer.kind, optimizer.settings, optimizer.overrides, loss_scale)

    @cached_property
    def _rule(self) -> Optimizer:
        overrides = {name: dict(settings) for name, settings in self.overrides.items()}
        return Optimizer(self.optimizer, dict(self.settings), overrides)

    def run(self, graph: Graph) -> Graph:
        """Return the differentiated program with its updates."""
        known = {parameter.name for parameter in graph.parameters}
        unknown = sorted(self.overrides.keys() - known)
        if unknown:
            what = f"`overrides` names `{unknown[0]}`, which is no parameter"
            raise PassError(what, f"graph {graph.name}")
        build = Builder(graph.mesh, graph)
        build.provenance = Provenance("", "update")
        step = _count_steps(build) if self._rule.counts_steps else None
        for parameter in graph.parameters:
            name = gradient_name(parameter.name)
            if not parameter.trainable or name not in graph.values:
                continue
            gradient = graph.values[name]
            build.provenance = Provenance("", "update", parameter.name)
            if self.loss_scale != 1.0:
                gradient = _widened(build, gradient, parameter.value)
                gradient = build.emit("scale", gradient, factor=1.0 / self.loss_scale)
            _append_update(build, parameter.value, gradient, self._rule, step)
        gradients = {gradient_name(parameter.name) for parameter in graph.parameters}
        return build.graph(graph.name, tuple(o for o in graph.outputs if o not in gradients))


def _count_steps(build: Builder) -> Value:
    layout = None if build.mesh is None else Layout.replicated(0)
    step = Value(STEP, TensorType("int64", ()), layout)
    build.parameter(step, {"initializer": "zeros", "trainable": False}, "state")
    following = build.emit("add_scalar", step, name=f"{STEP}.next", value=1)
    build.updates.append((STEP, following.name))
    return following


def _widened(build: Builder, gradient: Value, parameter: Value) -> Value:
    """Return a gradient in the type of its parameter, in which its scale can be divided out."""
    dtype = parameter.type.dtype
    if gradient.type.dtype == dtype:
        return gradient
    return build.emit("cast", gradient, dtype=dtype)


def _append_update(
    build: Builder, parameter: Value, gradient: Value, optimizer: Optimizer, step: Value | None
) -> None:
    states = [
        build.parameter(
            Value(f"{parameter.name}.{state}", state_type(parameter.type), parameter.layout),
            {"initializer": "zeros", "trainable": False},
            "state",
            parameter.name,
        )
        for state in optimizer.states
    ]
    counted = [] if step is None else [step]
    results = build.emit_all(
        f"{optimizer.kind}_update",
        parameter,
        gradient,
        *states,
        *counted,
        name=f"{parameter.name}.next",
        like=None,
        **optimizer.settings_of(parameter.name),
    )
    updated = (parameter, *states)
    build.updates += [(old.name, new.name) for old, new in zip(updated, results, strict=True)]
