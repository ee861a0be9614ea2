"""Makes the screens in the documents anew, or compares them with what the commands print.

    python docs/screens.py [--write] [FILE ...]

A screen is a block of indented lines behind a line ``<!-- screen -->``. It begins with commands,
``$ shardwright ...``, which may go on in the next line behind a backslash, each followed by what it
prints. Commands of a document run in one empty folder, in which ``examples`` is that of the
repository.
"""

import argparse
import contextlib
import io
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

# Tables are as wide as where there is no terminal; matrices are too small for several threads.
os.environ.pop("COLUMNS", None)
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from shardwright.tools.main import main as run_command

ROOT = Path(__file__).resolve().parents[1]
MARK = "<!-- screen -->"
PROMPT = "$ shardwright "
INDENT = "    "


def documents() -> list[Path]:
    """Return the documents that have screens."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [path for path in found if MARK in path.read_text("utf-8").splitlines()]


def remade(text: str) -> str:
    """Return a document with its screens as they are printed now."""
    lines = text.splitlines()
    found: list[str] = []
    while lines:
        line = lines.pop(0)
        found.append(line)
        if line != MARK:
            continue
        block = []
        while lines and (lines[0].startswith(INDENT) or not lines[0].strip()):
            block.append(lines.pop(0).removeprefix(INDENT))
        found += ["", *(f"{INDENT}{one}".rstrip() for one in screen(block)), ""]
    return "\n".join(found).rstrip("\n") + "\n"


def screen(block: Sequence[str]) -> Iterator[str]:
    """Yield the commands of a block, each with what it prints."""
    for number, command in enumerate(commands(block)):
        yield from [""] * (number > 0)
        yield from command
        yield from printed(command)


def commands(block: Sequence[str]) -> Iterator[list[str]]:
    """Yield the commands of a block by their lines, which go on behind a backslash."""
    lines = iter(block)
    for line in lines:
        if line.startswith(PROMPT):
            command = [line]
            while command[-1].endswith("\\"):
                command.append(next(lines))
            yield command


def printed(command: Sequence[str]) -> list[str]:
    """Run a command in this process, and return the lines that it prints."""
    text = " ".join(line.removesuffix("\\") for line in command).removeprefix(PROMPT)
    both = io.StringIO()
    with contextlib.redirect_stdout(both), contextlib.redirect_stderr(both):
        run_command(shlex.split(text))
    return [line.rstrip() for line in both.getvalue().strip("\n").splitlines()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write screens, or tell which documents are not as printed: exit code 1."""
    parser = argparse.ArgumentParser(description="Make the screens in the documents.")
    parser.add_argument("files", nargs="*", type=Path, help="documents (default all with screens)")
    parser.add_argument("--write", action="store_true", help="write them anew")
    given = parser.parse_args(arguments)
    files = [path.resolve() for path in given.files] or documents()
    other = []
    for path in files:
        text = path.read_text("utf-8")
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            Path("examples").symlink_to(ROOT / "examples")
            found = remade(text)
        if found != text:
            other.append(path)
            if given.write:
                path.write_text(found, "utf-8")
    for path in other:
        said = "written" if given.write else "differs from what is printed now"
        print(f"{path.relative_to(ROOT)}: {said}; `python docs/screens.py --write`")
    return int(bool(other) and not given.write)


if __name__ == "__main__":
    sys.exit(main())
