"""The optimizer's update of every trained parameter, appended to a differentiated program."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from shardwright.dataflow.cotangents import gradient_name, untrained_parameters
from shardwright.ir.errors import PassError, ShardwrightWarning
from shardwright.ir.graph import Attribute, Graph, Value
from shardwright.ir.layout import Layout
from shardwright.ir.provenance import Provenance
from shardwright.ir.types import TensorType
from shardwright.ir.values import (
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    check_choice,
    check_flag,
    check_names,
)
from shardwright.operators.builder import Builder
from shardwright.operators.info import operator_class
from shardwright.operators.models.optimizer import state_type

Kind = Literal["sgd", "momentum", "adam"]
STATES: dict[str, tuple[str, ...]] = {"sgd": (), "momentum": ("momentum",), "adam": ("m", "v")}
STEP = "optimizer.step"
_MOST_NAMES = 5  # in a warning
_RANGES = {"beta1": SHARE, "beta2": SHARE, "epsilon": POSITIVE}


@dataclass(frozen=True)
class Optimizer:
    """What turns a gradient into an update.

    Parameters
    ----------
    kind : str
        ``sgd``, ``momentum`` or ``adam``.
    settings : mapping
        Attributes of the update operator: ``learning_rate`` and so on.
    overrides : mapping of str to mapping
        Settings that differ for single parameters, by name.

    Raises
    ------
    OptionError
        If there is no such rule or setting, or a setting has a value that is not allowed.
    """

    kind: Kind = "sgd"
    settings: dict[str, Attribute] = field(default_factory=lambda: {"learning_rate": 0.01})
    overrides: dict[str, dict[str, Attribute]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice("optimizer", self.kind, STATES)
        for settings in (self.settings, *self.overrides.values()):
            check_settings(self.kind, settings)

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the tensors that it keeps for each parameter."""
        return STATES[self.kind]

    @property
    def counts_steps(self) -> bool:
        """Whether the update depends on the number of the step."""
        return self.kind == "adam"

    def settings_of(self, parameter: str) -> dict[str, Attribute]:
        """Return the attributes of the update of one parameter."""
        return {**self.settings, **self.overrides.get(parameter, {})}


def check_settings(kind: str, settings: Mapping[str, object]) -> None:
    """Refuse settings that the update of an optimizer does not have, and values out of range.

    Raises
    ------
    OptionError
        If there is one.
    """
    check_names(f"`{kind}` has no setting", settings, operator_class(f"{kind}_update").defaults)
    for name, value in settings.items():
        if name == "nesterov":
            check_flag(name, value)
        else:
            _RANGES.get(name, NOT_NEGATIVE).check(name, value)


def check_trained(graph: Graph) -> None:
    """Refuse a forward program that trains nothing; warn of parameters that get no update.

    Raises
    ------
    PassError
        If there are trainable parameters, and the loss depends on none of them.
    """
    idle = untrained_parameters(graph)
    if idle and len(idle) == sum(parameter.trainable for parameter in graph.parameters):
        raise PassError(
            f"none of the {len(idle)} trainable parameters would be updated: the loss depends on "
            f"`{idle[0]}`{' and the others' if len(idle) > 1 else ''} by no operators that have a "
            f"gradient",
            hint="declare parameters that are not trained with `requires_grad=False`",
        )
    warn_of_idle(idle, "no gradient reaches them")


def warn_of_idle(parameters: Sequence[str], reason: str) -> None:
    """Warn of trainable parameters that get no update, and say why."""
    if not parameters:
        return
    names = ", ".join(f"`{name}`" for name in parameters[:_MOST_NAMES])
    more = len(parameters) - _MOST_NAMES
    others = f" and {more} more" if more > 0 else ""
    warnings.warn(
        f"trainable parameters get no update, {reason}: {names}{others}",
        ShardwrightWarning,
        stacklevel=2,
    )


def append_optimizer(graph: Graph, optimizer: Optimizer, loss_scale: float = 1.0) -> Graph:
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
    graph : Graph
        A differentiated program.
    optimizer : Optimizer
        The rule of the update.
    loss_scale : float
        The factor that the gradients carry; it is divided out first.
    """
    build = Builder(graph.mesh, graph)
    build.provenance = Provenance("", "update")
    step = _count_steps(build) if optimizer.counts_steps else None
    for parameter in graph.parameters:
        name = gradient_name(parameter.name)
        if not parameter.trainable or name not in graph.values:
            continue
        gradient = graph.values[name]
        build.provenance = Provenance("", "update", parameter.name)
        if loss_scale != 1.0:
            gradient = build.emit("scale", gradient, factor=1.0 / loss_scale)
        _append_update(build, parameter.value, gradient, optimizer, step)
    gradients = {gradient_name(parameter.name) for parameter in graph.parameters}
    return build.graph(graph.name, tuple(o for o in graph.outputs if o not in gradients))


def _count_steps(build: Builder) -> Value:
    layout = None if build.mesh is None else Layout.replicated(0)
    step = Value(STEP, TensorType("int64", ()), layout)
    build.parameter(step, {"initializer": "zeros", "trainable": False}, "state")
    following = build.emit("add_scalar", step, name=f"{STEP}.next", value=1)
    build.updates.append((STEP, following.name))
    return following


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
