"""Updates of parameters: the parameter and its states, from the gradient and the states before.

All are elementwise, in any layout that parameter, gradient and states share.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

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
from shardwright.operators.info import Array, Example, OperatorInfo, operator_class, register
from shardwright.operators.notation import resolve
from shardwright.operators.rule import Rule, ShardView

Kind = Literal["sgd", "momentum", "adam"]
STATES: dict[str, tuple[str, ...]] = {"sgd": (), "momentum": ("momentum",), "adam": ("m", "v")}
STEP = "optimizer.step"
_RANGES = {"beta1": SHARE, "beta2": SHARE, "epsilon": POSITIVE}


@dataclass(frozen=True)
class Optimizer:
    """The rule that updates parameters from their gradients.

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
        """Names of the states of each parameter."""
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


def state_type(parameter: TensorType) -> TensorType:
    """Return the type of the states of a parameter.

    Float16 has too few exponents: squares of small gradients, and the epsilon of Adam, round to
    zero. Its states are float32, and so is the arithmetic of the update.
    """
    narrow = parameter.dtype == "float16"
    return TensorType("float32", parameter.shape) if narrow else parameter


class Update(OperatorInfo):
    """An update; operands are the parameter, the gradient, and the states.

    Under a dynamic loss scale two scalars follow: the scale, by which the gradient is divided, and
    the number of elements of all gradients that are not finite; if there are some, nothing changes.

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
    def is_guarded(self) -> bool:
        """Whether the update depends on a dynamic loss scale."""
        return len(self.operand_types) == 4 + self.states + self.counts_steps

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
        if not self.is_guarded:
            return super().make_rule()
        left, _, right = self.notation.partition("->")
        return resolve(f"{left}, , -> {right}", shapes)

    def make_dtypes(self) -> tuple[str, ...]:
        """Return the types of the parameter and the states."""
        types = [operand.dtype for operand in self.operand_types]
        return (types[0], *types[2 : 2 + self.states])

    def kernel(self, view: ShardView, *operands: Array) -> tuple[Array, ...]:
        """Update in the type of the states, and round to the types of parameter and states."""
        before = (operands[0], *operands[2 : 2 + self.states])
        if self.is_guarded:
            *operands, scale, nonfinite = operands  # type: ignore[assignment]
            if nonfinite > 0:
                return before
            operands[1] = np.asarray(operands[1], before[0].dtype) / scale  # type: ignore[index]
        exact = np.result_type(*(operand.dtype for operand in operands[: 2 + self.states]))
        widened = [np.asarray(operand, exact) for operand in operands[: 2 + self.states]]
        after = self.updated(*widened, *operands[2 + self.states :])
        return tuple(np.asarray(a, b.dtype) for a, b in zip(after, before, strict=True))

    def updated(self, *operands: Array) -> Sequence[Array]:
        """Return the next parameter and states."""
        raise NotImplementedError


@register
class SGDUpdate(Update):
    """One step of stochastic gradient descent: p - ``learning_rate`` (g + ``weight_decay`` p)."""

    name = "sgd_update"
    notation = "..., ... -> ..."
    defaults: ClassVar = {"learning_rate": 0.01, "weight_decay": 0.0}
    linear = ((0, 1),)
    flops_per_point = 4.0
    states = 0
    examples = (
        Example(("f64[4, 6]", "f64[4, 6]"), {"weight_decay": 0.1}),
        Example((*("f64[4, 6]",) * 2, "f64[]", "i64[]"), {}, {2: (1, 9), 3: (0, 1)}),
    )

    def updated(self, *operands: Array) -> Sequence[Array]:
        """Step against the gradient."""
        p, g = operands
        rate, decay = (self.attributes[name] for name in ("learning_rate", "weight_decay"))
        return [p - rate * (g + decay * p if decay else g)]


@register
class MomentumUpdate(Update):
    """One step with momentum: m' = ``momentum`` m + g; p' = p - ``learning_rate`` m'.

    The step of Nesterov's kind is g + ``momentum`` m' in place of m'. ``weight_decay`` times the
    parameter is added to the gradient first.
    """

    name = "momentum_update"
    notation = "..., ..., ... -> ..., ..."
    defaults: ClassVar = {
        "learning_rate": 0.01,
        "momentum": 0.9,
        "nesterov": False,
        "weight_decay": 0.0,
    }
    linear = ((0, 1, 2),)
    flops_per_point = 8.0
    states = 1
    examples = (
        Example(("f64[4, 6]",) * 3),
        Example(("f64[4, 6]",) * 3, {"nesterov": True, "weight_decay": 0.1}),
    )

    def updated(self, *operands: Array) -> Sequence[Array]:
        """Step against the decaying sum of the gradients."""
        p, g, m = operands
        rate, momentum = (self.attributes[name] for name in ("learning_rate", "momentum"))
        if self.attributes["weight_decay"]:
            g = g + self.attributes["weight_decay"] * p
        m = momentum * m + g
        return p - rate * (g + momentum * m if self.attributes["nesterov"] else m), m


@register
class AdamUpdate(Update):
    """One step of Adam (Kingma and Ba, 2015); the last operand is the number of the step, from 1.

    ``weight_decay`` is subtracted from the parameter itself (Loshchilov and Hutter, 2019), not
    added to the gradient.
    """

    name = "adam_update"
    notation = "..., ..., ..., ..., -> ..., ..., ..."
    defaults: ClassVar = {
        "learning_rate": 0.001,
        "beta1": 0.9,
        "beta2": 0.999,
        "epsilon": 1e-8,
        "weight_decay": 0.0,
    }
    flops_per_point = 16.0
    states = 2
    counts_steps = True
    examples = (
        Example((*("f64[4, 6]",) * 4, "i64[]"), {"weight_decay": 0.1}, {3: (0, 1), 4: (1, 9)}),
        Example(
            (*("f64[4, 6]",) * 4, "i64[]", "f64[]", "i64[]"),
            {},
            {3: (0, 1), 4: (1, 9), 5: (1, 9), 6: (0, 1)},
        ),
    )

    def updated(self, *operands: Array) -> Sequence[Array]:
        """Divide the mean of the gradients by the root of the mean of their squares."""
        p, g, m, v, step = operands
        beta1, beta2 = (self.attributes[name] for name in ("beta1", "beta2"))
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * np.square(g)
        mean = m / (1 - beta1 ** int(step))
        root = np.sqrt(v / (1 - beta2 ** int(step)))
        change = mean / (root + self.attributes["epsilon"]) + self.attributes["weight_decay"] * p
        return p - self.attributes["learning_rate"] * change, m, v
