from importlib import util

import pytest

from shardwright.tools.main import main
from tests.tools.check import programs

pytestmark = pytest.mark.skipif(util.find_spec("torch") is None, reason="needs PyTorch")
pytestmark = [pytestmark, pytest.mark.filterwarnings("default")]


def answer(tmp_path, capsys, text):
    path = tmp_path / "program.py"
    path.write_text(text)
    code = main(["check", str(path)])
    output = capsys.readouterr()
    return code, output.out + output.err


@pytest.mark.parametrize("name", programs.RIGHT)
def test_a_right_program_is_accepted(tmp_path, capsys, name):
    code, said = answer(tmp_path, capsys, programs.RIGHT[name])
    assert code == 0, said
    assert "are those of one device" in said


@pytest.mark.parametrize("name", programs.WRONG)
def test_a_fault_is_found_with_its_line(tmp_path, capsys, name):
    right, text, replacement, expected, place = programs.WRONG[name]
    assert right.count(text) == 1
    wrong = right.replace(text, replacement)
    code, said = answer(tmp_path, capsys, wrong)
    assert code == 1, said
    assert expected in said
    lines = [number for number, line in enumerate(wrong.split("\n"), 1) if place in line]
    assert not place or any(f"line {n}:" in said or f".py:{n}:" in said for n in lines), said


@pytest.mark.parametrize(
    ("text", "replacement", "expected"),
    [
        ("def reference", "def other", "it has no function `reference`"),
        ('MESH = {"dp": 2, "tp": 2}', "MESH = 4", "`MESH`: expected ranks by axis, got 4"),
        ('{"tp": 0}, "down', '{"xy": 0}, "down', "has no axis `xy`"),
        ('"up.weight": {"tp": 0}', '"up.weight": {}', "its layout gives (8, 6)"),
        ("h = self.down(h)", "h = F.dropout(self.down(h))", "draws random numbers"),
        ("h = self.down(h)", "h = self.nothing(h)", "line 68"),
    ],
)
def test_what_cannot_be_decided_is_refused(tmp_path, capsys, text, replacement, expected):
    code, said = answer(tmp_path, capsys, programs.DENSE.replace(text, replacement))
    assert code == 2
    assert expected in said


def test_a_file_that_is_absent_is_refused(tmp_path, capsys):
    assert main(["check", str(tmp_path / "absent.py")]) == 2
    assert "no such file" in capsys.readouterr().err
