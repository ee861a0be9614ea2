"""The optimizer's update of every trained parameter, appended to a differentiated program."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from shardwright.dataflow.cotangents import untrained_parameters
from shardwright.ir.errors import PassError, ShardwrightWarning
from shardwright.ir.graph import Attribute, Graph
from shardwright.ir.values import (
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    check_choice,
    check_flag,
    check_names,
)
from shardwright.operators.info import operator_class

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
