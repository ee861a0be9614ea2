"""The page as HTML: a template with the style, the charting library, our drawing code, the data."""

import json
import math
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from shardwright.ir.files.writing import begins, check_file, write_file

_WHAT = "the page"
_MARK = "<!doctype html>\n<!-- a page of shardwright -->\n"
_LIBRARY = "echarts.min.js"
_SCRIPTS = ("units.js", "tables.js", "model.js", "timeline.js", "memory.js", "search.js", "main.js")
_is_page = begins(_MARK.encode())


def page_text(document: dict[str, Any], scripts: Sequence[str] = _SCRIPTS) -> str:
    """Return a page that holds a document and all that draws it.

    Parameters
    ----------
    document : dict
        The document; see `page_document`.
    scripts : sequence of str
        What draws it: files of `drawing`.
    """
    drawing = files("shardwright.compiler.page") / "drawing"
    parts = {
        "style": (drawing / "page.css").read_text("utf-8"),
        "library": (drawing / "vendored" / _LIBRARY).read_text("utf-8"),
        "script": "\n".join((drawing / name).read_text("utf-8") for name in scripts),
        "document": embedded(document),
    }
    text = _MARK + (drawing / "page.html").read_text("utf-8")
    for name, content in parts.items():
        text = text.replace(f"<!--{name}-->", content, 1)
    return text


def plain_page(title: str, head: str, main: str) -> str:
    """Return a page without scripts.

    Parameters
    ----------
    title, head, main : str
        The title, and what follows it and stands below, as HTML.
    """
    drawing = files("shardwright.compiler.page") / "drawing"
    parts = {
        "style": (drawing / "page.css").read_text("utf-8"),
        "title": escape(title),
        "head": head,
        "main": main,
    }
    text = _MARK + (drawing / "plain.html").read_text("utf-8")
    for name, content in parts.items():
        text = text.replace(f"<!--{name}-->", content)
    return text


def embedded(document: object) -> str:
    r"""Return a document as JSON that can stand within HTML; numbers that are not finite are null.

    Examples
    --------
    >>> embedded({"reason": "</script>", "bound": float("inf")})
    '{"reason":"<\\/script>","bound":null}'
    """
    text = json.dumps(_finite(document), separators=(",", ":"), ensure_ascii=True)
    return text.replace("</", "<\\/").replace("<!--", "<\\u0021--")


def _finite(item: Any) -> Any:
    if isinstance(item, dict):
        return {key: _finite(value) for key, value in item.items()}
    if isinstance(item, list | tuple):
        return [_finite(value) for value in item]
    if isinstance(item, float):
        return float(f"{item:.9g}") if math.isfinite(item) else None
    return item


def check_page(path: Path) -> None:
    """Check that a page can be written to a file, before long work; see `check_file`."""
    check_file(path, _WHAT, _is_page)


def write_page(path: Path, document: dict[str, Any]) -> None:
    """Write a page; another file that is no page is never replaced."""
    write_text(path, page_text(document))


def write_text(path: Path, text: str) -> None:
    """Write the text of a page; another file that is no page is never replaced."""
    write_file(path, text.encode(), _WHAT, _is_page)
