"""``prove`` and ``verify`` say what is proven, what was compared, and what is trusted."""

import json
from pathlib import Path

import pytest

from shardwright.api import compile, prove, verify
from shardwright.proof import TRUSTED
from shardwright.tools.main import main

MLP = "mlp:batch=16,inputs=16,hidden=8,classes=4"
HYBRID = Path(__file__).with_name("hybrid_model.py")


@pytest.fixture(scope="module")
def compiled():
    return compile(MLP, 4, cluster="cpu", search="tensor_parallel")


@pytest.fixture
def directory(tmp_path, compiled):
    return compiled.write(tmp_path / "plan")


def edit(directory, old, new):
    program = directory / "program.ir"
    text = program.read_text()
    assert old in text
    program.write_text(text.replace(old, new))


def test_a_proof_is_told(directory, compiled, capsys):
    assert main(["prove", str(directory)]) == 0
    head, trusts, *sentences = capsys.readouterr().out.splitlines()
    nodes = len(compiled.plan.program)
    assert head.startswith(
        f"proven: the {nodes} nodes of the program compute the training step of the model, at "
        f"full size ("
    )
    assert trusts == "assumptions:"
    assert sum(line.startswith("  - ") for line in sentences) == len(TRUSTED)


def test_the_document_of_a_proof(directory, capsys):
    assert main(["prove", str(directory), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.pop("seconds") > 0
    assert found == {
        "proven": True,
        "trusted": list(TRUSTED),
        "first_failure": None,
        "reason": None,
    }


def test_a_failure_names_the_node(directory, capsys):
    edit(directory, "learning_rate=0.01", "learning_rate=0.02")
    assert main(["prove", str(directory), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["proven"], found["first_failure"]) == (False, "layer1.weight.next")
    assert main(["prove", str(directory)]) == 1
    assert capsys.readouterr().out.splitlines()[0] == (
        "not proven: `layer1.weight.next`: the update of `layer1.weight` differs from the model's"
    )
    assert main(["verify", str(directory)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("not proven: `layer1.weight.next`")
    assert lines[1].startswith("different: `layer1.weight`")


def test_an_edit_that_changes_nothing_is_proven(directory, capsys):
    edit(directory, "return ", "return  ")
    assert main(["prove", str(directory)]) == 0
    assert capsys.readouterr().err == (
        "shardwright: `program.ir` was edited after the plan was written\n"
    )


def test_hand_written_programs_are_compared_by_numbers_only(tmp_path, capsys):
    plan = compile(f"{HYBRID}:split_batch", 2, mode="hybrid_parallel")
    out = str(plan.write(tmp_path / "plan"))
    assert main(["prove", out]) == 4
    assert capsys.readouterr().out.startswith("no proof: the program has no layouts: ")
    assert main(["verify", out, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["proven"], found["equal"], found["compared"]) == (None, True, "full")


def test_a_plan_that_is_too_large_is_proven_and_its_operators_are_run(tmp_path, capsys):
    large = "gpt:layers=2,hidden=8192,heads=64,batch=64,sequence=1024,vocabulary=51200"
    plan = compile(large, 16, search="tensor_parallel", memory_limit=1e15)
    verdict = verify(plan)
    assert (verdict.proof.proven, verdict.equal, verdict.compared) == (True, True, "shrunken")
    assert (verdict.numbers, verdict.first_difference, verdict.errors) == (None, None, {})
    assert verdict.samples is not None
    assert verdict.samples.skipped == ()
    out = str(plan.write(tmp_path / "plan", []))
    assert main(["verify", out]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith(f"equal: {verdict.tensors} operators in their layouts, ")
    assert main(["verify", out, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["compared"], found["equal"]) == ("shrunken", True)


def test_scripts_prove_too(directory):
    proof = prove(directory)
    assert proof.proven
    assert proof.trusted == TRUSTED
