"""Lists of learning rates: the rate of each of ``total_step`` steps, which changes every epoch."""

import math
from collections.abc import Callable, Sequence

from shardwright.ir.errors import OptionError
from shardwright.ir.values import NOT_NEGATIVE, POSITIVE, POSITIVE_INTEGER, check_flag, wrong_value


def piecewise_constant_lr(milestone: Sequence[int], learning_rates: Sequence[float]) -> list[float]:
    """Return rates that stay until each milestone.

    Parameters
    ----------
    milestone : sequence of int
        The rising numbers of the first step after each piece.
    learning_rates : sequence of float
        The rate of each piece.

    Raises
    ------
    OptionError
        If the lengths differ, or the milestones do not rise.

    Examples
    --------
    >>> piecewise_constant_lr([2, 5], [0.1, 0.05])
    [0.1, 0.1, 0.05, 0.05, 0.05]
    """
    for name, value in (("milestone", milestone), ("learning_rates", learning_rates)):
        if not isinstance(value, list | tuple):
            raise wrong_value(name, value, "a list")
    if len(milestone) != len(learning_rates):
        raise OptionError(
            f"there are {len(milestone)} milestones and {len(learning_rates)} learning rates, "
            f"expected as many"
        )
    rates: list[float] = []
    for end, rate in zip(milestone, learning_rates, strict=True):
        POSITIVE_INTEGER.check("milestone", end)
        NOT_NEGATIVE.check("learning_rates", rate)
        if end < len(rates):
            raise OptionError(f"the milestones are {milestone}, expected rising numbers")
        rates += [float(rate)] * (end - len(rates))
    return rates


def exponential_decay_lr(
    learning_rate: float,
    decay_rate: float,
    total_step: int,
    step_per_epoch: int,
    decay_epoch: int,
    is_stair: bool = False,
) -> list[float]:
    """Return ``learning_rate`` times ``decay_rate`` to the power of epoch / ``decay_epoch``.

    Examples
    --------
    >>> exponential_decay_lr(1.0, 0.5, 4, 2, 1)
    [1.0, 1.0, 0.5, 0.5]
    """
    _check_decay(learning_rate, decay_rate, decay_epoch, is_stair)
    rounded = math.floor if is_stair else float
    return _by_epoch(
        lambda epoch: learning_rate * decay_rate ** rounded(epoch / decay_epoch),
        total_step,
        step_per_epoch,
    )


def natural_exp_decay_lr(
    learning_rate: float,
    decay_rate: float,
    total_step: int,
    step_per_epoch: int,
    decay_epoch: int,
    is_stair: bool = False,
) -> list[float]:
    """Return ``learning_rate`` times e to the power of -``decay_rate`` times the epoch.

    With ``is_stair``, the epoch is rounded down to a multiple of ``decay_epoch``.
    """
    _check_decay(learning_rate, decay_rate, decay_epoch, is_stair)
    stair = decay_epoch if is_stair else 1
    return _by_epoch(
        lambda epoch: learning_rate * math.exp(-decay_rate * (epoch // stair * stair)),
        total_step,
        step_per_epoch,
    )


def inverse_decay_lr(
    learning_rate: float,
    decay_rate: float,
    total_step: int,
    step_per_epoch: int,
    decay_epoch: int,
    is_stair: bool = False,
) -> list[float]:
    """Return ``learning_rate`` divided by 1 + ``decay_rate`` times epoch / ``decay_epoch``."""
    _check_decay(learning_rate, decay_rate, decay_epoch, is_stair)
    rounded = math.floor if is_stair else float
    return _by_epoch(
        lambda epoch: learning_rate / (1 + decay_rate * rounded(epoch / decay_epoch)),
        total_step,
        step_per_epoch,
    )


def cosine_decay_lr(
    min_lr: float, max_lr: float, total_step: int, step_per_epoch: int, decay_epoch: int
) -> list[float]:
    """Return rates on a cosine from ``max_lr`` down to ``min_lr`` after ``decay_epoch`` epochs."""
    check_limits(min_lr, max_lr)
    POSITIVE_INTEGER.check("decay_epoch", decay_epoch)

    def rate(epoch: int) -> float:
        passed = min(epoch, decay_epoch)
        return min_lr + 0.5 * (max_lr - min_lr) * (1 + math.cos(math.pi * passed / decay_epoch))

    return _by_epoch(rate, total_step, step_per_epoch)


def polynomial_decay_lr(
    learning_rate: float,
    end_learning_rate: float,
    total_step: int,
    step_per_epoch: int,
    decay_epoch: int,
    power: float,
    update_decay_epoch: bool = False,
) -> list[float]:
    """Return rates from ``learning_rate`` to ``end_learning_rate`` along a polynomial.

    The share of the way that is left is (1 - epoch / ``decay_epoch``) ** ``power``. With
    ``update_decay_epoch``, ``decay_epoch`` grows by itself before the epoch exceeds it; else the
    rate stays.
    """
    POSITIVE.check("learning_rate", learning_rate)
    NOT_NEGATIVE.check("end_learning_rate", end_learning_rate)
    POSITIVE_INTEGER.check("decay_epoch", decay_epoch)
    POSITIVE.check("power", power)
    check_flag("update_decay_epoch", update_decay_epoch)

    def rate(epoch: int) -> float:
        length = decay_epoch
        if update_decay_epoch:
            length *= max(math.ceil(epoch / decay_epoch), 1)
        left = 1 - min(epoch, length) / length
        return (learning_rate - end_learning_rate) * left**power + end_learning_rate

    return _by_epoch(rate, total_step, step_per_epoch)


def warmup_lr(
    learning_rate: float, total_step: int, step_per_epoch: int, warmup_epoch: int
) -> list[float]:
    """Return rates that rise from 0 to ``learning_rate`` in ``warmup_epoch`` epochs."""
    NOT_NEGATIVE.check("learning_rate", learning_rate)
    POSITIVE_INTEGER.check("warmup_epoch", warmup_epoch)
    return _by_epoch(
        lambda epoch: learning_rate * min(epoch, warmup_epoch) / warmup_epoch,
        total_step,
        step_per_epoch,
    )


def check_limits(min_lr: float, max_lr: float) -> None:
    """Refuse limits of a rate of which the first is not less.

    Raises
    ------
    OptionError
        If it is not, or one is out of range.
    """
    NOT_NEGATIVE.check("min_lr", min_lr)
    POSITIVE.check("max_lr", max_lr)
    if min_lr >= max_lr:
        raise OptionError(f"`min_lr` is {min_lr}, expected less than `max_lr`, {max_lr}")


def _check_decay(learning_rate: float, decay_rate: float, length: int, is_stair: bool) -> None:
    POSITIVE.check("learning_rate", learning_rate)
    POSITIVE.check("decay_rate", decay_rate)
    POSITIVE_INTEGER.check("decay_epoch", length)
    check_flag("is_stair", is_stair)


def _by_epoch(rate: Callable[[int], float], total_step: int, step_per_epoch: int) -> list[float]:
    """Return the rate of each step, by the number of its epoch."""
    POSITIVE_INTEGER.check("total_step", total_step)
    POSITIVE_INTEGER.check("step_per_epoch", step_per_epoch)
    return [float(rate(step // step_per_epoch)) for step in range(total_step)]
