"""Programs in other styles: right ones are accepted, wrong ones and wrong files are not."""

from importlib import util
from pathlib import Path

import pytest

from tests.tools.check.apart import checked
from tests.tools.check.styles import REFUSED, RIGHT, WRONG

pytestmark = [
    pytest.mark.skipif(util.find_spec("torch") is None, reason="needs PyTorch"),
    pytest.mark.filterwarnings("default"),
]


def answer(folder: Path, text: str) -> tuple[int, str]:
    """Return the exit code of a check without changes, and what it says."""
    path = folder / "program.py"
    path.write_text(text, encoding="utf-8")
    code, output, errors = checked(folder, str(path), "--time-limit", "0")
    return code, output + errors


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_program_is_accepted(name: str, tmp_path: Path) -> None:
    code, said = answer(tmp_path, RIGHT[name])
    assert code == 0, said


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_program_is_not(name: str, tmp_path: Path) -> None:
    text, expected = WRONG[name]
    code, said = answer(tmp_path, text)
    assert code == 1, said
    assert expected in said


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_decided_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    text, expected = REFUSED[name]
    code, said = answer(tmp_path, text)
    assert code == 2, said
    assert expected in said
    assert "Traceback" not in said
