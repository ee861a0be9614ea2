"""Dynamic loss scale: a factor on the loss that follows what the gradients can hold.

Small gradients round to zero in float16, so the loss is scaled up. A step whose gradients overflow
is skipped, and the scale is divided by a factor; after some steps without overflow it is
multiplied by it.

References
----------
Micikevicius et al., "Mixed precision training", 2018; MindSpore's `DynamicLossScaleManager`.
"""

import re
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from shardwright.ir.attributes import Attributes
from shardwright.ir.errors import OptionError
from shardwright.ir.values import POSITIVE_INTEGER, Range, wrong_value
from shardwright.operators.info import Array, Example, OperatorInfo, register
from shardwright.operators.notation import summed
from shardwright.operators.rule import Rule, ShardView

LOSS_SCALE: Final = "optimizer.loss_scale"
GOOD_STEPS: Final = "optimizer.good_steps"
SCALES: Final = Range(above=0, below=2.0**128 - 2.0**103)
"""The numbers that a loss scale may be: those that are finite in float32."""
_FACTOR = Range(least=1.0)
_TEXT = re.compile(r"dynamic(?::([^:]+):([^:]+):([^:]+))?")


@dataclass(frozen=True)
class DynamicLossScale:
    """A loss scale that follows overflows.

    Parameters
    ----------
    initial : float
        The first scale.
    factor : float
        The factor by which the scale is divided after an overflow, and multiplied after `window`
        steps without one; 1 keeps the scale.
    window : int
        Number of steps.

    Raises
    ------
    OptionError
        If a value is not allowed.

    Examples
    --------
    >>> str(DynamicLossScale()), str(DynamicLossScale(1024.0, 2.0, 100))
    ('dynamic', 'dynamic:1024:2:100')
    """

    initial: float = 2.0**16
    factor: float = 2.0
    window: int = 2000

    def __post_init__(self) -> None:
        SCALES.check("initial", self.initial)
        _FACTOR.check("factor", self.factor)
        POSITIVE_INTEGER.check("window", self.window)

    def __str__(self) -> str:
        if self == DynamicLossScale():
            return "dynamic"
        return f"dynamic:{self.initial:.17g}:{self.factor:.17g}:{self.window}"

    @property
    def attributes(self) -> Attributes:
        """The attributes of the operator `loss_scale_update`."""
        return {"factor": self.factor, "window": self.window}


LossScale = float | DynamicLossScale


def loss_scale(value: object, name: str = "loss_scale") -> LossScale:
    """Return a loss scale from a number or its text.

    Raises
    ------
    OptionError
        If it is neither.

    Examples
    --------
    >>> loss_scale("dynamic"), loss_scale(1024)
    (DynamicLossScale(initial=65536.0, factor=2.0, window=2000), 1024.0)
    """
    if isinstance(value, DynamicLossScale):
        return value
    if isinstance(value, str):
        return _parsed(value, name)
    SCALES.check(name, value)
    return float(value)  # type: ignore[arg-type]


def loss_scale_literal(scale: LossScale) -> float | str:
    """Return a loss scale as a number or its text."""
    return str(scale) if isinstance(scale, DynamicLossScale) else scale


def _parsed(text: str, name: str) -> DynamicLossScale:
    match = _TEXT.fullmatch(text)
    hint = "write `dynamic`, or `dynamic:INITIAL:FACTOR:WINDOW`"
    expected = "a positive number or `dynamic`"
    if match is None:
        raise wrong_value(name, text, expected, hint)
    if match[1] is None:
        return DynamicLossScale()
    try:
        return DynamicLossScale(float(match[1]), float(match[2]), int(match[3]))
    except ValueError:
        raise wrong_value(name, text, expected, hint) from None
    except OptionError as error:
        raise OptionError(f"`{name}` is `{text}`: {error.what}", error.where, hint) from None


@register
class CountNonfinite(OperatorInfo):
    """The number of elements that are infinite or NaN."""

    name = "count_nonfinite"
    result_dtype = "int64"
    examples = (Example(("f64[4, 6]",)), Example(("f64[]",)))

    def make_rule(self) -> Rule:
        """Sum over all dimensions."""
        return summed(self.operand_types[0].shape)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Count."""
        return np.asarray(np.count_nonzero(~np.isfinite(operands[0])), np.int64)


@register
class LossScaleUpdate(OperatorInfo):
    """The next loss scale, the next number of good steps, and whether the step is applied.

    The operands are the scale, the number of steps since it changed, and the number of elements of
    gradients that are not finite. Where there are some, the scale is divided by ``factor``, but not
    below 1; after ``window`` steps without any it is multiplied, unless the product overflows.
    """

    name = "loss_scale_update"
    notation = ", , -> , , "
    defaults: ClassVar = {"factor": 2.0, "window": 2000}
    examples = (
        Example(("f64[]", "i64[]", "i64[]"), {"window": 3}, {0: (1, 9), 1: (0, 4), 2: (0, 2)}),
    )

    def make_dtypes(self) -> tuple[str, ...]:
        """Return the types of the states, and of the number of the step."""
        return (self.operand_types[0].dtype, "int64", "int64")

    def kernel(self, view: ShardView, *operands: Array) -> tuple[Array, ...]:
        """Divide, multiply or keep the scale."""
        scale, good, count = (operand.item() for operand in operands)
        factor, window = self.attributes["factor"], self.attributes["window"]
        if count > 0:
            scale, good = max(scale / factor, min(scale, 1.0)), 0
        elif good + 1 >= window:
            scale, good = (scale * factor if scale * factor in SCALES else scale), 0
        else:
            good += 1
        applied = np.asarray(not count > 0, np.int64)
        return np.asarray(scale, operands[0].dtype), np.asarray(good, np.int64), applied
