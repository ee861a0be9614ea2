"""The documents for scripts hold what the tables hold, also where nothing fits."""

import json

import pytest

from shardwright.ir.errors import InfeasibleError, NotFoundError
from shardwright.tools import bench
from shardwright.tools.console import options
from shardwright.tools.main import main

MLP = "mlp:batch=4,hidden=8"
PROVEN = InfeasibleError("no plan fits 5 B", least_memory_bytes=9.0, least_memory_bound=8.0)
UNPROVEN = NotFoundError("no plan was found", least_memory_bytes=7.0)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def document(capsys, *arguments, code=0):
    assert main([*arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def failing(error):
    def compile_model(*arguments, **others):
        raise error

    return compile_model


def test_what_fits(capsys):
    options = ["--devices", "4", "--memory", "1", "--mesh", "2x2", "--gap", "0.5"]
    found = document(capsys, "compile", MLP, *options)
    assert found["fits"] is True
    assert found["memory_limit_bytes"] == 2**30
    assert sum(found["memory_by_kind"].values()) == found["memory_bytes_per_device"]
    assert (found["cluster"], found["mesh"]) == ("h100-pod", {"x": 2, "y": 2})
    assert 0 < found["overlapped_step_seconds"] <= found["predicted_step_seconds"]
    assert found["plan"] == "plans/mlp-batch4-hidden8-4"
    assert (found["least_memory_bytes"], found["least_memory_bound"]) == (None, None)
    assert (found["reason"], found["mesh_shapes"], found["pin_prices"]) == (None, {}, {})
    assert "elimination" in found["how"]


def test_the_length_of_samples_is_a_size_of_the_model(capsys):
    model = "gpt:layers=1,hidden=8,heads=2,vocabulary=16,batch=2"
    options = ["--devices", "2", "--mode", "data_parallel"]
    named = document(capsys, "compile", f"{model},sequence=4", *options)
    told = document(capsys, "compile", model, "--sequence", "4", *options)
    of_this_run = ("search_seconds", "compile_seconds", "peak_memory_bytes")
    assert told | dict.fromkeys(of_this_run) == named | dict.fromkeys(of_this_run)
    assert main(["compile", f"{model},sequence=4", "--sequence", "8", *options]) == 2
    assert "the size `sequence` of" in capsys.readouterr().err


def test_the_limit_is_the_memory_of_a_device(capsys):
    found = document(capsys, "compile", MLP, "--devices", "2", "--cluster", "cpu")
    assert found["memory_limit_bytes"] == 0.94 * 4 * 2**30 // 1


@pytest.mark.parametrize(
    ("error", "code", "fits", "status"),
    [(PROVEN, 3, False, "infeasible"), (UNPROVEN, 4, None, "unknown")],
)
def test_what_does_not_fit(error, code, fits, status, capsys, here, monkeypatch):
    known = set(document(capsys, "compile", MLP, "--devices", "2", "--out", "fits"))
    monkeypatch.setattr(options, "compile", failing(error))
    found = document(capsys, "compile", MLP, "--devices", "2", "--memory", "3", code=code)
    assert set(found) == known
    assert (found["fits"], found["status"]) == (fits, status)
    assert found["least_memory_bytes"] == error.least_memory_bytes
    assert found["least_memory_bound"] == error.least_memory_bound
    assert found["memory_limit_bytes"] == 3 * 2**30
    assert (found["model"], found["devices"], found["cluster"]) == (MLP, 2, "h100-pod")
    assert (found["reason"], found["objective"], found["plan"]) == (error.what, None, None)
    assert [path.name for path in here.iterdir()] == ["fits"]
    assert main(["compile", MLP, "--devices", "2"]) == code
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"shardwright: {error.what}\n")


def test_a_limit_that_nothing_fits(capsys, here):
    arguments = ["compile", MLP, "--devices", "2", "--memory", "0.0000001"]
    found = document(capsys, *arguments, code=3)
    assert (found["fits"], found["memory_limit_bytes"]) == (False, 0.0000001 * 2**30)
    assert found["reason"].startswith("no plan fits 107 B on each device")
    assert list(here.iterdir()) == []


@pytest.mark.long
@pytest.mark.parametrize(("error", "fits"), [(PROVEN, False), (UNPROVEN, None)])
def test_searches_that_find_nothing(error, fits, capsys, monkeypatch):
    compile_model = bench.compile_model

    def sometimes(*arguments, **others):
        if others["search"] == "exact":
            raise error
        return compile_model(*arguments, **others)

    monkeypatch.setattr(bench, "compile_model", sometimes)
    rows = document(capsys, "bench", "strategies", MLP, "--devices", "2", "--memory", "1e-5")
    assert rows[0]["fits"] is fits
    assert {row["fits"] for row in rows[1:]} == {False}
    assert {frozenset(row) for row in rows} == {frozenset(rows[0])}
    assert main(["bench", "strategies", MLP, "--devices", "2", "--memory", "1e-5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert next(line for line in lines if line.startswith("exact")).split() == [
        "exact",
        {False: "no", None: "unknown"}[fits],
    ]
    assert f"exact: {error.what}" in lines


def test_training(capsys):
    document(capsys, "compile", MLP, "--devices", "2", "--out", "plan")
    arguments = ["run", "plan", "--steps", "3", "--save", "state.npz", "--save-every", "2"]
    found = document(capsys, *arguments)
    assert len(found["losses"]) == len(found["seconds"]) == 3
    assert sorted(found["seconds"])[1] == found["seconds_per_step"]
    assert (found["model"], found["devices"]) == (MLP, 2)
    assert (found["logs"], found["checkpoint"]) == ("plan/logs", "state.npz")
    assert found["peak_bytes_per_rank"] > 0
    assert found["data"]
