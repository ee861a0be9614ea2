"""``estimate``, the best named plan, and named plans beside the searches."""

import json

import pytest

from shardwright.cost_model.cluster import cluster
from shardwright.exports.degrees.best import best_named_plan, candidate_plans
from shardwright.ir.units import seconds_text
from shardwright.models import load_model
from shardwright.search.named_plan import NamedPlan
from shardwright.tools.main import main
from tests.extent import long_after

POD = cluster("h100-pod:figures=datasheet")
GPT = "gpt:layers=1,hidden=64,heads=4,batch=8,sequence=16,vocabulary=128,dtype=float32"

# ``estimate``

SIZES = "layers=2,hidden=32,heads=4,batch=8,sequence=8,vocabulary=64"
SMALL = f"gpt:{SIZES},dtype=float32"
PLAN = "tensor=4,data=2,zero=1,sequence_parallel"


def document(capsys, *arguments, code=0):
    assert main(["estimate", *arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_the_document_has_the_figures_of_the_plan(capsys):
    found = document(capsys, SMALL, "--plan", PLAN, "--optimizer", "adam")
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
    estimated = document(capsys, SMALL, "--plan", PLAN)
    assert main(["compile", SMALL, "--devices", "8", "--plan", PLAN, "--json"]) == 0
    compiled = json.loads(capsys.readouterr().out)
    timed = ("search_seconds", "compile_seconds", "peak_memory_bytes", "plan", "memory_limit_bytes")
    assert compiled.keys() <= estimated.keys()
    assert {k: v for k, v in compiled.items() if k not in timed} == {
        k: v for k, v in estimated.items() if k in compiled and k not in timed
    }


@pytest.mark.long
def test_a_step_is_timed_as_a_software_runs_it(capsys):
    ideal = document(capsys, SMALL, "--plan", PLAN)
    timed = document(capsys, SMALL, "--plan", PLAN, "--software", "megatron")
    assert timed["software"] == "megatron"
    assert timed["overlapped_step_seconds"] > ideal["overlapped_step_seconds"]
    assert timed.keys() - ideal.keys() <= {"software", "software_memory"}
    assert "objective" in ideal.keys() - timed.keys()  # it would be another step
    assert timed["exposed_communication_seconds"] <= timed["communication_seconds"]
    for key in ("predicted_step_seconds", "memory_bytes_per_device", "communication"):
        assert timed[key] == ideal[key]
    given = ["--plan", PLAN, "--software", "megatron", "--verbose"]
    assert main(["estimate", SMALL, *given]) == 0
    said = capsys.readouterr().out
    step, serial = (
        seconds_text(timed[key]) for key in ("overlapped_step_seconds", "predicted_step_seconds")
    )
    assert f"{step} as megatron runs it, {serial} serial without it" in said
    assert "assumed: megatron copies, " in said


def test_an_unknown_software_is_refused(capsys):
    assert main(["estimate", SMALL, "--plan", PLAN, "--software", "megaton"]) == 2
    assert "no software profile is called `megaton`; did you mean `megatron`?" in (
        capsys.readouterr().err
    )


@pytest.mark.long
def test_a_sequence_is_that_of_the_model_by_its_name(capsys):
    asked = document(capsys, SMALL.replace("sequence=8,", ""), "--plan", PLAN, "--sequence", "8")
    assert asked["model"] == SMALL.replace("sequence=8,", "") + ",sequence=8"
    named = document(capsys, SMALL, "--plan", PLAN)
    for key in ("overlapped_step_seconds", "memory_by_kind", "model_flops"):
        assert asked[key] == named[key]


def test_data_takes_the_devices_that_are_left(capsys):
    found = document(capsys, SMALL, "--devices", "8", "--plan", "tensor=2")
    assert found["named_plan"] == "tensor=2,data=4"


@pytest.mark.long
def test_a_plan_that_does_not_fit_is_printed_all_the_same(capsys):
    found = document(capsys, SMALL, "--plan", PLAN, "--memory", "1e-6", code=3)
    assert found["fits"] is False
    assert found["overlapped_step_seconds"] > 0
    assert main(["estimate", SMALL, "--plan", PLAN, "--memory", "1e-6"]) == 3
    captured = capsys.readouterr()
    assert "does not fit: parameters" in captured.out
    assert f"the plan `{PLAN}` takes " in captured.err
    assert captured.err.endswith(f"; {NamedPlan.parse(PLAN).hint}\n")


@pytest.mark.long
def test_gathers_that_run_ahead_do_not_decide_what_fits(capsys):
    # Every parameter is gathered twice: with no limit, gathers of all layers would run ahead.
    plan = "data=8,zero=3,recompute=full"
    model = SMALL.replace("layers=2", "layers=6")
    least = document(capsys, model, "--plan", plan, "--memory", "1e-6", code=3)
    needed = least["memory_bytes_per_device"]
    gib = str(1.001 * needed / 2**30)
    found = document(capsys, model, "--plan", plan, "--memory", gib)
    assert found["fits"] is True
    assert found["memory_bytes_per_device"] <= 1.001 * needed
    free = document(capsys, model, "--plan", plan)
    assert free["memory_bytes_per_device"] > 1.001 * needed


def test_a_person_reads_what_the_figures_are(capsys):
    assert main(["estimate", SMALL, "--plan", PLAN, "--verbose"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{SMALL} on 8 devices of h100-pod: {PLAN}\n")
    for line in (" overlapped, ", " tokens/s on each device, ", " of 67 Tflop/s (float32): "):
        assert line in text
    assert "bubble    none: the plan has one stage" in text
    assert "from data sheets" in text.replace("\n          ", " ")


@pytest.mark.parametrize(
    ("model", "arguments", "line"),
    long_after(
        1,
        [
            (
                f"gpt2:{SIZES}",
                (),
                "precision bfloat16 with parameters and optimizer states in float32, ",
            ),
            (f"gpt2:{SIZES}", ("--precision", "float32"), "precision float32; optimizer adam"),
            (
                SMALL,
                ("--precision", "bfloat16"),
                "precision bfloat16 with parameters and optimizer ",
            ),
        ],
    ),
)
def test_the_report_says_the_precision(capsys, model, arguments, line):
    assert main(["estimate", model, "--plan", PLAN, "--verbose", *arguments]) == 0
    said = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("training"))
    assert said.startswith(f"training  {line}")


def test_the_report_does_not_speak_of_the_usual_precision(capsys):
    assert main(["estimate", SMALL, "--plan", PLAN, "--verbose"]) == 0
    assert "\ntraining" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--plan", "tensr=2"], "a named plan has no `tensr`; did you mean `tensor`?"),
        (["--plan", "tensor=2,data=3", "--devices", "8"], "tensor=2 * data=3 is 6, there are 8"),
        (["--plan", "tensor=2", "--mesh", "2"], "`mesh` has no effect with `plan`"),
        (["--plan", "tensor=2", "--recompute", "search"], "`recompute` has no effect with `plan`"),
        (["--plan", "tensor=2", "--hsdp"], "`optimizer_parallel` has no effect with `plan`"),
        (["--plan", "data=2,zero=1.0"], "`zero` of the plan is 1.0, expected 0, 1, 2 or 3"),
        (["--plan", "data=2", "--workers", "3"], "`workers` has no effect with `plan`"),
        (["--plan", "data=2", "--sequence", "8"], "`sequence` of `gpt:layers=2"),
        (["--plan", "data=2", "--sequence", "0"], "`--sequence`"),
        (["--plan", "data=3"], "the batch of 8 cannot be split over `data=3` of the plan"),
        ([], "the following arguments are required: --plan"),
    ],
)
def test_wrong_uses_get_one_sentence(capsys, arguments, message):
    assert main(["estimate", SMALL, *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


# The best


def test_candidates_divide_devices_and_batch():
    texts = [plan.text for plan in candidate_plans(load_model(GPT).graph, POD, 16)]
    assert len(texts) == len(set(texts))
    assert "tensor=2,data=8,zero=1,sequence_parallel" in texts
    assert "tensor=16,data=1" in texts
    assert not any("data=16" in text for text in texts)  # the batch is 8
    assert not any("expert" in text for text in texts)
    mixtral = load_model("mixtral:layers=1,hidden=16,heads=4,kv_heads=2,inner=24,batch=8")
    plans = [*candidate_plans(mixtral.graph, POD, 16)]
    assert {plan.expert for plan in plans} == {1, 2, 4, 8}
    folded = {(plan.tensor, plan.expert) for plan in plans if plan.expert_tensor == 1}
    assert folded == {(2, 2), (2, 4), (2, 8), (4, 4), (4, 8), (8, 8)}


@pytest.mark.long
def test_the_best_named_plan_is_the_fastest_of_all_that_fit(capsys):
    plans = [*candidate_plans(load_model(GPT).graph, POD, 2)]
    found = {
        plan.text: document(capsys, GPT, "--plan", plan.text, "--optimizer", "adam")
        for plan in plans
    }
    whole = best_named_plan(GPT, POD, 2, optimizer="adam")
    assert (whole.evaluated, whole.fitting) == (len(plans),) * 2
    assert whole.step_seconds == min(row["overlapped_step_seconds"] for row in found.values())
    assert whole.compilation.compiled.result.how == whole.plan.text

    needed = {text: row["memory_bytes_per_device"] for text, row in found.items()}
    limit = sorted(needed.values())[1] * 1.0001
    less = best_named_plan(GPT, POD, 2, memory_limit=limit, optimizer="adam")
    assert less.fitting >= sum(nbytes <= limit for nbytes in needed.values()) == 2
    assert less.compilation.plan.document.memory.peak_bytes <= limit
    none = best_named_plan(GPT, POD, 2, memory_limit=10.0)
    assert (none.plan, none.fitting, none.evaluated) == (
        None,
        0,
        2 * len(plans),
    )  # each with full recomputation, too


@pytest.mark.long
def test_named_plans_stand_beside_the_searches(capsys):
    arguments = [GPT, "--devices", "2", "--plan", "tensor=2", "--plan", "zero=3"]
    assert main(["bench", "strategies", *arguments, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    named = [row["named_plan"] for row in rows if row["search"] == "named_plan"]
    assert named[:2] == ["tensor=2,data=1", "data=2,zero=3"]
    assert len(named) == 3
    assert NamedPlan.parse(named[2]).on(2)
    assert rows[-1]["reason"] == "the fastest: 5 of 5 named plans fit"


def test_the_fastest_named_plan_stands_once_where_it_is_asked_for(capsys):
    fastest = best_named_plan(GPT, POD, 2).plan
    others = "zero=3" if fastest.zero != 3 else "tensor=2"
    command = ["bench", "strategies", GPT, "--devices", "2", "--json"]
    assert main([*command, "--plan", fastest.text, "--plan", others]) == 0
    rows = [r for r in json.loads(capsys.readouterr().out) if r["search"] == "named_plan"]
    assert [NamedPlan.parse(row["named_plan"]).on(2) for row in rows][:1] == [fastest]
    assert [row["reason"] and row["reason"].split(":")[0] for row in rows] == ["the fastest", None]


@pytest.mark.parametrize(
    ("plan", "message"),
    [("tensor=3", "tensor=3 does not divide the 4 devices"), ("tensr=3", "no `tensr`; did you")],
)
def test_a_wrong_plan_is_refused_before_the_searches(capsys, plan, message):
    assert main(["bench", "strategies", GPT, "--devices", "4", "--plan", plan]) == 2
    assert message in capsys.readouterr().err


def test_a_named_plan_that_does_not_fit_has_a_document(capsys):
    limit = ["--plan", "tensor=2", "--devices", "4", "--memory", "1e-6", "--json"]
    assert main(["compile", GPT, *limit]) == 3
    found = json.loads(capsys.readouterr().out)
    assert (found["search"], found["named_plan"]) == ("named_plan", "tensor=2,data=2")
    assert (found["status"], found["fits"]) == ("infeasible", False)
    assert found["least_memory_bound"] > found["memory_limit_bytes"]
