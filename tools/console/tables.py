"""Tables and lines as wide as the terminal, or 100 columns without one."""

import os
import re
import sys
from collections.abc import Iterable, Sequence
from textwrap import TextWrapper

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shardwright.tools.console.arguments import width

_NARROWEST = 16  # columns that a shortened cell keeps
_GAP = 3  # columns between two columns of a table


def styled(text: str, style: str) -> str:
    """Return a text in a style, if the output is a terminal and ``NO_COLOR`` is not set.

    Parameters
    ----------
    text : str
        The text.
    style : str
        ``bold``, ``green``, ...
    """
    console = Console(file=sys.stdout, no_color=bool(os.environ.get("NO_COLOR")))
    if not console.is_terminal:
        return text
    with console.capture() as captured:
        console.print(Text(text, style), end="", soft_wrap=True)
    return captured.get()


def print_line(
    label: str, text: str, style: str = "", column: int = 10, breaks: re.Pattern[str] | None = None
) -> None:
    """Print a labelled line of a summary, wrapped with an indent.

    Parameters
    ----------
    label, text : str
        What stands at the left, and what begins at the column.
    style : str
        That of the text.
    column : int
        Columns of the labels.
    breaks : pattern, optional
        Where a line may break, if not at spaces alone.
    """
    wrapper = TextWrapper(max(40, width() - column), break_on_hyphens=False)
    if breaks is not None:
        wrapper.wordsep_simple_re = breaks
    for line in wrapper.wrap(text):
        print(f"{label:{column}}" + styled(line, style))
        label = ""


def print_table(
    title: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: Sequence[int] = (),
    shortened: int | None = None,
) -> None:
    """Print a table.

    Parameters
    ----------
    title : str
        The line above it.
    headings : sequence of str
        One for each column.
    rows : iterable of sequence of str
        The cells.
    right : sequence of int
        Columns aligned to the right.
    shortened : int, optional
        The column of paths that are shortened where the table is too wide; without one, cells are
        wrapped.
    """
    cells = [list(row) for row in rows]
    if shortened is not None:
        _shorten(headings, cells, shortened)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i, heading in enumerate(headings):
        table.add_column(Text(heading), justify="right" if i in right else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    console = Console(width=width(), highlight=False, no_color=True)
    with console.capture() as captured:
        console.print(table)
    if title:
        print(styled(title, "bold") + "\n")
    print("\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n")


def _shorten(headings: Sequence[str], rows: Sequence[list[str]], column: int) -> None:
    """Shorten the cells of one column until the table is narrow enough."""
    widths = [max(map(len, texts)) for texts in zip(headings, *rows, strict=True)]
    others = sum(widths) - widths[column] + _GAP * (len(widths) - 1)
    room = max(_NARROWEST, width() - others)
    for row in rows:
        if " " not in row[column]:  # a sentence is wrapped
            row[column] = shortened_path(row[column], room)


def shortened_path(path: str, room: int) -> str:
    """Return a path with parts of its middle left out; the last two parts go last.

    Examples
    --------
    >>> shortened_path("blocks/*/feed_forward/mapping/activation/gelu", 30)
    'blocks/*/…/activation/gelu'
    >>> shortened_path("blocks/*/feed_forward/mapping/activation/gelu", 20)
    '…/activation/gelu'
    """
    if len(path) <= room:
        return path
    separator = "/" if "/" in path else "."
    parts = path.split(separator)
    for tail in (2, 1):
        for kept in range(len(parts) - 1, tail - 1, -1):  # the most that fits
            for head in range(min(2, kept - tail), -1, -1):
                text = separator.join([*parts[:head], "…", *parts[len(parts) - kept + head :]])
                if len(text) <= room:
                    return text
    return path[: room - 1] + "…"
