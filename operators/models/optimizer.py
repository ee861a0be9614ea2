"""Updates of parameters: the parameter and its states, from the gradient and the states before.

All are elementwise, in any layout that parameter, gradient and states share. The rules themselves
are in `shardwright.operators.models.updates`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Final, Literal, cast

import numpy as np

from shardwright.ir.attributes import Attribute
from shardwright.ir.errors import IRError
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import TensorType
from shardwright.ir.values import (
    NOT_NEGATIVE,
    POSITIVE,
    POSITIVE_INTEGER,
    SHARE,
    Range,
    check_choice,
    check_flag,
    check_names,
    wrong_value,
)
from shardwright.operators.info import Array, OperatorInfo, operator_class
from shardwright.operators.models.schedule import check_rate, is_schedule
from shardwright.operators.notation import resolve
from shardwright.operators.rule import Rule, ShardView

Kind = Literal[
    "sgd",
    "momentum",
    "adam",
    "adam8bit",
    "muon",
    "ftrl",
    "adagrad",
    "rmsprop",
    "lamb",
    "lars",
    "amsgrad",
    "dampened",
    "centered",
    "gradient",
]
STATES: Final[Mapping[str, Mapping[str, str | None]]] = {
    "sgd": {},
    "momentum": {"momentum": None},
    "adam": {"m": None, "v": None},
    "adam8bit": {"m": None, "m_scale": None, "v": None, "v_scale": None},
    "muon": {"momentum": None},
    "ftrl": {"accumulator": "initial_accumulator", "linear": None},
    "adagrad": {"accumulator": "initial_accumulator"},
    "rmsprop": {"mean_square": "initial_square", "momentum": None},
    "lamb": {"m": None, "v": None},
    "lars": {"momentum": None},
    "amsgrad": {"m": None, "v": None, "v_max": None},
    "dampened": {"momentum": None},
    "centered": {"mean_square": "initial_square", "momentum": None, "mean": None},
    "gradient": {"gradient": None},
}
"""The states of each rule, with the setting that they begin with; None: with zeros."""
STEP = "optimizer.step"
RATE = "optimizer.learning_rate"
RULE = "optimizer"
"""The override of a parameter that another rule updates than the optimizer's."""
CLIP_NORM = "clip_norm"
"""The setting of any rule that bounds the norm of all gradients together."""
OF_OTHERS = "adamw_"
"""Begins the settings of `muon` that are of the parameters that AdamW updates."""
BIAS_CORRECTIONS: Final = ("moments", "rate", "none")
ADJUSTMENTS: Final = ("original", "match_rms_adamw", "spectral_unclamped", "none")
PRODUCT_TYPES: Final = ("bfloat16", "float32", "float64")
_MUON: Final[Mapping[str, Attribute]] = {
    "learning_rate": 0.001,
    "weight_decay": 0.1,
    "momentum": 0.95,
    "nesterov": True,
    "coefficients": (3.4445, -4.775, 2.0315),
    "epsilon": 1e-7,
    "iterations": 5,
    "adjustment": ADJUSTMENTS[0],
    "product_type": PRODUCT_TYPES[0],
}
DECAY_OF_ADAMW = 0.01
"""That of `torch.optim.AdamW`."""
_RANGES = {
    "beta1": SHARE,
    "beta2": SHARE,
    "dampening": SHARE,
    "decay": SHARE,
    "epsilon": POSITIVE,
    "iterations": POSITIVE_INTEGER,
}
_FLAGS = ("nesterov", "lazy", "clip", "adapts")
_CHOICES = {
    "bias_correction": BIAS_CORRECTIONS,
    "adjustment": ADJUSTMENTS,
    "product_type": PRODUCT_TYPES,
}


@dataclass(frozen=True)
class Optimizer:
    """The rule that updates parameters from their gradients.

    Parameters
    ----------
    kind : str
        One of `STATES`.
    settings : mapping
        Numbers of the rule; see `default_settings`. The ``learning_rate`` may be a schedule: a
        formula over ``step``, the number of steps before, or a tuple with the rate of each step.
        Any rule has ``clip_norm``: gradients whose norm, of all together, is greater are scaled
        down to it first.
        Settings of ``muon`` that begin with ``adamw_`` are of the parameters that AdamW updates.
    overrides : mapping of str to mapping
        Settings that differ for single parameters, by name. ``optimizer`` among them is the rule
        that updates the parameter: ``adam`` in place of ``muon`` or ``adam8bit``.

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
        if CLIP_NORM in self.settings:
            POSITIVE.check(CLIP_NORM, self.settings[CLIP_NORM])
        check_settings(self.kind, self.rule_settings)
        for own in self.overrides.values():
            check_overrides(self.kind, own)

    @property
    def rule_settings(self) -> dict[str, Attribute]:
        """The settings of the rule itself: all but ``clip_norm``, which every rule has."""
        return {name: value for name, value in self.settings.items() if name != CLIP_NORM}

    @property
    def clip_norm(self) -> float | None:
        """The greatest norm of all gradients together; None where they are not clipped."""
        return cast(float | None, self.settings.get(CLIP_NORM))

    @property
    def kinds(self) -> tuple[str, ...]:
        """The rules that update some parameter, or could."""
        return kinds_of(self.kind)

    @property
    def title(self) -> str:
        """The name by which people know the rule: `adamw` for Adam with decoupled decay."""
        decays = self.kind in ("adam", "adam8bit") and self.settings.get("weight_decay")
        return self.kind.replace("adam", "adamw") if decays else self.kind

    @property
    def title_of_others(self) -> str:
        """The name of the rule of parameters that its own does not update."""
        return "adamw" if self.kind == "muon" or self.settings.get("weight_decay") else "adam"

    def kind_of(self, parameter: str) -> str:
        """Return the rule that updates a parameter."""
        return str(self.overrides.get(parameter, {}).get(RULE, self.kind))

    def states_of(self, parameter: str) -> tuple[str, ...]:
        """Return the names of the states of a parameter."""
        return tuple(STATES[self.kind_of(parameter)])

    def reads_step(self, parameter: str) -> bool:
        """Return whether the update of a parameter reads the number of the step."""
        return counts_steps(self.kind_of(parameter))

    @property
    def is_scheduled(self) -> bool:
        """Whether a learning rate follows the number of the step; then all are operands."""
        every = (self.settings, *self.overrides.values())
        rates = ("learning_rate", f"{OF_OTHERS}learning_rate")
        return any(is_schedule(settings.get(rate)) for settings in every for rate in rates)

    @property
    def counts_steps(self) -> bool:
        """Whether the number of the step is a state of the program."""
        return any(map(counts_steps, self.kinds)) or self.is_scheduled

    def settings_of(self, parameter: str) -> dict[str, Attribute]:
        """Return the settings of the update of one parameter."""
        own = dict(self.overrides.get(parameter, {}))
        return {**_common(self, str(own.pop(RULE, self.kind))), **own}

    def setting(self, parameter: str, name: str) -> Attribute:
        """Return one setting of the update of a parameter, or its default."""
        known = self.settings_of(parameter)
        return known[name] if name in known else default_settings(self.kind_of(parameter))[name]

    def attributes_of(self, parameter: str) -> dict[str, Attribute]:
        """Return the attributes of the update of one parameter: without a rate that it reads."""
        settings = self.settings_of(parameter)
        if self.is_scheduled:
            settings.pop("learning_rate", None)
        return settings

    def priced_by(self, parameter: str) -> tuple[Attribute, ...]:
        """Return what the cost and the memory of the update of a parameter depend on."""
        kind = self.kind_of(parameter)
        names = ("product_type", "iterations") if kind == "muon" else ()
        return (kind, *(self.setting(parameter, name) for name in names))

    def rate_of(self, parameter: str) -> Attribute:
        """Return the learning rate of one parameter: a number or a schedule."""
        return self.setting(parameter, "learning_rate")

    def initializer_of(self, parameter: str, state: str) -> str:
        """Return the initializer of a state of one parameter."""
        setting = STATES[self.kind_of(parameter)][state]
        if setting is None:
            return "zeros"
        return f"constant({float(self.setting(parameter, setting)):.17g})"  # type: ignore[arg-type]


FALLBACKS: Final[Mapping[str, tuple[str, ...]]] = {"muon": ("adam",), "adam8bit": ("adam",)}
"""The rules of parameters that a rule cannot update: vectors, and what is too small."""


def _common(optimizer: Optimizer, kind: str) -> dict[str, Attribute]:
    """Return the settings that all parameters of one rule of an optimizer share."""
    settings = optimizer.rule_settings
    if optimizer.kind != "muon":
        return settings
    if kind == "muon":
        return {name: value for name, value in settings.items() if not name.startswith(OF_OTHERS)}
    shared = {"learning_rate": settings["learning_rate"]} if "learning_rate" in settings else {}
    others = {
        name.removeprefix(OF_OTHERS): value
        for name, value in settings.items()
        if name.startswith(OF_OTHERS)
    }
    return {**shared, "weight_decay": DECAY_OF_ADAMW, **others}


def kinds_of(kind: str) -> tuple[str, ...]:
    """Return a rule, and those of parameters that it cannot update."""
    return (kind, *FALLBACKS.get(kind, ()))


def check_overrides(kind: str, own: Mapping[str, Attribute]) -> None:
    """Refuse what cannot be the settings of single parameters; see `check_settings`.

    Raises
    ------
    OptionError
        If there is such a setting, or the rule of the parameter is no rule of the optimizer.
    """
    chosen = own.get(RULE, kind)
    if chosen not in kinds_of(kind):
        allowed = " or ".join(f"`{one}`" for one in kinds_of(kind))
        raise wrong_value(RULE, chosen, allowed, of="of a parameter")
    check_settings(str(chosen), {name: own[name] for name in own if name != RULE})


def counts_steps(kind: str) -> bool:
    """Return whether updates by a rule read the number of the step."""
    return operator_class(f"{kind}_update").counts_steps  # type: ignore[attr-defined]


def default_settings(kind: str) -> Mapping[str, Attribute]:
    """Return the settings of a rule with their default values."""
    if kind == "muon":
        return _MUON
    return operator_class(f"{kind}_update").defaults


def check_settings(kind: str, settings: Mapping[str, Attribute]) -> None:
    """Refuse settings that the update of an optimizer does not have, and values out of range.

    Raises
    ------
    OptionError
        If there is one.
    """
    if kind == "muon":
        others = [name for name in settings if name.startswith(OF_OTHERS)]
        check_settings("adam", {name.removeprefix(OF_OTHERS): settings[name] for name in others})
        settings = {name: value for name, value in settings.items() if name not in others}
    known = [name for name in default_settings(kind) if name != "block"]
    check_names(f"`{kind}` has no setting", settings, known)
    for name, value in settings.items():
        if name in _FLAGS:
            check_flag(name, value)
        elif name in _CHOICES:
            check_choice(name, value, _CHOICES[name])
        elif name == "coefficients":
            _check_coefficients(value)
        elif name == "learning_rate":
            check_rate(name, value)
            if kind == "ftrl" and not is_schedule(value):
                POSITIVE.check(name, value)
        else:
            _RANGES.get(name, NOT_NEGATIVE).check(name, value)


def _check_coefficients(value: Attribute) -> None:
    """Refuse what is not the three coefficients of an odd polynomial of degree five."""
    if not isinstance(value, tuple) or len(value) != 3 or any(v not in Range() for v in value):
        raise wrong_value("coefficients", value, "three numbers, those of x, x^3 and x^5")


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
    others : int
        Number of tensors after the states that are none: the direction of a step.
    counts_steps : bool
        Whether the number of the step is an operand.
    by_rows : bool
        Whether rows can be updated alone, by their gradients and states.
    """

    states: ClassVar[int]
    others: ClassVar[int] = 0
    counts_steps: ClassVar[bool] = False
    by_rows: ClassVar[bool] = True

    @classmethod
    def state_types(cls, parameter: TensorType) -> tuple[TensorType, ...]:
        """Return the types of the states of a parameter."""
        return (state_type(parameter),) * cls.states

    @classmethod
    def fitted(cls, layout: Layout, parameter: TensorType, mesh: Mesh) -> Layout:
        """Return the layout in which a parameter stored in a layout is updated, and has states."""
        return layout

    @property
    def tensors(self) -> int:
        """Number of operands that are no scalars: parameter, gradient, states and others."""
        return 2 + self.states + self.others

    @property
    def _scalars(self) -> int:
        """Number of operands after the tensors and the number of the step."""
        return len(self.operand_types) - self.tensors - self.counts_steps

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
        self.check_shapes(shapes[: self.tensors])
        if self.reads_rate and "learning_rate" in self.stated:
            raise IRError("the learning rate is both an operand and an attribute")
        left, _, right = self.make_notation().partition("->")
        scalars = self._scalars if 0 < self._scalars <= 3 else 0
        return resolve(f"{left}{', ' * scalars} -> {right}", shapes, self.make_sizes())

    def check_shapes(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Refuse shapes that do not fit each other.

        Raises
        ------
        IRError
            If they do not.
        """
        if len(set(shapes)) > 1:
            raise IRError(f"parameter, gradient and states have the shapes {shapes}, one expected")

    def make_notation(self) -> str:
        """Return the notation for these operands, without scalars after the step."""
        return self.notation

    def make_sizes(self) -> dict[str, int]:
        """Return sizes of factors that the operands do not determine."""
        return {}

    def make_dtypes(self) -> tuple[str, ...]:
        """Return the types of the parameter and the states."""
        types = [operand.dtype for operand in self.operand_types]
        return (types[0], *types[2 : 2 + self.states])

    def kernel(self, view: ShardView, *operands: Array) -> tuple[Array, ...]:
        """Update in the type of the states, and round to the types of parameter and states."""
        count = self.tensors
        tensors, scalars = list(operands[:count]), list(operands[count:])
        before = (tensors[0], *tensors[2 : 2 + self.states])
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
        tensors = {operand.dtype for operand in self.operand_types[: self.tensors]}
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
