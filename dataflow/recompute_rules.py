"""The words that say what is recomputed for the gradient instead of saved."""

from collections.abc import Collection

from shardwright.dataflow.block_parts import PARTS
from shardwright.ir.errors import OptionError
from shardwright.ir.values import check_choice, in_words

RULES = ("selective", "operators", "full")
"""The rules, the one that marks least first."""
CORE = "core_attn"
"""The part of a block that ``selective`` recomputes alone."""
MODULES = (CORE, *sorted(PARTS))
"""The parts of blocks that can be named."""


def rule_in(name: str, value: object, words: Collection[str], of: str = "") -> str:
    """Return a rule: one of some words, or parts of blocks in one order.

    Raises
    ------
    OptionError
        If it is neither.

    Examples
    --------
    >>> rule_in("recompute", "moe_act+layernorm", RULES)
    'layernorm+moe_act'
    >>> rule_in("recompute", "core_attn", RULES)
    'selective'
    """
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
