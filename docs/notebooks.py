"""Makes notebooks of tutorials, from their pages.

    python docs/notebooks.py [--write] [--run]

A notebook has the cells of its page in order: text, Python, a file (``%%writefile``), a command
(``%%bash``). What the page shows below a block is the output of the cell. Without options the
notebooks are compared with their pages; ``--write`` makes them anew, and ``--run`` runs each from
its first cell to its last, in an empty folder, and compares what the cells print.
"""

import argparse
import json
import os
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import screens

from shardwright.ir.optional import optional

PAGES = ("tutorial", "write-a-pass")
SECONDS = 120  # that a cell may take: at half or twice as many, the same cells pass
NOTE = "\n*A notebook of [the page]({name}.md), which has the same text.*\n"

Cell = dict[str, Any]


def cells(name: str, text: str) -> list[Cell]:
    """Return the cells of a page."""
    title, _, rest = text.partition("\n")
    made = [markdown(f"{title}\n{NOTE.format(name=name)}")]
    can_print = False  # the cell before
    for part in screens.parts(rest):
        if isinstance(part, str):
            made += [markdown(part)] * bool(part.strip())
            can_print &= not part.strip()
        elif part.language == "text" and can_print:
            made[-1]["outputs"] = output(part.text)
        elif not part.marks and (own := list(code_cells(part))):
            made += own
            can_print = part.language == "python" and not part.file
        else:
            raise ValueError(f"{name}.md: no cell can be made of the block\n{part.text}")
    return made


def code_cells(block: screens.Block) -> Iterator[Cell]:
    """Yield the cells that do what a block of a page does."""
    if block.file:
        yield code(f"%%writefile {block.file}\n{block.text}")
    elif block.language == "python":
        yield code(block.text)
    elif block.is_console:
        for command, below in screens.commands(block.text.splitlines()):
            cell = code("%%bash\n" + "\n".join(command).removeprefix(screens.PROMPT))
            cell["outputs"] = output("".join(f"{line}\n" for line in below))
            yield cell


def markdown(text: str) -> Cell:
    """Return a cell of text."""
    return {"cell_type": "markdown", "metadata": {}, "source": source(text)}


def code(text: str) -> Cell:
    """Return a cell of code, which prints nothing."""
    cell = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
    return cell | {"source": source(text)}


def source(text: str) -> list[str]:
    """Return text as the lines of a cell."""
    return text.strip("\n").splitlines(keepends=True)


def output(text: str) -> list[dict[str, Any]]:
    """Return what a cell prints, if it prints something."""
    stream = {"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}
    return [stream] * bool(text.strip())


def notebook(name: str) -> dict[str, Any]:
    """Return the notebook of a page."""
    text = (screens.ROOT / "docs" / f"{name}.md").read_text("utf-8")
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {
        "cells": [{"id": f"cell-{i}", **cell} for i, cell in enumerate(cells(name, text))],
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def as_text(made: dict[str, Any]) -> str:
    """Return the text of the file of a notebook."""
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def printed(cell: Cell) -> str:
    """Return what a cell prints."""
    return "".join("".join(one.get("text", "")) for one in cell["outputs"])


def different(made: dict[str, Any]) -> Iterator[str]:
    """Run a notebook, and yield what its cells print that is not as it was."""
    client = optional("nbclient", extra="docs", need="`--run`")
    copy = optional("nbformat", extra="docs", need="`--run`").reads(as_text(made), 4)
    with tempfile.TemporaryDirectory() as folder:
        place = {"metadata": {"path": folder}}
        ran = client.NotebookClient(copy, timeout=SECONDS, resources=place).execute()
    for before, after in zip(made["cells"], ran["cells"], strict=True):
        shown = printed(before) if before["cell_type"] == "code" else ""
        if shown and not screens.is_like(shown, printed(after)):
            yield f"{before['id']} prints\n{printed(after)}\nbut the page shows\n{shown}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, write or run the notebooks; exit code 1 where one is not as its page."""
    parser = argparse.ArgumentParser(description="Make notebooks of tutorials.")
    parser.add_argument("--write", action="store_true", help="write them anew")
    parser.add_argument("--run", action="store_true", help="run them")
    given = parser.parse_args(arguments)
    # Commands are those that are installed beside this Python.
    os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    wrong = []
    for name in PAGES:
        file, made = screens.ROOT / "docs" / f"{name}.ipynb", notebook(name)
        if given.write:
            file.write_text(as_text(made), "utf-8")
        elif not file.exists() or file.read_text("utf-8") != as_text(made):
            wrong.append(f"{file.name} is not of its page; `python docs/notebooks.py --write`")
        if given.run:
            wrong += [f"{file.name}: {problem}" for problem in different(made)]
    print("\n".join(wrong), end="\n" if wrong else "")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
