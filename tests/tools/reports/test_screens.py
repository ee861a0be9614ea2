"""The script that makes the screens of the documents."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "docs" / "screens.py"


@pytest.fixture(scope="module")
def screens():
    """Return the script as a module."""
    spec = importlib.util.spec_from_file_location("screens", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TEXT = """# A page

<!-- screen -->

    $ shardwright compile two_matmul --devices \\
        2 --cluster cpu --out plan

    $ shardwright diff plan plan
    what was printed before

After it.

    $ shardwright compile this is no screen
"""


def test_screens_are_made_anew_and_nothing_else_changes(screens, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = screens.remade(TEXT)
    head, rest = found.split("    two_matmul on 2 devices of cpu", 1)
    assert head == TEXT[: TEXT.index("\n    $ shardwright diff")]
    assert "\n    $ shardwright diff plan plan\n    the plans are equal: " in rest
    assert "what was printed before" not in found
    assert found.endswith("\n\nAfter it.\n\n    $ shardwright compile this is no screen\n")
    assert screens.remade(found) == found


def test_a_screen_that_is_not_as_printed_is_told(screens, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(screens, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("<!-- screen -->\n\n    $ shardwright diff nowhere nowhere\n")
    assert screens.main([str(page)]) == 1
    assert "page.md: differs from what is printed now" in capsys.readouterr().out
    assert screens.main(["--write", str(page)]) == 0
    assert "    shardwright: there is no such plan (in nowhere)" in page.read_text()
    assert screens.main([str(page)]) == 0
