"""``shardwright estimate``: figures of a named plan, whether it fits or not."""

import json

import pytest

from shardwright.tools.main import main

GPT = "gpt:layers=2,hidden=32,heads=4,batch=8,sequence=8,vocabulary=64"
PLAN = "tensor=4,data=2,zero=1,sequence_parallel"


def document(capsys, *arguments, code=0):
    assert main(["estimate", *arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_the_document_has_the_figures_of_the_plan(capsys):
    found = document(capsys, GPT, "--plan", PLAN, "--optimizer", "adam")
    assert (found["devices"], found["mesh"]) == (8, {"data": 2, "tensor": 4})
    assert (found["stages"], found["micro_batches"]) == (1, 1)
    assert found["named_plan"] == PLAN
    step = found["overlapped_step_seconds"]
    assert 0 < step <= found["predicted_step_seconds"]
    assert found["samples_per_second"] == pytest.approx(8 / step)
    assert found["tokens_per_second_per_device"] == pytest.approx(64 / step / 8)
    flops = 72 * 8 * 8 * 2 * 32**2 * (1 + 8 / (6 * 32) + 64 / (12 * 2 * 32))
    assert found["model_flops"] == pytest.approx(flops)
    assert found["model_flops_utilization"] == pytest.approx(flops / 67e12 / 8 / step)
    kinds = found["memory_by_kind"]
    assert found["memory_bytes_per_device"] == pytest.approx(sum(kinds.values()))
    assert kinds["optimizer states"] == pytest.approx(2 * kinds["parameters"], rel=0.01)
    assert found["fits"] is True


def test_compile_builds_the_same_plan(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    estimated = document(capsys, GPT, "--plan", PLAN)
    assert main(["compile", GPT, "--devices", "8", "--plan", PLAN, "--json"]) == 0
    compiled = json.loads(capsys.readouterr().out)
    timed = ("search_seconds", "compile_seconds", "peak_memory_bytes", "plan", "memory_limit_bytes")
    assert {k: v for k, v in compiled.items() if k not in timed} == {
        k: v for k, v in estimated.items() if k not in timed
    }


def test_data_takes_the_devices_that_are_left(capsys):
    found = document(capsys, GPT, "--devices", "8", "--plan", "tensor=2")
    assert found["named_plan"] == "tensor=2,data=4"


def test_a_plan_that_does_not_fit_is_printed_all_the_same(capsys):
    found = document(capsys, GPT, "--plan", PLAN, "--memory", "1e-6", code=3)
    assert found["fits"] is False
    assert found["overlapped_step_seconds"] > 0
    assert main(["estimate", GPT, "--plan", PLAN, "--memory", "1e-6"]) == 3
    captured = capsys.readouterr()
    assert "does not fit: parameters" in captured.out
    assert f"the plan `{PLAN}` takes " in captured.err


def test_a_person_reads_what_the_figures_are(capsys):
    assert main(["estimate", GPT, "--plan", PLAN]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{GPT} on 8 devices of h100-pod: {PLAN}\n")
    for line in (" overlapped, ", " tokens/s on each device, ", " of 67 Tflop/s (float32): "):
        assert line in text
    assert "bubble    none: the plan has one stage" in text
    assert "from data sheets" in text.replace("\n          ", " ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--plan", "tensr=2"], "a named plan has no `tensr`; did you mean `tensor`?"),
        (["--plan", "tensor=2,data=3", "--devices", "8"], "tensor=2 * data=3 is 6, there are 8"),
        (["--plan", "tensor=2", "--mesh", "2"], "`mesh` has no effect with `plan`"),
        (["--plan", "tensor=2", "--hsdp"], "`optimizer_parallel` has no effect with `plan`"),
        (["--plan", "data=3"], "the batch of 8 cannot be split over `data=3` of the plan"),
        ([], "the following arguments are required: --plan"),
    ],
)
def test_wrong_uses_get_one_sentence(capsys, arguments, message):
    assert main(["estimate", GPT, *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
