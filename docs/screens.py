"""Runs the code of the documents, and compares what they show with what is printed.

    python docs/screens.py [--write | --list] [--heavy] [FILE ...]

Blocks of a page run in order, in one process and one empty folder, in which ``examples`` is that of
the repository:

- a fenced block whose first line is ``# NAME`` is the file NAME;
- other Python is executed; a ``text`` block right behind it is what it prints;
- in a console, lines after ``$`` are commands; the lines below one are what it prints, in which
  ``...`` stands for any lines, and none are compared where none are shown;
- an indented block behind ``<!-- screen -->`` is such a console, which ``--write`` makes anew.

Comments before a fence say what a reader need not see: ``<!-- not run: REASON -->``,
``<!-- part of: FILE -->`` (its lines stand in that file, which runs elsewhere; comments aside),
``<!-- not compared: REASON -->``, ``<!-- heavy: REASON -->`` (with ``--heavy`` alone),
``<!-- needs: MODULES -->`` (where these are installed), ``<!-- first: CODE -->`` (Python that runs
before).
"""

import argparse
import contextlib
import importlib.util
import io
import multiprocessing
import os
import re
import shlex
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

# Tables are as wide as where there is no terminal; matrices are too small for several threads.
os.environ.pop("COLUMNS", None)
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import shardwright.tools.compile  # noqa: F401  # once for the processes of all pages
from shardwright.tools.launch.owned import end_with, owned
from shardwright.tools.main import main as run_command

ROOT = Path(__file__).resolve().parents[1]
MARK = "<!-- screen -->"
PROMPT = "$ "
COMMAND = "shardwright "
INDENT = "    "
ANY = "..."
MARKS = ("not run", "part of", "not compared", "heavy", "needs", "first")
_FENCE = re.compile(
    r"(?P<marks>(?:^<!-- (?:(?!-->).)*-->\n\n?)*)^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its line, its language, its text, and the comments before it."""

    line: int
    language: str
    text: str
    marks: dict[str, str]

    @property
    def file(self) -> str:
        """The name of the file that this block is, if it is one."""
        head = self.text.partition("\n")[0]
        return head[2:] if re.fullmatch(r"# [\w./]+\.\w+", head) else ""

    @property
    def is_console(self) -> bool:
        """Whether this block has commands, and what they print."""
        return self.language in ("", "sh") and self.text.startswith(PROMPT)

    @property
    def is_code(self) -> bool:
        """Whether there is something to run."""
        return self.is_console or self.language in ("python", "sh")

    def left_out(self, is_heavy: bool) -> str:
        """Return why this block does not run, or nothing."""
        if "not run" in self.marks:
            return self.marks["not run"]
        if "part of" in self.marks:
            return f"part of {self.marks['part of']}"
        if "heavy" in self.marks and not is_heavy:
            return f"heavy: {self.marks['heavy']}"
        missing = [name for name in self.marks.get("needs", "").split() if not _is_there(name)]
        return f"needs {', '.join(missing)}" if missing else ""


def _is_there(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def parts(text: str) -> Iterator[str | Block]:
    """Yield the fenced blocks of a page, and the text between them."""
    end = 0
    for found in _FENCE.finditer(text):
        marks = dict(re.findall(r"<!-- ([\w ]+):\s(.*?)\s*-->", found["marks"], re.DOTALL))
        if unknown := marks.keys() - {*MARKS}:
            raise ValueError(f"unknown comment before a block: `{unknown.pop()}`")
        line = text.count("\n", 0, found.start("language")) + 1
        yield text[end : found.start()]
        yield Block(line, found["language"], found["text"], marks)
        end = found.end()
    yield text[end:]


def fences(text: str) -> list[Block]:
    """Return the fenced blocks of a page."""
    return [part for part in parts(text) if isinstance(part, Block)]


def documents() -> list[Path]:
    """Return the documents that have screens, or code in fences."""
    found = [ROOT / name for name in ("README.md", "CONTRIBUTING.md")]
    found += sorted((ROOT / "docs").rglob("*.md"))
    return [path for path in found if has_code(path.read_text("utf-8"))]


def has_code(text: str) -> bool:
    """Return whether a document has screens, or code in fences."""
    return MARK in text.splitlines() or any(block.is_code for block in fences(text))


def problems(text: str, is_heavy: bool) -> list[str]:
    """Run the fenced blocks of a page, and return what is not as it should be."""
    names: dict[str, Any] = {"__name__": "__main__"}
    blocks = fences(text)
    found = []
    for block, following in pairwise([*blocks, Block(0, "", "", {})]):
        if block.file and "not run" not in block.marks:
            Path(block.file).write_text(block.text, "utf-8")
        if missing := missing_lines(block):
            found.append(f"{block.line}: `{block.marks['part of']}` has no line `{missing[0]}`")
        if block.left_out(is_heavy) or not block.is_code or (block.file and block.language != "sh"):
            continue
        shown = following.text if following.language == "text" else ""
        try:
            exec(block.marks.get("first", ""), names)
            run(block, names, shown)
        except (Exception, SystemExit) as error:
            told = str(error) if isinstance(error, DifferentError) else traceback.format_exc()
            found.append(f"{block.line}: {told}")
    return found


def missing_lines(block: Block) -> list[str]:
    """Return the lines of a block that the file it is part of does not have, after those before."""
    if "part of" not in block.marks:
        return []
    there = iter(map(without_comment, (ROOT / block.marks["part of"]).read_text().splitlines()))
    wanted = filter(None, map(without_comment, block.text.splitlines()))
    return [line for line in wanted if line not in there]


def without_comment(line: str) -> str:
    """Return a line of code without its comment, and without a body that is left out."""
    return re.sub(r"(  # .*|(?<=:) \.\.\.)$", "", line).strip()


class DifferentError(Exception):
    """A page shows something else than what is printed."""


def run(block: Block, names: dict[str, Any], shown: str) -> None:
    """Run a block of code, and raise where it prints something else than is shown."""
    if block.language == "python":
        both = io.StringIO()
        with contextlib.redirect_stdout(both):
            exec(compile(block.text, f"block at line {block.line}", "exec"), names)
        pairs = [("the block", shown, both.getvalue())]
    else:
        text = (
            block.text if block.is_console else "".join(f"$ {a}\n" for a in block.text.split("\n"))
        )
        pairs = [outcome(*command) for command in commands(text.splitlines())]
    for command, expected, output in pairs:
        if expected.strip() and "not compared" not in block.marks and not is_like(expected, output):
            raise DifferentError(f"`{command}` prints\n{output}\nbut the page shows\n{expected}")


def outcome(command: list[str], below: list[str]) -> tuple[str, str, str]:
    """Run a command; return it, what is shown below it, and what it prints."""
    code, lines = printed(command)
    if code and not below:
        raise DifferentError(f"`{' '.join(command)}` ends with exit code {code}: {' '.join(lines)}")
    return " ".join(command), "\n".join(below), "\n".join(lines)


def is_like(shown: str, output: str) -> bool:
    """Return whether lines are those that are shown, in which ``...`` stands for any lines."""
    lines = [line.rstrip() for line in shown.strip("\n").splitlines()]
    pattern = "".join("(.*\n)*" if line == ANY else re.escape(line) + "\n" for line in lines)
    printed_lines = [line.rstrip() for line in output.strip("\n").splitlines()]
    return bool(re.fullmatch(pattern, "".join(f"{line}\n" for line in printed_lines)))


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
    for number, (command, _) in enumerate(commands(block)):
        yield from [""] * (number > 0)
        yield from command
        yield from printed(command)[1]


def commands(block: Sequence[str]) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the commands of a block, each by its lines, with the lines below it."""
    lines = list(block)
    while lines:
        command = [lines.pop(0)]
        if not command[0].startswith(PROMPT):
            continue
        while command[-1].endswith("\\"):
            command.append(lines.pop(0))
        below = []
        while lines and not lines[0].startswith(PROMPT):
            below.append(lines.pop(0))
        yield command, below


def printed(command: Sequence[str]) -> tuple[int, list[str]]:
    """Run a command, one of shardwright in this process; return its exit code and its lines."""
    text = " ".join(line.removesuffix("\\") for line in command).removeprefix(PROMPT)
    both = io.StringIO()
    if text.startswith(COMMAND):
        with contextlib.redirect_stdout(both), contextlib.redirect_stderr(both):
            code = run_command(shlex.split(text.removeprefix(COMMAND), comments=True))
    else:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        ran = subprocess.run(
            owned(["bash", "-c", text]),
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        code = ran.returncode
        both.write(ran.stdout + ran.stderr * bool(code))
    return code, [line.rstrip() for line in both.getvalue().strip("\n").splitlines()]


def looked_at(path: Path, is_heavy: bool) -> tuple[str, list[str]]:
    """Return a document with its screens as they are now, and what is wrong in its fences."""
    text = path.read_text("utf-8")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("examples").symlink_to(ROOT / "examples")
        sys.path.insert(0, folder)
        made = remade(text) if MARK in text.splitlines() else text
        return made, problems(text, is_heavy)


def left_out(path: Path, is_heavy: bool) -> Iterator[str]:
    """Yield the blocks of code of a document that do not run, each with the reason."""
    for block in fences(path.read_text("utf-8")):
        if block.is_code and (why := block.left_out(is_heavy)):
            yield f"{path.relative_to(ROOT)}:{block.line}: {why}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run documents; exit code 1 where one is not as printed, or fails."""
    parser = argparse.ArgumentParser(description="Run the code of the documents.")
    parser.add_argument("files", nargs="*", type=Path, help="documents (default all with code)")
    parser.add_argument("--write", action="store_true", help="write their screens anew")
    parser.add_argument("--list", action="store_true", help="list what does not run, and why")
    parser.add_argument("--heavy", action="store_true", help="run what takes long, too")
    given = parser.parse_args(arguments)
    files = [path.resolve() for path in given.files] or documents()
    if given.list:
        print("\n".join(line for path in files for line in left_out(path, given.heavy)))
        return 0
    told: list[str] = []
    is_other = False
    for path in files:
        # A process for each page: what one registers or imports is not there for the next. It ends
        # with this one, however that ends.
        fork, owner = multiprocessing.get_context("fork"), (os.getpid(),)
        with ProcessPoolExecutor(1, fork, end_with, owner) as process:
            found, wrong = process.submit(looked_at, path, given.heavy).result()
        name = path.relative_to(ROOT)
        told += [f"{name}:{problem}" for problem in wrong]
        if found != path.read_text("utf-8"):
            if given.write:
                path.write_text(found, "utf-8")
            said = "written" if given.write else "differs from what is printed now"
            print(f"{name}: {said}; `python docs/screens.py --write`")
            is_other |= not given.write
    print("\n".join(told), end="\n" if told else "")
    return int(bool(told) or is_other)


if __name__ == "__main__":
    sys.exit(main())
