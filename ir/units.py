"""Bytes, seconds, names and tables for people to read."""

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

MOST_NAMES: Final = 5
"""Names in a message, and what a sentence or a cell of a table lists of more.

Half may leave out the one that is looked for, twice as many fill a line."""

ROWS: Final = 12
"""Rows of a table that has more, which are then counted: twice as many fill a screen."""

WHOLE_LIST: Final = 2 * ROWS
"""Rows or names of what is to be read as a whole, and is summarized where it has more of them."""

TOLD_PART: Final = 0.05
"""Share of a whole from which a part of it is told.

At half, changes that hardly matter are told beside those that do; at twice, those are left out that
make a tenth of the whole together with another."""


def bytes_text(nbytes: float) -> str:
    """Return a number of bytes with a binary unit.

    Examples
    --------
    >>> bytes_text(512), bytes_text(3 * 2**20)
    ('512 B', '3.00 MiB')
    """
    if nbytes < 1024:
        return f"{nbytes:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        nbytes /= 1024
        if nbytes < 1024 or unit == "TiB":
            break
    return f"{nbytes:.2f} {unit}"


def seconds_text(seconds: float) -> str:
    """Return a time with a suitable unit.

    Examples
    --------
    >>> seconds_text(0.0000123), seconds_text(0.25), seconds_text(12)
    ('12.3 us', '250 ms', '12 s')
    """
    for unit, factor in (("ns", 1e9), ("us", 1e6), ("ms", 1e3)):
        if abs(seconds) * factor < 999.5:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"


def gap_text(gap: float) -> str:
    """Return a relative gap in percent; a gap above zero is not rounded to zero.

    Examples
    --------
    >>> gap_text(0.0206), gap_text(0.0), gap_text(3e-6)
    ('2.06%', '0%', '0.0003%')
    """
    if gap < 1e-9:
        return "0%"
    return f"{gap:.2%}" if gap >= 5e-5 else f"{100 * gap:.1g}%"


def shortened(text: str, length: int = 80) -> str:
    """Return a text cut to a length.

    Examples
    --------
    >>> shortened("gpt:layers=24,hidden=1024", 12)
    'gpt:layers…'
    """
    return text if len(text) <= length else f"{text[: length - 2]}…"


def pattern(name: str) -> str:
    """Return a name with the numbers of repeated layers replaced by stars.

    Examples
    --------
    >>> pattern("blocks/3/layernorm1"), pattern("blocks.3.layernorm1.gamma")
    ('blocks/*/layernorm1', 'blocks.*.layernorm1.gamma')
    """
    return re.sub(r"(?<=[/.])\d+(?=[/.]|\b)", "*", name)


def first_names(names: Sequence[str], most: int = MOST_NAMES) -> str:
    """Return the first of some names, and how many more there are.

    Examples
    --------
    >>> first_names(["a", "b", "c"], 1)
    '`a` and 2 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(f"`{name}`" for name in names[:most]) + more


def html_table(title: str, rows: Iterable[Sequence[object]], headings: Sequence[str] = ()) -> str:
    """Return a table as HTML; every text is escaped.

    Examples
    --------
    >>> html_table("a < b", [("step", "53.8 ms")])
    '<table><caption>a &lt; b</caption><tr><td>step</td><td>53.8 ms</td></tr></table>'
    """
    lines = [_row("th", headings)] if headings else []
    lines += [_row("td", row) for row in rows]
    return f"<table><caption>{escape(title)}</caption>{''.join(lines)}</table>"


def _row(tag: str, cells: Sequence[object]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(str(cell))}</{tag}>' for cell in cells)}</tr>"
