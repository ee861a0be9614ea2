"""The table of MindSpore's names: what it says is there is, and the documents use no other."""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

from tests.shardwright.scripts.documents import LAYOUTS, script

PAGE = Path(__file__).parents[3] / "docs" / "mindspore.md"
ROWS = re.findall(r"(?m)^\| `mindspore\.([\w.]+)` \| (yes|no) \|", PAGE.read_text("utf-8"))


def found(name):
    """Return whether `shardwright.mindspore` has a name, by its own module path."""
    *modules, last = name.split(".")
    item = import_module("shardwright.mindspore")
    path = "shardwright.mindspore"
    for part in (*modules, last):
        path = f"{path}.{part}"
        try:
            item = getattr(item, part)
        except AttributeError:
            try:
                item = import_module(path)
            except ModuleNotFoundError:
                return False
    return True


def test_the_table_says_which_names_are_there():
    assert len(ROWS) > 100
    assert len(dict(ROWS)) == len(ROWS)
    assert {name: found(name) for name, _ in ROWS} == {name: is_ == "yes" for name, is_ in ROWS}


def used(code):
    """Return the names of MindSpore that a script uses, by their module paths."""
    tree, paths, names = ast.parse(code), {}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                paths[alias.asname or alias.name] = alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                paths[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        text = ast.unparse(node) if isinstance(node, ast.Attribute | ast.Name) else ""
        first, _, rest = text.partition(".")
        if re.fullmatch(r"[\w.]+", text) and paths.get(first, "").startswith("mindspore"):
            names.add(f"{paths[first]}.{rest}".rstrip("."))
    return {name.removeprefix("mindspore.") for name in names if name != "mindspore"}


@pytest.mark.parametrize(
    ("document", "name"),
    [(d, name) for d, blocks in LAYOUTS.items() for name in blocks if name != "run.sh"],
)
def test_the_documents_use_names_of_the_table(document, name):
    known = {row for row, _ in ROWS}
    prefixes = {row[:i] for row in known for i in range(len(row)) if row[i] == "."}
    head = "" if name != "parameter_server" else "from mindspore import context\n"
    assert used(head + script(document, name)) - prefixes <= known
