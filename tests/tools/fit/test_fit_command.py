"""``shardwright fit``: its answers, its document and its errors."""

import json
from argparse import ArgumentParser

import pytest

from shardwright.compiler.evaluation.evaluated import evaluated
from shardwright.compiler.fit.simplest import kinds
from shardwright.cost_model.cluster import cluster as cluster_named
from shardwright.cost_model.efficiency.intervals import Apart
from shardwright.ir.units import bytes_text
from shardwright.search.named_plan import NamedPlan
from shardwright.tools import fit
from shardwright.tools.answers.training import Asked
from shardwright.tools.fit import answers as answers_module
from shardwright.tools.fit import fit_report
from shardwright.tools.fit.answers import Answers
from shardwright.tools.fit.fit_document import answers_document
from shardwright.tools.fit.fit_report import print_answers
from shardwright.tools.fit.subject import Subject
from shardwright.tools.main import main
from shardwright.tools.plan_files import read_types
from tests.extent import first

MODEL = "llama:layers=2,hidden=512,heads=2,kv_heads=2,inner=1024,sequence=512,vocabulary=8000"
GIVEN = ["fit", MODEL, "--batch", "8", "--precision", "bfloat16", "--optimizer", "adam"]


@pytest.mark.long
def test_the_document_answers_all_questions(capsys):
    money = ["--tokens", "1e9", "--price-per-hour", "2"]
    options = ["--devices", "1,2", "--memory", "0.4", "--robust", *money, "--json"]
    assert main([*GIVEN, *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fits"]
    assert found["built"]["memory_bytes_per_device"] <= found["memory_limit_bytes"]
    assert found["built"]["out_of_range"] is None
    assert found["fewest_devices"]["devices"] >= found["least_devices_proven"]
    assert [row["devices"] for row in found["by_devices"]] == [1, 2]
    assert {"recomputation", "ZeRO", "devices"} <= {row["kind"] for row in found["changes"]}
    assert found["front"] == sorted(found["front"], key=lambda row: row["step_seconds"])
    assert found["largest_micro_batch"]["of_any_batch"] >= found["largest_micro_batch"]["of_batch"]
    assert found["largest_micro_batch"]["of_batch"] >= 1
    assert found["longest_sequence"]["of_family"] >= found["longest_sequence"]["of_plan"] >= 512
    assert list(found["robust"]["intervals"]) == ["compute", "node", "overlap"]
    assert found["robust"]["worst_regret"] <= found["robust"]["worst_regret_of_fastest"]
    best = found["best"]
    assert best["money"] == pytest.approx(best["days"] * 24 * 2 * 2)
    assert best["days"] == pytest.approx(1e9 / (8 * 512) * best["step_seconds"] / 86400)


@pytest.mark.long
def test_any_number_of_processes_answers_the_same(capsys):
    given = [*GIVEN, "--devices", "4", "--memory", "0.3", "--software", "megatron-core"]
    texts = []
    for workers in ("1", "2", "3"):
        assert main([*given, "--workers", workers]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] == texts[2]


def test_a_number_of_processes_is_none_below_zero(capsys):
    assert main([*GIVEN, "--devices", "4", "--workers", "-1"]) != 0
    assert "--workers" in capsys.readouterr().err


def asked(devices: int, memory: float, *more: str) -> Answers:
    """Return the answers for a number of devices and a limit, which are computed when asked for."""
    parser = ArgumentParser()
    fit.add_arguments(parser)
    given = ["--devices", str(devices), "--memory", str(memory), *more]
    arguments = parser.parse_args([*GIVEN[1:], *given])
    read_types(arguments)
    return Answers(Subject(arguments), devices)


@pytest.fixture(scope="module")
def answers():
    """Return what is found on four devices."""
    return asked(4, 0.3)


@pytest.mark.long
def test_people_read_the_same(answers, capsys):
    print_answers(answers, [], Asked(), verbose=True)
    printed = capsys.readouterr().out
    lines = (
        "fits",
        "devices",
        "best plan",
        "micro-batch",
        "sequence",
        "change",
        "family",
        "figures",
    )
    for word in lines:
        assert f"\n{word}" in printed
    assert "`--cluster h100` has attained rates" in " ".join(printed.split())
    assert "what a change costs" in printed
    print_answers(answers, [], Asked())
    screen = capsys.readouterr().out
    assert "plans of Megatron's family" in " ".join(screen.split())
    assert len(screen.splitlines()) < 40
    assert "what a change costs" in screen


@pytest.mark.long
def test_the_simplest_plan_is_chosen_of_those_that_are_not_told_apart(monkeypatch, capsys):
    monkeypatch.setattr(answers_module, "told_apart", lambda *_: Apart(9.0, "fitted", "no pair"))
    found = asked(4, 0.3)
    other = NamedPlan.parse("tensor=2,data=2,micro_batch=2,zero=1,sequence_parallel")
    found.fastest = evaluated(found.model, other, 4)
    assert found.fastest is not None
    assert found.best is not None
    assert kinds(found.best.plan) < kinds(found.fastest.plan)
    assert all(found.tells(one) is False for one in found.changes if one.kind == "degrees")
    assert all(found.tells(one) is None for one in found.changes if one.kind == "devices")
    print_answers(found, [], Asked())
    printed = " ".join(capsys.readouterr().out.split())
    assert "the simplest of those that are not told from the fastest of " in printed
    assert "steps that differ by less than 900% are not told apart by published plans" in printed
    assert f"the fastest is `{found.fastest.plan}`, " in printed
    assert "with 2 kinds of parallelism for 1" in printed
    assert "; ~ steps that are not told apart" in printed
    document = answers_document(found, Asked())
    assert document["apart"]["share"] == 9.0
    assert document["best"]["plan"] == document["built"]["plan"] == found.best.plan.text
    assert document["fastest"]["plan"] == found.fastest.plan.text


def built_bytes(plan, capsys, model=MODEL):
    given = ["estimate", model, *GIVEN[2:], "--devices", "4", "--memory", "0.3", "--json"]
    main([*given, "--plan", plan])
    return json.loads(capsys.readouterr().out)["memory_bytes_per_device"]


@pytest.mark.long
def test_the_longest_sequence_of_the_plan_fits_once_it_is_built_and_the_next_does_not(
    answers, capsys
):
    found = answers_document(answers, Asked())
    plan, limit = found["built"]["plan"], found["memory_limit_bytes"]
    longest = found["longest_sequence"]["of_plan"]
    for sequence, fits in ((longest, True), (longest + 64, False)):
        model = MODEL.replace("sequence=512", f"sequence={sequence}")
        assert (built_bytes(plan, capsys, model) <= limit) == fits


@pytest.mark.long
def test_every_step_and_memory_that_is_told_is_that_of_estimate(answers, capsys):
    document = answers_document(answers, Asked())
    rows = [document["best"], *document["front"], *document["changes"]]
    rows = [row for row in rows if row["devices"] == 4 and row.get("kind") != "precision"]
    for row in rows[:: max(len(rows) // 4, 1)]:
        given = ["estimate", MODEL, *GIVEN[2:], "--devices", "4", "--memory", "0.3", "--json"]
        main([*given, "--plan", row["plan"]])
        built = json.loads(capsys.readouterr().out)
        assert row["step_seconds"] == pytest.approx(built["overlapped_step_seconds"], rel=1e-6)
        assert row["memory_by_kind"] == pytest.approx(built["memory_by_kind"], rel=1e-6)
        assert row["fits"] == built["fits"]


@pytest.mark.long
@pytest.mark.parametrize(("devices", "memory"), first(1, [(1, 0.4), (2, 0.3), (2, 0.4)]))
def test_the_plan_that_is_built_fits_as_the_software_keeps_tensors(devices, memory, capsys):
    found = asked(devices, memory, "--software", "megatron-core")
    assert found.built is not None
    assert found.kept.report.peak_bytes <= found.model.limit_bytes
    assert found.built.plan.document.memory.peak_bytes <= found.model.limit_bytes
    fit_report._print_plan(found, found.subject_plan, Asked())
    told = " ".join(capsys.readouterr().out.split())
    kept = f"{bytes_text(found.kept.report.peak_bytes)} of {bytes_text(found.kept.limit)}"
    assert f"as megatron-core keeps tensors: {kept}" in told
    assert "which does not fit" not in told


@pytest.mark.long
def test_no_plan_is_said_to_fit_where_the_software_alone_takes_more():
    assert asked(1, 0.5).best is not None
    found = asked(1, 4, "--software", "torchtitan")
    assert found.best is None
    assert found.built is None


@pytest.mark.long
def test_a_limit_of_the_user_stands_for_the_memory_of_the_device(tmp_path, capsys):
    cluster = cluster_named("h100-3200g").model_dump(mode="json", exclude={"software"})
    cluster["device"]["memory_bytes"] = 2**28
    (tmp_path / "small.json").write_text(json.dumps(cluster))
    given = ["--cluster", str(tmp_path / "small.json"), "--memory", "1", "--devices", "2"]
    given += ["--software", "megatron-core"]
    plan = ["--plan", "data=2,micro_batch=1"]
    assert main([*GIVEN, *given]) == main(["estimate", *GIVEN[1:], *given, *plan]) == 0
    assert "does not fit" not in capsys.readouterr().out
    given = given[:2] + given[4:]  # what the device has: a quarter of that
    capsys.readouterr()
    assert main(["estimate", *GIVEN[1:], *given, *plan]) == 3
    told = " ".join(capsys.readouterr().out.split())
    assert " of 256.00 MiB as it keeps tensors, which does not fit" in told
    assert " of the device's 256.00 MiB as megatron-core keeps tensors, does not fit" in told


@pytest.mark.long
def test_what_cannot_fit_is_proven(capsys):
    assert main([*GIVEN, "--devices", "2", "--memory", "0.05"]) == 3
    captured = capsys.readouterr()
    assert "no, proven" in captured.out
    assert "parameters and optimizer states" in captured.err


def test_what_was_not_found_is_not_said_to_be_impossible(capsys):
    assert main([*GIVEN, "--devices", "1", "--memory", "0.18"]) == 4
    captured = capsys.readouterr()
    assert "no plan of this family was found that fits" in captured.out
    assert "use 2 devices" in captured.err or "use 4 devices" in captured.err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--devices", "0"], "`--devices` is 0, expected an integer of at least 1"),
        (["--devices", "4,many"], "`--devices` is the text `many`, expected an integer"),
        (["--devices", "4", "--price-per-hour", "2"], "has no effect without the tokens"),
        (["--devices", "4", "--tokens", "-1"], "`--tokens` is -1, expected a number above 0"),
        (["--devices", "4", "--errors", "pod=0.1"], "`--errors` has no effect without"),
        (["--devices", "4", "--robust", "--errors", "rack=0.1"], "has no figure `rack`"),
        (["--devices", "4", "--robust", "--errors", "pod"], "`pod` of `--errors` has no value"),
        (["--devices", "4", "--robust", "--errors", "node=2"], "node of --errors` is 2, expected"),
        (["--devices", "4", "--robust", "--errors", "node=0,node=0"], "gives `node` twice"),
        (
            ["--devices", "4,8", "--robust", "--errors", "pod=0.3"],
            "`--errors` gives `pod`, and 8 devices do not use these links; leave it out",
        ),
        (["--devices", "4", "--sequence", "x"], "`--sequence` is the text `x`"),
        (["--devices", "4", "--memory", "inf"], "`--memory` is inf, expected a number above 0"),
        (["--devices", "4", "--sequence", "256"], "the size `sequence` of `llama:layers=2,"),
        (["--devices", "4096"], "has 2048 devices, but 4096 were asked for"),
    ],
)
def test_a_wrong_value_gets_one_sentence(options, sentence, capsys):
    assert main([*GIVEN, *options]) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.err.count("\n") == 1
    assert not captured.out


@pytest.mark.parametrize(
    "model",
    ["mlp", "llama:layers=2,dtype=float16", "llama:layers=1,batch=2"],
)
def test_models_without_a_family_are_refused(model, capsys):
    assert main(["fit", model, "--devices", "4"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.long
def test_compile_builds_the_robust_plan(tmp_path, capsys):
    options = [*GIVEN[1:], "--devices", "2", "--memory", "0.4", "--robust", "--json"]
    assert main(["compile", *options, "--out", str(tmp_path / "plan")]) == 0
    compiled = json.loads(capsys.readouterr().out)
    assert compiled["fits"]
    assert compiled["named_plan"].startswith("data=2")


def test_compile_checks_the_errors_of_the_robust_choice(tmp_path, capsys):
    options = ["--devices", "4", "--robust", "--errors", "rack=0.1"]
    assert main(["compile", *GIVEN[1:], *options, "--out", str(tmp_path / "plan")]) == 2
    assert "has no figure `rack`" in capsys.readouterr().err
