"""Notebooks are made from pages."""

import importlib
import json
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"

PAGE = """# Title

Read [this](other.md).

```python
print(1)
```

```text
1
```

Save it:

```python
# saved.py
x = 1
```

```
$ cat \\
    saved.py
# saved.py
...
$ true
```
"""


@pytest.fixture
def notebooks(monkeypatch):
    """Return the script as a module."""
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("notebooks")


def test_every_notebook_is_of_its_page(notebooks, capsys):
    assert notebooks.main([]) == 0, capsys.readouterr().out
    assert {path.stem for path in DOCS.glob("*.ipynb")} == {*notebooks.PAGES}


def test_a_notebook_has_all_blocks_of_its_page_and_what_they_print(notebooks):
    for name in notebooks.PAGES:
        blocks = notebooks.screens.fences((DOCS / f"{name}.md").read_text())
        made = json.loads((DOCS / f"{name}.ipynb").read_text())["cells"]
        codes = [cell for cell in made if cell["cell_type"] == "code"]
        texts = "\n".join("".join(cell["source"]) for cell in made)
        assert all(b.text.strip("\n") in texts for b in blocks if b.language in ("python", "ir"))
        shown = [b.text for b in blocks if b.language == "text"]
        shown += [
            "".join(f"{line}\n" for line in below)
            for b in blocks
            if b.is_console
            for _, below in notebooks.screens.commands(b.text.splitlines())
            if below
        ]
        assert [notebooks.printed(cell) for cell in codes if cell["outputs"]] == shown


def test_blocks_become_cells(notebooks):
    made = notebooks.cells("page", PAGE)
    assert [("".join(cell["source"]), cell.get("outputs") != []) for cell in made] == [
        ("# Title\n\n*A notebook of [the page](page.md), which has the same text.*", True),
        ("Read [this](other.md).", True),
        ("print(1)", True),
        ("Save it:", True),
        ("%%writefile saved.py\n# saved.py\nx = 1", False),
        ("%%bash\ncat \\\n    saved.py", True),
        ("%%bash\ntrue", False),
    ]
    assert [notebooks.printed(made[i]) for i in (2, 5)] == ["1\n", "# saved.py\n...\n"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("```text", "Then\n\n```text"),  # text that no cell before it prints
        ("```python\nprint", "<!-- heavy: long -->\n```python\nprint"),
        ("```python\nprint", "```sh\nprint"),
    ],
)
def test_a_block_that_no_cell_can_be_made_of_is_told(notebooks, old, new):
    with pytest.raises(ValueError, match=r"^page\.md: no cell can be made of the block\n"):
        notebooks.cells("page", PAGE.replace(old, new, 1))


def test_a_notebook_that_is_not_of_its_page_is_told(notebooks, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(notebooks.screens, "ROOT", tmp_path)
    monkeypatch.setattr(notebooks, "PAGES", ("page",))
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "page.md"
    page.write_text(PAGE)
    assert notebooks.main([]) == 1
    assert notebooks.main(["--write"]) == notebooks.main([]) == 0
    page.write_text(PAGE.replace("Save", "Keep"))
    assert notebooks.main([]) == 1
    told = "page.ipynb is not of its page; `python docs/notebooks.py --write`\n"
    assert capsys.readouterr().out == told * 2


def test_what_a_cell_prints_is_compared(notebooks, tmp_path, monkeypatch, capsys):
    pytest.importorskip("nbclient")
    monkeypatch.setattr(notebooks.screens, "ROOT", tmp_path)
    monkeypatch.setattr(notebooks, "PAGES", ("page",))
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text(PAGE.replace("print(1)", "print(2)"))
    assert notebooks.main(["--write", "--run"]) == 1
    assert capsys.readouterr().out == ("page.ipynb: cell-2 prints\n2\n\nbut the page shows\n1\n\n")
