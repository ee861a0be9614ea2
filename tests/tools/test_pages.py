"""The pages on extending the compiler: their files, tests and commands work as they stand.

A block of code whose first line is ``# NAME`` is the file NAME. Tests among the files run, and so
do the commands after ``$ shardwright``; what a page shows below a command is what it prints.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from shardwright.tools.main import main

ROOT = Path(__file__).parents[2]
PAGES = (
    "add-an-operator.md",
    "write-a-pass.md",
    "write-a-search.md",
    "write-a-schedule.md",
    "write-a-dimension.md",
    "price-something.md",
    "tell-memory-apart.md",
)
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page):
    """Return the language and the text of every block of code."""
    return _BLOCK.findall((ROOT / "docs" / page).read_text())


def write_files(page, folder):
    """Write the files of a page into a folder."""
    for _, text in blocks(page):
        head, _, rest = text.partition("\n")
        if re.fullmatch(r"# [\w.]+", head):
            (folder / head[2:]).write_text(rest)


@pytest.fixture
def folder(request, tmp_path, monkeypatch, own_operators):
    """Write the files of a page into a folder, and go there."""
    write_files(request.param, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_tests_of_the_pages_pass(tmp_path):
    for page in PAGES:
        folder = tmp_path / page.partition(".")[0]
        folder.mkdir()
        write_files(page, folder)
        assert list(folder.glob("test_*.py"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(("page", "folder"), [(page, page) for page in PAGES], indirect=["folder"])
def test_the_commands_of_a_page_do_what_it_shows(page, folder, capsys):
    texts = [text for language, text in blocks(page) if not language and text.startswith("$ ")]
    assert texts
    for text in texts:
        for command in re.split(r"^\$ shardwright ", text, flags=re.MULTILINE)[1:]:
            line, _, shown = command.partition("\n")
            words = shlex.split(line)
            if words[0] == "compile" and not {"--plan", "--search"} & {*words}:
                words += ["--gap", "0.3"]  # the page shows nothing of the plan, so that any will do
                assert not shown.strip()
            assert main(words) == 0, capsys.readouterr().err
            printed = capsys.readouterr().out
            assert not shown or printed == shown
