"""Names in a sentence."""

from collections.abc import Sequence
from typing import Final

_MOST: Final = 5  # names: half may leave out the one that is looked for, twice as many fill a line


def first_names(names: Sequence[str], most: int = _MOST) -> str:
    """Return the first of some names, and how many more there are.

    Examples
    --------
    >>> first_names(["a", "b", "c"], 1)
    '`a` and 2 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(f"`{name}`" for name in names[:most]) + more
