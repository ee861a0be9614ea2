"""Update rules in the words of other systems' files: a type, and settings by other names."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from shardwright.exports.degrees.text import check_choice_of
from shardwright.ir.errors import OptionError
from shardwright.operators.models.optimizer import (
    DECAY_OF_ADAMW,
    OF_OTHERS,
    Optimizer,
    default_settings,
)
from shardwright.operators.models.schedule import is_schedule

_RATE: Final = "learning_rate"


@dataclass(frozen=True)
class Word:
    """A system's word for a rule.

    Parameters
    ----------
    name : str
        Its type.
    settings : mapping of str to str
        Its settings by the names of ours. Two of ours with one name have to agree, and those
        without a name have our default there.
    """

    name: str
    settings: Mapping[str, str]

    def settings_of(self, system: str, optimizer: Optimizer) -> dict[str, Any]:
        """Return the settings of an optimizer.

        A rate that follows the step is left out, and the norm to which gradients are clipped.

        Raises
        ------
        OptionError
            If one has a value that the system cannot have.
        """
        found: dict[str, Any] = {}
        defaults = _defaults(optimizer)
        for name, value in {**defaults, **optimizer.rule_settings}.items():
            key = self.settings.get(name)
            if key is None and value != defaults[name]:
                raise _refused(system, optimizer, name, value, f"it is {defaults[name]} there")
            if key is None or (name.endswith(_RATE) and is_schedule(value)):
                continue
            if found.setdefault(key, value) != value:
                raise _refused(system, optimizer, name, value, f"`{key}` is {found[key]} for all")
        return found


def word_for(system: str, words: Mapping[str, Word], optimizer: Optimizer) -> Word:
    """Return the word for an optimizer.

    Raises
    ------
    OptionError
        If the system has none.
    """
    check_choice_of(system, "optimizer", optimizer.kind, words)
    return words[optimizer.kind]


def _defaults(optimizer: Optimizer) -> dict[str, Any]:
    """Return the default settings of a rule, with those of AdamW beside Muon."""
    found = {**default_settings(optimizer.kind)}
    if optimizer.kind == "muon":
        shared = {_RATE: optimizer.settings.get(_RATE, found[_RATE])}
        others = {**default_settings("adam"), "weight_decay": DECAY_OF_ADAMW, **shared}
        found |= {OF_OTHERS + name: value for name, value in others.items()}
    return found


def _refused(
    system: str, optimizer: Optimizer, name: str, value: object, there: str
) -> OptionError:
    return OptionError(
        f"{system} has no word for `{name}={value}` of the optimizer `{optimizer.kind}`: {there}",
        hint="compile the model with another value",
    )
