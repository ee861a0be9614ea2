"""Use the product wrongly in every way that comes to mind: ``python benchmarks/wrong_uses.py``.

Each use is a process of its own, in a folder that holds a plan, a checkpoint, and files of the
user's. What it says, its exit code, and whether every file is as it was, goes into a table. A use
fails if it ends well, shows a traceback, says more than a sentence, or changes a file (logs apart).
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from machine import machine
from wrong_uses_list import USES, Use

from shardwright.api import compile, run

ROOT = Path(__file__).parents[1]
_SECONDS = 120
_MODEL = """import shardwright as sw
from shardwright import nn

def network():
    layer = nn.Dense(6, 4)
    return (lambda x: layer(x).mean()), (sw.InputSpec("x", sw.TensorType("float32", (4, 6))),)
"""
_PYTHON = """import sys
import shardwright as sw
from shardwright.ir.errors import ShardwrightError
try:
    {text}
except ShardwrightError as error:
    sys.exit(f"{{type(error).__name__}}: {{error}}")
"""
Contents = dict[str, str]


@dataclass(frozen=True)
class Ending:
    """How a use ended.

    Parameters
    ----------
    code : int
        The exit code.
    said : str
        Standard error.
    changed : tuple of str
        Files that are no longer, or not as they were, and files that are new.
    """

    code: int
    said: str
    changed: tuple[str, ...]

    @property
    def faults(self) -> list[str]:
        """What is not as it must be."""
        found = [f"changed: {', '.join(self.changed)}"] if self.changed else []
        if self.code == 0:
            found.append("exit code 0")
        if "Traceback" in self.said:
            found.append("a traceback")
        elif self.code != _CLOSED_PIPE and self.said.count("\n") != 1:
            found.append(f"{self.said.count(chr(10))} lines")
        return found


_CLOSED_PIPE = 141  # nothing is said there


def prepare(folder: Path) -> None:
    """Put a plan, a checkpoint, and files of a user into an empty folder."""
    compilation = compile("mlp:batch=4,hidden=8", 2, cluster="cpu")
    compilation.write(folder / "plan")
    (folder / "plan" / "notes.md").write_text("what I think of this plan\n")
    (folder / "src").mkdir()
    (folder / "src" / "model.py").write_text(_MODEL)
    (folder / "notes.txt").write_text("dear diary\n")
    for _ in run(compilation, 1, save=folder / "state.npz"):
        pass


@contextmanager
def place_of(use: Use, prepared: Path) -> Iterator[Path]:
    """Yield a copy of the prepared folder, with the files that the use needs."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "here"
        shutil.copytree(prepared, folder)
        for name, text in use.files.items():
            (folder / name).write_text(text)
        for name, (before, after) in use.edits.items():
            text = (folder / name).read_text()
            assert before in text, f"`{name}` does not hold `{before}`"
            (folder / name).write_text(text.replace(before, after, 1))
        yield folder


def contents(folder: Path) -> Contents:
    """Return the digest of every file, and an entry for every folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else "folder"
        for path in sorted(folder.rglob("*"))
        if "__pycache__" not in path.parts and "logs" not in path.relative_to(folder).parts
    }


def changes(before: Contents, after: Contents) -> tuple[str, ...]:
    """Return the names of what differs."""
    return tuple(n for n in sorted({*before, *after}) if before.get(n) != after.get(n))


def end(use: Use, prepared: Path) -> Ending:
    """Run one use in a process of its own."""
    python = sys.executable
    if use.python:
        command = [python, "-c", _PYTHON.format(text=use.text)]
    elif use.shell:
        command = ["bash", "-c", use.text.replace("shardwright ", f"{python} -m shardwright ")]
    else:
        command = [python, "-m", "shardwright", *use.text.split()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with place_of(use, prepared) as folder:
        before = contents(folder)
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        said = done.stderr.replace(f"{folder}/", "")
        return Ending(done.returncode, said, changes(before, contents(folder)))


def table(endings: Mapping[int, Ending]) -> str:
    """Return the rows, a group after the other."""
    lines = []
    group = ""
    for number, ending in endings.items():
        use = USES[number]
        if use.group != group:
            group = use.group
            lines += ["", f"## {group[0].upper()}{group[1:]}", "", "| use | exit | what it says |"]
            lines.append("|---|---|---|")
        said = ending.said.removeprefix("shardwright: ").strip().replace("|", "\\|")
        lines.append(f"| {_shown(use)} | {ending.code} | {said or '(nothing)'} |")
    return "\n".join(lines)


def _shown(use: Use) -> str:
    """Return what the user wrote, with the files that matter."""
    parts = [f"`{use.text}`".replace("|", "\\|")]
    for name, text in use.files.items():
        lines = text.strip().splitlines()
        shown = lines[3:] if name == "wrong.py" else lines if len(lines) < 3 else []
        if name == "mine.yaml" and not shown:
            shown = _different(text)
        parts.append(f"{name}: `{' ⏎ '.join(shown)}`".replace("|", "\\|"))
    parts += [f"{name}: `{a}` → `{b}`" for name, (a, b) in use.edits.items()]
    return "<br>".join(parts)


def _different(text: str) -> list[str]:
    known = {line for use in USES if use.group == "cluster files" for line in _all_but(use, text)}
    return [line.strip() for line in text.splitlines() if line not in known]


def _all_but(use: Use, text: str) -> list[str]:
    own = use.files["mine.yaml"]
    return [] if own == text else own.splitlines()


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    parser.add_argument("--only", default="", help="uses whose text holds this; writes no table")
    arguments = parser.parse_args()
    endings = {}
    with tempfile.TemporaryDirectory() as parent:
        prepared = Path(parent)
        prepare(prepared)
        for number, use in enumerate(USES):
            if arguments.only not in use.text:
                continue
            ending = endings[number] = end(use, prepared)
            faults = f"   <-- {'; '.join(ending.faults)}" if ending.faults else ""
            print(f"{use.text}\n   {ending.code}: {ending.said.strip()}{faults}", flush=True)
    wrong = [number for number, ending in endings.items() if ending.faults]
    print(f"{len(endings)} uses, {len(wrong)} faults")
    if not arguments.only:
        title = f"# {len(endings)} wrong uses\n\n{__doc__.split(chr(10), 2)[2].strip()}\n\n"
        summary = f"{len(endings)} uses, {len(wrong)} with a fault. On {machine()}.\n"
        arguments.out.write_text(title + summary + table(endings) + "\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
