"""Tables for people."""

import shutil
import sys
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

_ENDLESS = 10_000  # columns of what is no terminal: nothing is wrapped there


def print_table(
    title: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: Sequence[int] = (),
) -> None:
    """Print a table.

    Parameters
    ----------
    title : str
        Stands above it.
    headings : sequence of str
        One for each column.
    rows : iterable of sequence of str
        The cells.
    right : sequence of int
        Columns that are aligned to the right.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left", title=title or None)
    for i, heading in enumerate(headings):
        table.add_column(Text(heading), justify="right" if i in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _ENDLESS
    console = Console(width=width, highlight=False, no_color=True)
    with console.capture() as captured:
        console.print(table)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))
