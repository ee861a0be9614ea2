"""Files made to do harm get one sentence: those without an end, too deep, too large, elsewhere."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from shardwright.api import compile
from shardwright.compiler.plans.files import document_digest
from shardwright.tools.main import main

_ESTIMATE = ("estimate", "mlp", "--devices", "2", "--plan")
# For each kind of file the command that reads it, its name at the end.
READERS = {
    "cluster.yaml": (*_ESTIMATE, "data=2", "--cluster"),
    "cluster.json": (*_ESTIMATE, "data=2", "--cluster"),
    "layouts.json": _ESTIMATE,
    "config.json": ("fit", "--devices", "2"),
    "flags.sh": ("fit", "--devices", "2"),
    "job.toml": ("fit", "--devices", "2"),
    "graph.ir": ("opt", "--passes", "canonicalize"),
    "pins.json": ("compile", "mlp", "--devices", "2", "--strategies"),
    "instance.json": ("bench", "solver"),
}


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return what a command that fails says, which is all that it says."""

    def said(*arguments: object) -> str:
        assert main([str(argument) for argument in arguments]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("shardwright: ")
        assert captured.err.count("\n") == 1
        assert len(captured.err) < 1000
        return captured.err

    return said


@pytest.mark.parametrize("name", READERS)
def test_no_reader_waits_or_reads_without_end(
    name: str, tmp_path: Path, say: Callable[..., str]
) -> None:
    path = tmp_path / name
    os.mkfifo(path)
    assert "it is a pipe or a device, expected a file" in say(*READERS[name], path)
    path.unlink()
    path.symlink_to("/dev/zero")
    assert "it is a pipe or a device, expected a file" in say(*READERS[name], path)
    path.unlink()
    with path.open("wb") as file:
        file.truncate(2**40)
    assert " bytes" in say(*READERS[name], path)


@pytest.mark.parametrize("name", ["cluster.json", "config.json"])
def test_no_reader_of_json_goes_too_deep(
    name: str, tmp_path: Path, say: Callable[..., str]
) -> None:
    path = tmp_path / name
    for depth in (200, 100_000):
        path.write_text('{"a": ' + "[" * depth + "]" * depth + "}")
        assert "it is nested too deeply" in say(*READERS[name], path)


def test_aliases_of_yaml_count_as_what_they_stand_for(
    tmp_path: Path, say: Callable[..., str]
) -> None:
    path = tmp_path / "cluster.yaml"
    lines = ["a0: &a0 [lol, lol]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40))]
    path.write_text("\n".join(lines))
    assert say(*READERS[path.name], path) == (
        f"shardwright: a cluster file must be YAML, but line 13 is not (in {path}); it has "
        "more than 20,000 values, aliases written out\n"
    )
    path.write_text("a: &a [1, *a]")
    assert "a value is within itself" in say(*READERS[path.name], path)
    path.write_text("[" * 5000 + "]" * 5000)
    assert "it is nested too deeply" in say(*READERS[path.name], path)


def test_tables_of_toml_within_each_other_are_counted(
    tmp_path: Path, say: Callable[..., str]
) -> None:
    path = tmp_path / "job.toml"
    path.write_text("[model]\n" + ".".join("a" * 10_000) + " = 1")
    assert say(*READERS[path.name], path) == (
        f"shardwright: the file must be TOML: line 2 has more than 1,000 dots (in {path})\n"
    )


def test_variables_of_a_script_count_as_what_they_stand_for(
    tmp_path: Path, say: Callable[..., str]
) -> None:
    path = tmp_path / "flags.sh"
    lines = ["A0=x", *(f"A{i}=$A{i - 1}$A{i - 1}" for i in range(1, 40)), "run --tag $A39"]
    path.write_text("\n".join(lines))
    assert say(*READERS[path.name], path) == (
        "shardwright: it has more than 10,000,000 characters, its variables written out "
        f"(in {path})\n"
    )
    squares = ["A0=99", *(f"A{i}=$((A{i - 1}*A{i - 1}))" for i in range(1, 40))]
    path.write_text("\n".join([*squares, "run --num-layers $A39"]))
    say(*READERS[path.name], path)
    path.write_text(f"A=$(({'9' * 5000} * 2))\nrun --num-layers $A")
    say(*READERS[path.name], path)


def test_layers_of_a_decoder_are_limited(tmp_path: Path, say: Callable[..., str]) -> None:
    path = tmp_path / "config.json"
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    path.write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 10**12, **sizes}))
    assert say(*READERS[path.name], path) == (
        "shardwright: `num_hidden_layers` is 1,000,000,000,000, expected at most 10,000 "
        f"(in {path})\n"
    )


# A plan of somebody else


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile("mlp:batch=8", devices=2).write(tmp_path_factory.mktemp("kept") / "plan")


@pytest.fixture
def plan(kept: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "plan"
    copy.mkdir()
    for path in kept.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    return copy


def sealed(plan: Path) -> None:
    """Write the digests of a plan anew: they are no signature."""
    path = plan / "plan.json"
    content = json.loads(path.read_text())
    for name in content["files"].keys() - {path.name}:
        content["files"][name] = hashlib.sha256((plan / name).read_bytes()).hexdigest()
    content["files"][path.name] = document_digest(content)
    path.write_text(json.dumps(content))


def test_no_file_of_a_plan_is_read_elsewhere(
    plan: Path, tmp_path: Path, say: Callable[..., str]
) -> None:
    other = tmp_path / "other.ir"
    (plan / "program.ir").rename(other)
    (plan / "program.ir").symlink_to(other)
    assert "`program.ir` cannot be read: it is a link that leads out of" in say("dump", plan)
    (plan / "program.ir").unlink()
    os.mkfifo(plan / "program.ir")
    assert "`program.ir` cannot be read: it is a pipe or a device" in say("dump", plan)


def test_no_plan_is_too_deep(plan: Path, say: Callable[..., str]) -> None:
    (plan / "plan.json").write_text("[" * 100_000 + "]" * 100_000)
    assert "a plan must be JSON, but it is nested too deeply" in say("dump", plan)


def test_a_plan_says_everything_once_and_in_characters(plan: Path, say: Callable[..., str]) -> None:
    path = plan / "plan.json"
    text = path.read_text()
    path.write_text(text.replace('"devices"', '"devices": 2, "devices"', 1))
    assert "a plan must be JSON, but `devices` is given twice" in say("dump", plan)
    path.write_text(text.replace('"mlp:batch=8"', '"\\ud800"'))
    assert "it holds half a character (a lone surrogate)" in say("dump", plan)


@pytest.mark.parametrize("value", ["+".join(["1"] * 100_000), "(" * 1000, "-" * 100_000 + "1"])
def test_no_attribute_is_too_deep(value: str, plan: Path, say: Callable[..., str]) -> None:
    program = plan / "program.ir"
    first, call, rest = program.read_text().partition(" = matmul(")
    operands, bracket, rest = rest.partition(")")
    rest = rest.replace(" {", f" {{depth={value}, ", 1)
    program.write_text(first + call + operands + bracket + rest)
    sealed(plan)
    assert "cannot be read" in say("dump", plan)


def test_no_array_of_a_plan_is_compressed(plan: Path, say: Callable[..., str]) -> None:
    np.savez_compressed(plan / "initial.npz", a=np.zeros(2**20))
    content = json.loads((plan / "plan.json").read_text())
    content["files"]["initial.npz"] = ""
    (plan / "plan.json").write_text(json.dumps(content))
    sealed(plan)
    assert "`initial.npz` cannot be read: its arrays are compressed" in say("dump", plan)
