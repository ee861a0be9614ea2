"""Small HTML tables, which notebooks show for objects with `_repr_html_`."""

from collections.abc import Iterable, Sequence
from html import escape


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
