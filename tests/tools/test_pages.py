"""The pages on extending the compiler: their tests pass as they stand.

A block of code whose first line is ``# NAME`` is the file NAME. ``docs/screens.py`` runs commands.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.long
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
