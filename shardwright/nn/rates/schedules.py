"""Schedules: learning rates as functions of the number of the step."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from shardwright.ir.attributes import Attribute
from shardwright.ir.errors import ModelError
from shardwright.ir.values import NOT_NEGATIVE, POSITIVE, POSITIVE_INTEGER, check_flag, wrong_value
from shardwright.nn.cell import Cell
from shardwright.nn.rates.formulas import formula_of
from shardwright.nn.rates.lists import check_limits
from shardwright.operators.models.schedule import rate_at
from shardwright.tensor import Tensor, apply
from shardwright.tracer import is_tracing


class LearningRateSchedule(Cell):
    """The base of schedules.

    A subclass defines ``construct(global_step)``, which returns the rate from the number of the
    steps before, by arithmetic on scalars.
    """

    @property
    def formula(self) -> str:
        """The rate as a formula over ``step``.

        Raises
        ------
        ModelError
            If `construct` uses an operator that formulas lack.
        """
        return formula_of(self)

    def __call__(self, global_step: Any) -> Any:
        """Return the rate of a step; outside of a trace its value, in float32."""
        if is_tracing():
            return super().__call__(global_step)
        step = global_step.asnumpy() if isinstance(global_step, Tensor) else global_step
        return Tensor(np.float32(rate_at(self.formula, np.asarray(step).item())))

    def construct(self, global_step: Tensor) -> Tensor:
        """Return the rate of a step."""
        raise ModelError(
            f"the schedule `{type(self).__name__}` has no method `construct`",
            hint="define `construct(self, global_step)`, which returns the rate",
        )


class _Formula(LearningRateSchedule):
    """A schedule that is given by its formula."""

    def __init__(self, formula: str) -> None:
        self._formula = formula

    def construct(self, global_step: Tensor) -> Tensor:
        """Return the rate of a step, in float32."""
        step = global_step.reshape(()) if global_step.ndim else global_step
        return apply("learning_rate", step, rate=self._formula).astype("float32")


class _Decay(_Formula):
    """A schedule with a first rate, a rate of decay and a number of steps."""

    def __init__(
        self, learning_rate: float, decay_rate: float, decay_steps: int, is_stair: bool = False
    ) -> None:
        POSITIVE.check("learning_rate", learning_rate)
        POSITIVE.check("decay_rate", decay_rate)
        POSITIVE_INTEGER.check("decay_steps", decay_steps)
        check_flag("is_stair", is_stair)
        super().__init__(self._written(learning_rate, decay_rate, decay_steps, is_stair))

    @staticmethod
    def _written(first: float, decay: float, length: int, is_stair: bool) -> str:
        """Return the formula."""
        raise NotImplementedError


class ExponentialDecayLR(_Decay):
    """``learning_rate`` times ``decay_rate`` to the power of step / ``decay_steps``.

    Parameters
    ----------
    learning_rate, decay_rate : float
        The first rate, and its factor in ``decay_steps`` steps.
    decay_steps : int
        Number of steps.
    is_stair : bool
        Whether the power is rounded down.

    Examples
    --------
    >>> ExponentialDecayLR(0.1, 0.9, 4, is_stair=True).formula
    '0.1 * 0.9 ** floor(step / 4)'
    """

    @staticmethod
    def _written(first: float, decay: float, length: int, is_stair: bool) -> str:
        passed = f"floor(step / {length})" if is_stair else f"(step / {length})"
        return f"{first} * {decay} ** {passed}"


class NaturalExpDecayLR(_Decay):
    """``learning_rate`` times e to the power of -``decay_rate`` times the step.

    With ``is_stair``, the step is rounded down to a multiple of ``decay_steps``; else
    ``decay_steps`` has no effect, as in MindSpore.
    """

    @staticmethod
    def _written(first: float, decay: float, length: int, is_stair: bool) -> str:
        passed = f"floor(step / {length}) * {length}" if is_stair else "step"
        return f"{first} * exp(-{decay} * {passed})"


class InverseDecayLR(_Decay):
    """``learning_rate`` divided by 1 + ``decay_rate`` times step / ``decay_steps``."""

    @staticmethod
    def _written(first: float, decay: float, length: int, is_stair: bool) -> str:
        passed = f"floor(step / {length})" if is_stair else f"step / {length}"
        return f"{first} / (1 + {decay} * {passed})"


class CosineDecayLR(_Formula):
    """A cosine from ``max_lr`` down to ``min_lr`` after ``decay_steps`` steps."""

    def __init__(self, min_lr: float, max_lr: float, decay_steps: int) -> None:
        check_limits(min_lr, max_lr)
        POSITIVE_INTEGER.check("decay_steps", decay_steps)
        half = 0.5 * (max_lr - min_lr)
        passed = f"min(step, {decay_steps}) / {decay_steps}"
        super().__init__(f"{min_lr} + {half} * (1 + cos({math.pi} * {passed}))")


class PolynomialDecayLR(_Formula):
    """A polynomial from ``learning_rate`` to ``end_learning_rate``.

    Parameters
    ----------
    learning_rate, end_learning_rate : float
        The first and the last rate.
    decay_steps : int
        Number of steps between them.
    power : float
        The share of the way that is left is (1 - step / ``decay_steps``) ** ``power``.
    update_decay_steps : bool
        Whether ``decay_steps`` grows by itself before the step exceeds it; else the rate stays.
    """

    def __init__(
        self,
        learning_rate: float,
        end_learning_rate: float,
        decay_steps: int,
        power: float,
        update_decay_steps: bool = False,
    ) -> None:
        POSITIVE.check("learning_rate", learning_rate)
        NOT_NEGATIVE.check("end_learning_rate", end_learning_rate)
        POSITIVE_INTEGER.check("decay_steps", decay_steps)
        POSITIVE.check("power", power)
        check_flag("update_decay_steps", update_decay_steps)
        length, passed = f"{decay_steps}", f"min(step, {decay_steps})"
        if update_decay_steps:
            length, passed = f"({decay_steps} * max(ceil(step / {decay_steps}), 1))", "step"
        way = learning_rate - end_learning_rate
        super().__init__(f"{way} * (1 - {passed} / {length}) ** {power} + {end_learning_rate}")


class WarmUpLR(_Formula):
    """A rise from 0 to ``learning_rate`` in ``warmup_steps`` steps, and that rate after them."""

    def __init__(self, learning_rate: float, warmup_steps: int) -> None:
        NOT_NEGATIVE.check("learning_rate", learning_rate)
        POSITIVE_INTEGER.check("warmup_steps", warmup_steps)
        super().__init__(f"{learning_rate} * min(step, {warmup_steps}) / {warmup_steps}")


def as_rate(rate: object) -> Attribute:
    """Return a learning rate as a setting of an optimizer: a number, a formula or a tuple.

    Parameters
    ----------
    rate : float, str, LearningRateSchedule, Tensor or iterable of float
        A rate; a formula over ``step``, the steps before; a schedule; or the rate of each step, the
        last of which stays.

    Raises
    ------
    OptionError
        If it is something else.
    """
    if isinstance(rate, LearningRateSchedule):
        return rate.formula
    if isinstance(rate, str | int | float) or rate is None:
        return rate
    if isinstance(rate, Cell):
        raise wrong_value("learning_rate", rate, "a number, a list or a `LearningRateSchedule`")
    array = rate.asnumpy() if isinstance(rate, Tensor) else rate
    if not isinstance(array, np.ndarray | np.generic):
        array = np.asarray(list(array) if isinstance(array, Iterable) else array)
    if array.dtype.kind not in "fiu" or array.ndim > 1:
        raise wrong_value("learning_rate", rate, "a number, a list or a `LearningRateSchedule`")
    numbers: Any = array.tolist()
    return tuple(map(float, numbers)) if array.ndim else float(numbers)
