"""The declaration of an option, and checks of values that are neither numbers nor names."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from shardwright.cost_model.mindspore.allreduce_fusion import FusionSettings
from shardwright.ir.values import (
    NOT_NEGATIVE,
    POSITIVE_INTEGER,
    Range,
    check_choice,
    check_split_counts,
    wrong_value,
)
from shardwright.operators.models.loss_scale import loss_scale
from shardwright.operators.models.optimizer import Optimizer
from shardwright.passes.base import Pass
from shardwright.search.named_plan import NamedPlan

SEARCHED = "search"
"""The value of an option that leaves the choice to the compiler."""


@dataclass(frozen=True)
class Option:
    """Declaration of an option.

    Parameters
    ----------
    text : str
        What the option sets, for help and documentation.
    allowed : Range, optional
        The numbers that it may be.
    choices : iterable of str
        The names that it may be; a registry can grow.
    validate : callable, optional
        Raises an `OptionError` for a wrong value that is neither number nor name.
    default : str
        The default in words, where the default value itself does not tell.
    partition : bool
        Whether it has an effect only where the compiler partitions the model.
    """

    text: str
    allowed: Range | None = None
    choices: Iterable[str] = ()
    validate: Callable[[str, object], None] | None = None
    default: str = ""
    partition: bool = False

    def check(self, name: str, value: object) -> None:
        """Raise an `OptionError` if the option may not have this value."""
        if self.choices:
            check_choice(name, value, tuple(self.choices))
        if self.allowed is not None:
            self.allowed.check(name, value)
        if self.validate is not None:
            self.validate(name, value)


def check_optimizer(name: str, value: object) -> None:
    """Refuse what is no update rule."""
    if not isinstance(value, Optimizer):
        hint = 'write `optimizer="adam"`, or a `shardwright.operators.models.optimizer.Optimizer`'
        raise wrong_value(name, value, "the rule of an update", hint)


def check_fusion(name: str, value: object) -> None:
    """Refuse what is neither settings nor a size."""
    if not isinstance(value, FusionSettings):
        NOT_NEGATIVE.check(name, value)


def check_loss_scale(name: str, value: object) -> None:
    """Refuse what is no loss scale."""
    loss_scale(value, name)


def check_micro_batches(name: str, value: object) -> None:
    """Refuse what is neither a number of micro-batches nor their search."""
    if value != SEARCHED and value not in POSITIVE_INTEGER:
        raise wrong_value(name, value, f"{POSITIVE_INTEGER.expected}, or `{SEARCHED}`")


def check_stages(name: str, value: object) -> None:
    """Refuse what is neither a number of device groups nor their search."""
    if value != SEARCHED and value not in POSITIVE_INTEGER:
        raise wrong_value(name, value, f"{POSITIVE_INTEGER.expected}, or `{SEARCHED}`")


def check_mapping(name: str, value: object) -> None:
    """Refuse what is no mapping."""
    if not isinstance(value, Mapping):
        raise wrong_value(name, value, "a mapping from names")


def check_pins(name: str, value: object) -> None:
    """Refuse what is no mapping from operators to split counts."""
    if not isinstance(value, Mapping):
        raise wrong_value(name, value, "a mapping from names")
    for operator, counts in value.items():
        check_split_counts(operator, counts)


def check_passes(name: str, value: object) -> None:
    """Refuse what is no pipeline."""
    if not isinstance(value, tuple) or not all(isinstance(item, Pass) for item in value):
        raise wrong_value(name, value, "a tuple of passes, or a text such as `clean_up`")


def check_plan(name: str, value: object) -> None:
    """Refuse what is no named plan."""
    if value is not None and not isinstance(value, NamedPlan):
        raise wrong_value(name, value, "a named plan", "write `tensor=8,data=4,zero=1`")
