"""The optimizer's update of every trained parameter, appended to a differentiated program."""

from dataclasses import dataclass, field
from typing import Literal

from shardwright.ir.errors import PassError
from shardwright.ir.graph import Attribute, Graph, Value
from shardwright.ir.layout import Layout
from shardwright.ir.types import TensorType
from shardwright.operators.builder import Builder
from shardwright.passes.gradient import gradient_name

Kind = Literal["sgd", "momentum", "adam"]
STATES: dict[str, tuple[str, ...]] = {"sgd": (), "momentum": ("momentum",), "adam": ("m", "v")}
_STEP = "optimizer.step"


@dataclass(frozen=True)
class Optimizer:
    """What turns a gradient into an update.

    Parameters
    ----------
    kind : str
        ``sgd``, ``momentum`` or ``adam``.
    settings : mapping
        Attributes of the update operator: ``learning_rate`` and so on.
    """

    kind: Kind = "sgd"
    settings: dict[str, Attribute] = field(default_factory=lambda: {"learning_rate": 0.01})

    def __post_init__(self) -> None:
        if self.kind not in STATES:
            raise PassError(
                f"no optimizer is called `{self.kind}`", hint=f"use one of {tuple(STATES)}"
            )

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the tensors that it keeps for each parameter."""
        return STATES[self.kind]


def append_optimizer(graph: Graph, optimizer: Optimizer, loss_scale: float = 1.0) -> Graph:
    """Append the update of every parameter that has a gradient.

    States lie as their parameters do, so that an optimizer on split parameters is a split
    optimizer.

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
    graph : Graph
        A differentiated program.
    optimizer : Optimizer
        The rule of the update.
    loss_scale : float
        The factor that the gradients carry; it is divided out first.
    """
    build = Builder(graph.mesh, graph)
    step = _count_steps(build) if optimizer.kind == "adam" else None
    for parameter in graph.parameters:
        name = gradient_name(parameter.name)
        if not parameter.trainable or name not in graph.values:
            continue
        gradient = graph.values[name]
        if loss_scale != 1.0:
            gradient = build.emit("scale", gradient, factor=1.0 / loss_scale)
        _append_update(build, parameter.value, gradient, optimizer, step)
    gradients = {gradient_name(parameter.name) for parameter in graph.parameters}
    return build.graph(graph.name, tuple(o for o in graph.outputs if o not in gradients))


def _count_steps(build: Builder) -> Value:
    layout = None if build.mesh is None else Layout.replicated(0)
    step = Value(_STEP, TensorType("int64", ()), layout)
    build.parameter(step, {"initializer": "zeros", "trainable": False})
    following = build.emit("add_scalar", step, name=f"{_STEP}.next", value=1)
    build.updates.append((_STEP, following.name))
    return following


def _append_update(
    build: Builder, parameter: Value, gradient: Value, optimizer: Optimizer, step: Value | None
) -> None:
    states = [
        build.parameter(
            Value(f"{parameter.name}.{state}", parameter.type, parameter.layout),
            {"initializer": "zeros", "trainable": False},
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
        **optimizer.settings,
    )
    updated = (parameter, *states)
    build.updates += [(old.name, new.name) for old, new in zip(updated, results, strict=True)]
