"""The length and the price of a training: options, what is told of them, and their keys."""

import argparse
from dataclasses import dataclass
from math import isfinite
from typing import Any

from shardwright.compiler.fit.training_time import (
    STORED_PER_SECOND,
    Failures,
    Training,
    training,
)
from shardwright.ir.errors import OptionError
from shardwright.ir.graph import Graph
from shardwright.ir.units import seconds_text
from shardwright.ir.values import POSITIVE, check_names, number_in, wrong_value
from shardwright.tools.console.arguments import UsageError, add_number

_FIGURES = {
    "mtbf": "device_hours",
    "checkpoint": "checkpoint_seconds",
    "restart": "restart_seconds",
}
_NONE = "none"
_FLAG = "--failures"


def add_training(parser: argparse.ArgumentParser) -> None:
    """Add the options about the length of a training."""
    group = parser.add_argument_group("days and money")
    add_number(group, "--tokens", POSITIVE, "tokens to train on: `1e12`", "T")
    add_number(group, "--price-per-hour", POSITIVE, "price of a device in use for an hour", "P")
    group.add_argument(
        _FLAG,
        type=_figures,
        metavar="FIGURES",
        help="what failures cost: `mtbf=50677,checkpoint=60,restart=600`, hours between failures "
        "of one device, seconds of a checkpoint and of a restart; `none` leaves them out (default: "
        "those of Llama 3 and MegaScale)",
    )


def _figures(text: str) -> dict[str, float] | str:
    """Return the figures of the option, by the fields of `Failures`, or `none`."""
    if text == _NONE:
        return text
    found: dict[str, float] = {}
    for item in text.split(","):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals:
            raise wrong_value(_FLAG, text, "`none`, or `mtbf=50677,checkpoint=60,restart=600`")
        check_names(f"`{_FLAG}` has no figure", [key], list(_FIGURES))
        if _FIGURES[key] in found:
            raise OptionError(f"`{_FLAG}` gives `{key}` twice", hint="give it once")
        number = number_in(value)
        POSITIVE.check(f"{key}", number, of=f"of `{_FLAG}`")
        found[_FIGURES[key]] = float(number)
    return found


@dataclass(frozen=True)
class Asked:
    """What is asked about the length of a training.

    Parameters
    ----------
    tokens : float or None
        Tokens to train on.
    price : float or None
        Of a device for an hour.
    failures : mapping of str to float, or None
        Figures of failures that are given; None where failures are left out.
    """

    tokens: float | None = None
    price: float | None = None
    failures: dict[str, float] | None = None

    @staticmethod
    def of(arguments: argparse.Namespace) -> "Asked":
        """Return what the command line asks.

        Raises
        ------
        UsageError
            If there is a price, or a figure of failures, but no tokens.
        """
        for flag in ("--price-per-hour", _FLAG):
            value = getattr(arguments, flag.removeprefix("--").replace("-", "_"))
            if value is not None and arguments.tokens is None:
                raise UsageError(
                    f"`{flag}` has no effect without the tokens to train on",
                    hint="add `--tokens 1e12`",
                )
        failures = None if arguments.failures == _NONE else arguments.failures or {}
        return Asked(arguments.tokens, arguments.price_per_hour, failures)

    def check(self, name: str, tokens: int | None) -> None:
        """Refuse tokens for a model that reads none.

        Raises
        ------
        UsageError
            If it does not.
        """
        if self.tokens is not None and tokens is None:
            raise UsageError(
                f"`--tokens` counts tokens, and `{name}` reads no sequences of tokens",
                hint="leave it out",
            )

    def of_step(self, seconds: float, tokens: int | None, devices: int) -> Training | None:
        """Return how long a training takes without failures; None where it is not asked."""
        if self.tokens is None or tokens is None:
            return None
        return training(seconds, tokens, self.tokens, devices, self.price)

    def failures_on(self, devices: int, stored_bytes: float) -> Failures | None:
        """Return what failures cost; None where they are left out.

        Parameters
        ----------
        devices : int
            Number of devices.
        stored_bytes : float
            Bytes of a checkpoint.
        """
        if self.failures is None:
            return None
        figures = {"checkpoint_seconds": stored_bytes / (devices * STORED_PER_SECOND)}
        return Failures(devices, **{**figures, **self.failures})


def checkpoint_bytes(program: Graph) -> float:
    """Return the bytes of a checkpoint: parameters and states, each once."""
    return sum(program.value(item.name).type.nbytes for item in program.parameters)


def training_sentence(asked: Asked, found: Training, failures: Failures | None) -> str:
    """Return how long a training takes, what it costs, and what failures add."""
    text = f"{_count(asked.tokens or 0.0)} tokens: {_length(found)}"
    if failures is None:
        return f"{text}, without failures"
    given = asked.failures or {}
    slowed = found.slowed(failures.slowdown)
    longer = f"{failures.slowdown - 1:.1%} more with failures: {_length(slowed)}"
    if not isfinite(failures.slowdown):
        longer = "with failures it would not end"
    of_device = f"one of a device in {failures.device_hours:,.0f} h"
    if "device_hours" not in given:
        of_device += ", as of Llama 3's 16,384 H100"
    written = "as given" if "checkpoint_seconds" in given else "at 2 TB/s for 16,384"
    return (
        f"{text}, {longer}; one in {time_text(failures.apart_seconds)} ({of_device}), "
        "a checkpoint of "
        f"{seconds_text(failures.checkpoint_seconds)} ({written}) every "
        f"{time_text(failures.interval_seconds)} of work, restarts of "
        f"{time_text(failures.restart_seconds)}"
    )


def _count(number: float) -> str:
    """Return a number of tokens with a word for its size."""
    for word, factor in ((" trillion", 1e12), (" billion", 1e9), (" million", 1e6)):
        if number >= factor:
            return f"{number / factor:g}{word}"
    return f"{number:,g}"


def _length(found: Training) -> str:
    money = "" if found.money is None else f" and {found.money:,.0f} in money"
    return f"{found.days:,.3g} days{money}"


def time_text(seconds: float) -> str:
    """Return a time in seconds, minutes, hours or days.

    Examples
    --------
    >>> time_text(45), time_text(600), time_text(7200), time_text(86400 * 33)
    ('45 s', '10 min', '2 h', '33 days')
    """
    for unit, factor, most in (("s", 1.0, 120), ("min", 60.0, 7200), ("h", 3600.0, 172_800)):
        if seconds < most:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds / 86400:,.3g} days"


def training_document(found: Training | None, failures: Failures | None) -> dict[str, Any]:
    """Return the keys about a training: none where it is not asked."""
    if found is None:
        return {}
    document: dict[str, Any] = {"days": found.days, "money": found.money, "failures": None}
    if failures is not None:
        slowed = found.slowed(failures.slowdown)
        document["failures"] = {
            "days": slowed.days,
            "money": slowed.money,
            "apart_seconds": failures.apart_seconds,
            "device_hours": failures.device_hours,
            "checkpoint_seconds": failures.checkpoint_seconds,
            "interval_seconds": failures.interval_seconds,
            "restart_seconds": failures.restart_seconds,
        }
    return document
