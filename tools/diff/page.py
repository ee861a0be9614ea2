"""The page of `diff`: one HTML file, made of the document of the command."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from shardwright.compiler.page.page import plain_page
from shardwright.tools.diff.diff_report import figures, places, reasons, verdict


def diff_page(document: dict[str, Any]) -> str:
    """Return the page.

    Parameters
    ----------
    document : dict
        See `diff_document`.
    """
    old, new = document["old"], document["new"]
    head = "".join(f"<p>{escape(text)}</p>" for text in (verdict(document), *reasons(document)))
    sides = _table(
        ("plan", "folder", "how the work is divided"),
        [("old", old["plan"], old["degrees"]), ("new", new["plan"], new["degrees"])],
    )
    sections = [_section("Plans", sides)]
    if not document["equal"]:
        changed = [(row["what"], row["old"], row["new"]) for row in document["changed"]]
        sections += [
            _section("Parts of the step", _bars(document["parts"])),
            _section("Figures", _table(("", "old", "new", "change"), figures(document), (1, 2, 3))),
            _section("Options and certificate", _table(("", "old", "new"), changed)),
        ]
        for title, key in (
            ("Parameters stored otherwise", "layouts"),
            ("Operators divided otherwise", "strategies"),
        ):
            if document[key]:
                rows = places(document[key], verbose=True)
                sections.append(_section(title, _table(("", "", "old", "new"), rows)))
    return plain_page("two plans", f'<div id="said">{head}</div>', "".join(sections))


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def _table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()
) -> str:
    body = "".join(_cells("td", row, right) for row in rows)
    return f'<div class="wide"><table>{_cells("th", headings, right)}{body}</table></div>'


def _cells(tag: str, texts: Sequence[str], right: Sequence[int]) -> str:
    """Return a row of a table."""
    marks = ["", ' class="right"']
    cells = (f"<{tag}{marks[i in right]}>{escape(t)}</{tag}>" for i, t in enumerate(texts))
    return f"<tr>{''.join(cells)}</tr>"


def _bars(parts: dict[str, list[float]]) -> str:
    """Return both steps as bars, a part a row, in shares of the longest part."""
    most = max(max(both) for both in parts.values()) or 1.0
    rows = []
    for name, both in parts.items():
        bars = "".join(
            f'<div class="share {side}" style="width:{100 * seconds / most:.2f}%"></div>'
            for side, seconds in zip(("old", "new"), both, strict=True)
        )
        rows.append(f'<tr><td>{escape(name)}</td><td class="bars">{bars}</td></tr>')
    key = (
        '<p><span class="share old">&nbsp;</span> old <span class="share new">&nbsp;</span> new</p>'
    )
    return f"<p>{key}</p><table>{''.join(rows)}</table>"
