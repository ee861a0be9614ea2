"""The commands of docs/named-plans.md print what the page shows."""

import json
from pathlib import Path

import pytest

from shardwright.tools.main import main

LINES = (Path(__file__).parents[3] / "docs" / "named-plans.md").read_text("utf-8").splitlines()


DEFAULT = "h100"
"""The cluster of users who name none; other tests name that of data sheets."""


def shown(command: str, most: int) -> list[str]:
    """Return the lines that the page shows behind a command: the block of indented lines."""
    first = LINES.index(f"    $ {command}") + 1
    block = []
    for line in LINES[first : first + most]:
        if line and not line.startswith("    "):
            break
        block.append(line[4:])
    while block and not block[-1]:
        block.pop()
    return block


@pytest.mark.long
def test_the_choices_of_a_present_plan_are_as_shown(capsys, monkeypatch, tmp_path):
    content = "\n".join(shown("cat specs.json", 6))
    json.loads(content)
    monkeypatch.chdir(tmp_path)
    Path("specs.json").write_text(content)
    command = "shardwright estimate gpt2:layers=2,batch=16 --plan specs.json"
    assert main([*command.split()[1:], "--cluster", DEFAULT]) == 0
    found = [line.rstrip() for line in capsys.readouterr().out.rstrip().splitlines()]
    assert found == shown(command, 14)
