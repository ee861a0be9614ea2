"""Updates of parameters: the parameter and its states, from the gradient and the states before.

All are elementwise, in any layout that parameter, gradient and states share. The rules themselves
are in `shardwright.operators.models.updates`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Final, Literal

import numpy as np

from shardwright.ir.attributes import Attribute
from shardwright.ir.errors import IRError
from shardwright.ir.types import TensorType
from shardwright.ir.values import (
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    check_choice,
    check_flag,
    check_names,
)
from shardwright.operators.info import Array, OperatorInfo, operator_class
from shardwright.operators.models.schedule import check_rate, is_schedule
from shardwright.operators.notation import resolve
from shardwright.operators.rule import Rule, ShardView

Kind = Literal["sgd", "momentum", "adam", "ftrl", "adagrad", "rmsprop"]
STATES: Final[Mapping[str, Mapping[str, str | None]]] = {
    "sgd": {},
    "momentum": {"momentum": None},
    "adam": {"m": None, "v": None},
    "ftrl": {"accumulator": "initial_accumulator", "linear": None},
    "adagrad": {"accumulator": "initial_accumulator"},
    "rmsprop": {"mean_square": None, "momentum": None},
}
"""The states of each rule, with the setting that they begin with; None: with zeros."""
STEP = "optimizer.step"
RATE = "optimizer.learning_rate"
BIAS_CORRECTIONS: Final = ("moments", "rate", "none")
_RANGES = {
    "beta1": SHARE,
    "beta2": SHARE,
    "decay": SHARE,
    "epsilon": POSITIVE,
}
_FLAGS = ("nesterov", "lazy")


@dataclass(frozen=True)
class Optimizer:
    """The rule that updates parameters from their gradients.

    Parameters
    ----------
    kind : str
        ``sgd``, ``momentum``, ``adam``, ``ftrl``, ``adagrad`` or ``rmsprop``.
    settings : mapping
        Attributes of the update operator. The ``learning_rate`` may be a schedule: a formula over
        ``step``, the number of steps before, or a tuple with the rate of each step.
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
        """Names of the states of each parameter."""
        return tuple(STATES[self.kind])

    @property
    def reads_step(self) -> bool:
        """Whether the update of a parameter reads the number of the step."""
        return self.kind == "adam"

    @property
    def is_scheduled(self) -> bool:
        """Whether a learning rate follows the number of the step; then all are operands."""
        every = (self.settings, *self.overrides.values())
        return any(is_schedule(settings.get("learning_rate")) for settings in every)

    @property
    def counts_steps(self) -> bool:
        """Whether the number of the step is a state of the program."""
        return self.reads_step or self.is_scheduled

    def settings_of(self, parameter: str) -> dict[str, Attribute]:
        """Return the settings of the update of one parameter."""
        return {**self.settings, **self.overrides.get(parameter, {})}

    def attributes_of(self, parameter: str) -> dict[str, Attribute]:
        """Return the attributes of the update of one parameter: without a rate that it reads."""
        settings = self.settings_of(parameter)
        if self.is_scheduled:
            settings.pop("learning_rate", None)
        return settings

    def rate_of(self, parameter: str) -> Attribute:
        """Return the learning rate of one parameter: a number or a schedule."""
        return self._setting(parameter, "learning_rate")

    def initializer_of(self, parameter: str, state: str) -> str:
        """Return the initializer of a state of one parameter."""
        setting = STATES[self.kind][state]
        if setting is None:
            return "zeros"
        return f"constant({float(self._setting(parameter, setting)):.17g})"  # type: ignore[arg-type]

    def _setting(self, parameter: str, name: str) -> Attribute:
        defaults = operator_class(f"{self.kind}_update").defaults
        return self.settings_of(parameter).get(name, defaults[name])


def check_settings(kind: str, settings: Mapping[str, Attribute]) -> None:
    """Refuse settings that the update of an optimizer does not have, and values out of range.

    Raises
    ------
    OptionError
        If there is one.
    """
    check_names(f"`{kind}` has no setting", settings, operator_class(f"{kind}_update").defaults)
    for name, value in settings.items():
        if name in _FLAGS:
            check_flag(name, value)
        elif name == "bias_correction":
            check_choice(name, value, BIAS_CORRECTIONS)
        elif name == "learning_rate":
            check_rate(name, value)
            if kind == "ftrl" and not is_schedule(value):
                POSITIVE.check(name, value)
        else:
            _RANGES.get(name, NOT_NEGATIVE).check(name, value)


def state_type(parameter: TensorType) -> TensorType:
    """Return the type of the states of a parameter.

    Float16 has too few exponents: squares of small gradients, and the epsilon of Adam, round to
    zero. Its states are float32, and so is the arithmetic of the update.
    """
    narrow = parameter.dtype == "float16"
    return TensorType("float32", parameter.shape) if narrow else parameter


class Update(OperatorInfo):
    """An update; operands are the parameter, the gradient, and the states.

    A learning rate that follows the step is an operand too. Under a dynamic loss scale two scalars
    come last: the scale, by which the gradient is divided, and the number of elements of all
    gradients that are not finite; if there are some, nothing changes.

    Attributes
    ----------
    states : int
        Number of state tensors per parameter.
    counts_steps : bool
        Whether the number of the step is an operand.
    """

    states: ClassVar[int]
    counts_steps: ClassVar[bool] = False

    @property
    def _scalars(self) -> int:
        """Number of operands after the states and the number of the step."""
        return len(self.operand_types) - 2 - self.states - self.counts_steps

    @property
    def is_guarded(self) -> bool:
        """Whether the update depends on a dynamic loss scale."""
        return self._scalars in (2, 3)

    @property
    def reads_rate(self) -> bool:
        """Whether the learning rate is an operand, not an attribute."""
        return self._scalars in (1, 3)

    @property
    def linear_sets(self) -> tuple[tuple[int, ...], ...]:
        """None where the update may be skipped."""
        return () if self.is_guarded else self.linear

    def make_rule(self) -> Rule:
        """Refuse to broadcast."""
        shapes = [operand.shape for operand in self.operand_types]
        own = shapes[: 2 + self.states]
        if len(set(own)) > 1:
            raise IRError(f"parameter, gradient and states have the shapes {own}, one expected")
        if self.reads_rate and "learning_rate" in self.stated:
            raise IRError("the learning rate is both an operand and an attribute")
        if not 0 < self._scalars <= 3:
            return super().make_rule()
        left, _, right = self.notation.partition("->")
        return resolve(f"{left}{', ' * self._scalars} -> {right}", shapes)

    def make_dtypes(self) -> tuple[str, ...]:
        """Return the types of the parameter and the states."""
        types = [operand.dtype for operand in self.operand_types]
        return (types[0], *types[2 : 2 + self.states])

    def kernel(self, view: ShardView, *operands: Array) -> tuple[Array, ...]:
        """Update in the type of the states, and round to the types of parameter and states."""
        count = 2 + self.states
        tensors, scalars = list(operands[:count]), list(operands[count:])
        before = (tensors[0], *tensors[2:])
        if self.is_guarded:
            *scalars, scale, nonfinite = scalars
            if nonfinite > 0:
                return before
            tensors[1] = np.asarray(tensors[1], before[0].dtype) / scale
        rate = float(scalars.pop()) if self.reads_rate else self.attributes["learning_rate"]
        exact = np.result_type(*(tensor.dtype for tensor in tensors))
        widened = [np.asarray(tensor, exact) for tensor in tensors]
        after = self.updated(rate, *widened, *scalars)
        return tuple(np.asarray(a, b.dtype) for a, b in zip(after, before, strict=True))

    @property
    def overwrites(self) -> bool:
        """Whether `overwrite` can run: one element type, and no step that may be skipped."""
        tensors = {operand.dtype for operand in self.operand_types[: 2 + self.states]}
        return len(tensors) == 1 and not self.is_guarded

    def writer(self, scalars: Sequence[Array]) -> Callable[..., None]:
        """Return the function of parameter, gradient and states that overwrites them.

        It takes `room` as `write` does.
        """
        own = list(scalars)
        rate = float(own.pop()) if self.reads_rate else self.attributes["learning_rate"]
        if not own:
            return partial(self.write, rate)
        return lambda *tensors, room=None: self.write(rate, *tensors, *own, room=room)

    def write(self, rate: float, *operands: Array, room: Array | None = None) -> None:
        """Put the next parameter and states where those before are; the bits are the kernel's.

        Parameters
        ----------
        rate : float
            The learning rate.
        operands : array
            Parameter, gradient, states, and scalars.
        room : array, optional
            Of the gradient's shape and type, to compute in; the gradient itself, if nobody reads it
            any more.
        """
        before = (operands[0], *operands[2 : 2 + self.states])
        for old, new in zip(before, self.updated(rate, *operands), strict=True):
            old[...] = new

    def updated(self, rate: float, *operands: Array) -> Sequence[Array]:
        """Return the next parameter and states."""
        raise NotImplementedError
