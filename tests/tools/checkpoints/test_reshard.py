import json

import pytest

from shardwright.tools.main import main

pytest.importorskip("safetensors")


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    for devices, mode in (("4", "auto_parallel"), ("2", "data_parallel")):
        options = ["--optimizer", "adam", "--mode", mode, "--out", str(folder / devices)]
        assert main(["compile", "mlp:hidden=16", "--devices", devices, *options]) == 0
    return folder


@pytest.fixture
def losses(plans, capsys):
    def found(plan, *options):
        capsys.readouterr()
        assert main(["run", str(plans / plan), "--json", *map(str, options)]) == 0
        return json.loads(capsys.readouterr().out)["losses"]

    return found


def test_a_run_goes_on_with_the_bits_of_the_unbroken_one(plans, losses, tmp_path, capsys):
    folder = tmp_path / "checkpoints"
    unbroken = losses("4", "--steps", 7)
    begun = losses("4", "--steps", 4, "--checkpoints", folder, "--save-every", 2)
    assert sorted(path.name for path in folder.iterdir()) == [".lease", "step-2", "step-4"]
    rest = losses("4", "--steps", 3, "--checkpoints", folder, "--resume", folder, "--keep", 1)
    assert begun + rest == unbroken
    assert sorted(path.name for path in folder.iterdir()) == [".lease", "step-7"]
    assert losses("2", "--steps", 2, "--resume", folder) == pytest.approx(
        losses("4", "--steps", 2, "--resume", folder), rel=1e-6
    )


def test_a_checkpoint_is_cut_for_another_plan_and_merged(plans, losses, tmp_path, capsys):
    losses("4", "--steps", 3, "--checkpoints", tmp_path / "four")
    for source, target, options in (
        ("four", "two", ["--to", str(plans / "2")]),
        ("two", "whole", ["--merge"]),
        ("whole", "again", ["--to", str(plans / "4")]),
    ):
        out = ["--out", str(tmp_path / target)]
        assert main(["reshard", str(tmp_path / source), *options, *out, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["step"] == 3
    expected = losses("4", "--steps", 2, "--resume", tmp_path / "four")
    assert losses("4", "--steps", 2, "--resume", tmp_path / "again") == expected
    assert losses("4", "--steps", 2, "--resume", tmp_path / "whole" / "step-3") == expected


def test_wrong_uses(plans, losses, tmp_path, capsys):
    losses("4", "--steps", 1, "--checkpoints", tmp_path / "c")
    (tmp_path / "empty").mkdir()
    plan = str(plans / "4")
    for arguments, what in (
        (
            ["reshard", "c", "--out", "x"],
            "`--to` and `--merge` and `--adapter`: expected one of them, got none",
        ),
        (
            ["reshard", "c", "--to", plan, "--merge", "--out", "x"],
            "expected one of them, got `--to` and `--merge`",
        ),
        (["reshard", "empty", "--merge", "--out", "x"], "`manifest.json` is missing"),
        (["reshard", "nowhere", "--merge", "--out", "x"], "there is no such checkpoint"),
        (["reshard", "c", "--merge", "--out", "c"], "something is there"),
        (["run", plan, "--resume", "empty"], "`manifest.json` is missing"),
        (["run", plan, "--resume", "c", "--seed", "4"], "the run had the seed 0, and is to be"),
        (["run", plan, "--resume", "c", "--data", "text"], "there is no file"),
        (["run", plan, "--checkpoints", "c"], "those of another training run are there"),
        (["run", plan, "--keep", "-1"], "expected an integer of at least 0"),
    ):
        told = [
            str(tmp_path / word) if word in ("c", "empty", "nowhere", "x") else word
            for word in arguments
        ]
        capsys.readouterr()
        assert main(told) == 2
        said = capsys.readouterr().err
        assert what in said, arguments
        assert said.count("\n") == 1
    assert not (tmp_path / "x").exists()
