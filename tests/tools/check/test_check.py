import json
from importlib import util

import pytest

from tests.tools.check import programs, published, tensors
from tests.tools.check.apart import checked

pytestmark = pytest.mark.skipif(util.find_spec("torch") is None, reason="needs PyTorch")
pytestmark = [pytestmark, pytest.mark.filterwarnings("default")]


MENDS = ("sum the ", "leave out", "give ", "redistribute ", "call ")


def answer(tmp_path, text, *options):
    path = tmp_path / "program.py"
    path.write_text(text)
    code, output, errors = checked(tmp_path, str(path), *options)
    return code, output + errors


# Four ranks with DTensor take seconds: benchmarks/check_mutants.py has all programs and faults.
RIGHT = programs.RIGHT | {name: tensors.RIGHT[name] for name in ("sharded", "borders", "clipped")}
WRONG = programs.WRONG | {
    name: fault
    for name, fault in (tensors.WRONG | published.WRONG).items()
    if fault[0] in (tensors.BORDERS, tensors.CLIPPED, tensors.MAPPED) or "7452" in name
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_program_is_accepted(tmp_path, name):
    code, said = answer(tmp_path, RIGHT[name])
    assert code == 0, said
    assert "are those of one device" in said


@pytest.mark.parametrize("name", WRONG)
def test_a_fault_is_found_with_its_line(tmp_path, name):
    right, text, replacement, expected, place = WRONG[name]
    assert right.count(text) == 1
    wrong = right.replace(text, replacement)
    # Changes are tried only where one is expected to mend the program: most of the time goes there.
    limit = "600" if expected.startswith(MENDS) else "0"
    code, said = answer(tmp_path, wrong, "--time-limit", limit)
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
def test_what_cannot_be_decided_is_refused(tmp_path, text, replacement, expected):
    code, said = answer(tmp_path, programs.DENSE.replace(text, replacement))
    assert code == 2
    assert expected in said


def test_groups_kept_in_a_module_that_the_file_imports_are_each_ranks_own(tmp_path):
    kept = "GROUP = None\n"
    (tmp_path / "kept_groups.py").write_text(kept)
    text = programs.HEADS.replace("import torch\n", "import torch\nimport kept_groups\n", 1)
    made = """pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    assert kept_groups.GROUP is None
    kept_groups.GROUP = pairs[mesh.get_local_rank("tp") // 2]"""
    text = text.replace("pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]", made)
    used = 'pairs[mesh.get_local_rank("tp") // 2])  # of key'
    assert used in text
    code, said = answer(tmp_path, text.replace(used, "kept_groups.GROUP)"))
    assert code == 0, said


@pytest.mark.parametrize(
    ("text", "replacement", "expected"),
    [
        ("loss.backward()", "import os; os._exit(3)", "the process of rank"),
        ("loss.backward()", "import sys; sys.exit()", "it ends the program"),
        ("    return loss / MESH", "    return 'loss' if loss else MESH", "expected the loss"),
    ],
)
def test_ranks_that_fail_end_the_check(tmp_path, text, replacement, expected):
    code, said = answer(tmp_path, programs.DENSE.replace(text, replacement))
    assert code == 2
    assert expected in said


def test_what_a_program_prints_is_not_in_the_document(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(programs.CONTEXT.replace("def inputs():", "print('said')\ndef inputs():"))
    code, output, _ = checked(tmp_path, str(path), "--json")
    assert code == 0
    document = json.loads(output)
    assert document["agrees"]
    assert document["faults"] == []


def test_a_file_that_is_absent_is_refused(tmp_path):
    code, _, errors = checked(tmp_path, str(tmp_path / "absent.py"))
    assert code == 2
    assert "no such file" in errors
