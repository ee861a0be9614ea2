"""The words that say what is recomputed for the gradient instead of saved."""

import re
from collections.abc import Collection
from dataclasses import dataclass

from shardwright.dataflow.block_parts import PARTS
from shardwright.ir.errors import OptionError
from shardwright.ir.values import check_choice, in_words

RULES = ("selective", "operators", "full")
"""The rules, the one that marks least first."""
CORE = "core_attn"
"""The part of a block that ``selective`` recomputes alone."""
MODULES = (CORE, *sorted(PARTS))
"""The parts of blocks that can be named."""
METHODS = ("block", "uniform")
"""Which blocks ``full`` recomputes, by the words of Megatron's ``--recompute-method``."""


@dataclass(frozen=True)
class Layers:
    """Which repeated blocks of every pipeline stage are recomputed whole.

    Parameters
    ----------
    method : str
        ``block``: the first `count` of each stage. ``uniform``: all of them, `count` at a time, of
        which the input of the first is saved.
    count : int
        How many.
    """

    method: str = "uniform"
    count: int = 1

    @property
    def rule(self) -> str:
        """The rule that says it."""
        return "full" if self == Layers() else f"full:{self.method}={self.count}"


def layers_of(rule: str) -> Layers | None:
    """Return which blocks a rule recomputes whole; None if it does not recompute whole blocks.

    Examples
    --------
    >>> layers_of("full:block=3"), layers_of("full").count, layers_of("moe")
    (Layers(method='block', count=3), 1, None)
    """
    if rule == "full":
        return Layers()
    found = re.fullmatch(rf"full:({'|'.join(METHODS)})=([1-9][0-9]{{0,8}})", rule, re.ASCII)
    return found and Layers(found[1], int(found[2]))


def has_number(rule: str) -> bool:
    """Return whether a rule says a number of blocks of each pipeline stage."""
    return layers_of(rule) not in (None, Layers())


def rule_in(name: str, value: object, words: Collection[str], of: str = "") -> str:
    """Return a rule: one of some words, numbers of whole blocks, or parts of blocks in one order.

    Raises
    ------
    OptionError
        If it is none of these.

    Examples
    --------
    >>> rule_in("recompute", "moe_act+layernorm", RULES)
    'layernorm+moe_act'
    >>> rule_in("recompute", "core_attn", RULES)
    'selective'
    >>> rule_in("recompute", "full:uniform=1", RULES)
    'full'
    """
    if isinstance(value, str) and value.startswith("full:"):
        layers = layers_of(value)
        if layers is None:
            raise OptionError(
                f"`{name}`{f' {of}' if of else ''} is `{value}`, which says no number of blocks",
                hint="write `full:block=2` for the first 2 blocks of each stage, `full:uniform=2` "
                "for all blocks, 2 at a time",
            )
        return layers.rule
    parts = value.split("+") if isinstance(value, str) else []
    if not isinstance(value, str) or (len(parts) == 1 and value not in MODULES):
        check_choice(name, value, (*words, *MODULES), of)
        return str(value)
    for part in parts:
        if part not in MODULES or parts.count(part) > 1:
            where = f" {of}" if of else ""
            found = "is there twice" if part in MODULES else "is no part of a block"
            raise OptionError(
                f"`{name}`{where} is `{value}`, where `{part}` {found}",
                hint=f"name parts once each, of {in_words(MODULES)}",
            )
    return "selective" if parts == [CORE] else "+".join(sorted(parts))
