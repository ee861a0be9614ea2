"""Optimizers by name, with their settings: ``adamw:weight_decay=0.1,*.bias/weight_decay=0``."""

from collections.abc import Mapping
from typing import Final, cast

from shardwright.ir.attributes import Attribute
from shardwright.ir.errors import OptionError
from shardwright.ir.values import check_choice, number_in
from shardwright.operators.models.optimizer import DECAY_OF_ADAMW, RULE, STATES, Kind, Optimizer

_WITH_DECAY: Final[Mapping[str, Kind]] = {"adamw": "adam", "adamw8bit": "adam8bit"}
_WITHOUT_STEP: Final = "gradient"  # for what reads gradients: it would train nothing
NAMES: Final = (*(name for name in STATES if name != _WITHOUT_STEP), *_WITH_DECAY)
"""The names of optimizers; `adamw` is `adam` with the weight decay of PyTorch's AdamW."""
_WORDS: Final[Mapping[str, bool]] = {"true": True, "false": False}


def optimizer_of(text: str, flag: str = "optimizer") -> Optimizer:
    """Return the optimizer that a text names.

    Settings stand after a colon, with commas between them. One that is of some parameters alone has
    their name before it, a pattern of names, or ``vectors``: those with fewer than two dimensions.
    Messages call the option by its `flag`.

    Raises
    ------
    OptionError
        If there is no such optimizer or setting, or a setting has a value that is not allowed.

    Examples
    --------
    >>> optimizer_of("adamw").settings
    {'weight_decay': 0.01}
    >>> optimizer_of("muon:learning_rate=0.02,*.gate/optimizer=adamw").overrides
    {'*.gate': {'optimizer': 'adam'}}
    """
    name, _, rest = text.partition(":")
    check_choice(flag, name, NAMES)
    settings: dict[str, Attribute] = {"weight_decay": DECAY_OF_ADAMW} if name in _WITH_DECAY else {}
    overrides: dict[str, dict[str, Attribute]] = {}
    seen = set()
    for item in rest.split(",") if rest else ():
        key, equals, value = (part.strip() for part in item.partition("="))
        if not key or not equals or not value:
            raise OptionError(
                f"the optimizer `{text}` has the item `{item}`",
                hint="write `setting=value`, or `parameter/setting=value`",
            )
        if key in seen:
            raise OptionError(f"the optimizer `{text}` gives `{key}` twice", hint="give it once")
        seen.add(key)
        of, _, setting = key.rpartition("/")
        own = overrides.setdefault(of, {}) if of else settings
        own[setting] = _value(setting, value)
    return Optimizer(_WITH_DECAY.get(name, cast(Kind, name)), settings, overrides)


def _value(setting: str, text: str) -> Attribute:
    if setting == RULE:
        check_choice(setting, text, NAMES)
        return _WITH_DECAY.get(text, text)
    return _WORDS.get(text, number_in(text))
