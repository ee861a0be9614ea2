"""The table of the documents' capabilities: each has a verdict, and the tests it names exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "mindspore-rows.md").read_text("utf-8")
CELLS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| capability |")
]


def functions(path):
    """Return the names of the functions of a module, or nothing where it is absent."""
    if not path.is_file():
        return set()
    return {
        node.name
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }


def wrong(cells):
    """Return what is wrong with a row; empty if nothing is."""
    if len(cells) != 4:
        return f"{len(cells)} cells"
    capability, verdict, missing, test = cells
    if not capability or verdict not in ("works", "in part", "no"):
        return "no verdict"
    if verdict == "works" and not test:
        return "works without a test"
    if verdict == "in part" and not missing:
        return "what is missing is not said"
    found = re.fullmatch(r"`(tests/[\w/]+\.py)::(test_\w+)`", test)
    if test and (found is None or found[2] not in functions(ROOT / found[1])):
        return f"no such test: {test}"
    return ""


def test_every_row_has_a_verdict_and_a_test_that_exists():
    assert {cells[0]: wrong(cells) for cells in CELLS if wrong(cells)} == {}
    assert len(CELLS) > 50
    assert len({cells[0] for cells in CELLS}) == len(CELLS)


@pytest.mark.parametrize(
    ("row", "what"),
    [
        (["a", "works", "", ""], "works without a test"),
        (["a", "", "", ""], "no verdict"),
        (["a", "in part", "", ""], "what is missing is not said"),
        (["a", "works", ""], "3 cells"),
        (
            ["a", "works", "", "`tests/shardwright/test_dataset.py::test_none`"],
            "no such test: `tests/shardwright/test_dataset.py::test_none`",
        ),
    ],
)
def test_wrong_rows_are_found(row, what):
    assert wrong(row) == what
