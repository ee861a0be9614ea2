"""The commands, and the keys of their JSON documents."""

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from shardwright.ir.text import parse
from shardwright.search.driver import SEARCHES
from shardwright.tools.main import COMMANDS, main

ROOT = Path(__file__).parents[2]
GPT = "gpt:layers=3,hidden=16,heads=2,batch=8,sequence=8,vocabulary=256"
COMPILE_KEYS = {
    "model",
    "devices",
    "mode",
    "search",
    "cost_model",
    "precision",
    "status",
    "out_of_range",
    "objective",
    "objective_is",
    "buckets",
    "lower_bound",
    "lower_bound_covers",
    "gap",
    "predicted_step_seconds",
    "memory_bytes_per_device",
    "search_seconds",
    "compile_seconds",
    "peak_memory_bytes",
    "strategies",
    "parameters",
    "communication",
    "cluster",
    "mesh",
    "how",
    "interrupted",
    "reason",
    "overlapped_step_seconds",
    "step_interval",
    "communication_seconds",
    "exposed_communication_seconds",
    "samples_per_second",
    "tokens_per_second_per_device",
    "model_flops",
    "model_flops_utilization",
    "stages",
    "device_by_group",
    "blocks_by_stage",
    "micro_batches",
    "named_plan",
    "fits",
    "memory_limit_bytes",
    "memory_limit_by_group",
    "memory_by_kind",
    "memory_by_group",
    "window_bytes",
    "host_memory_bytes_per_device",
    "bubble_seconds",
    "accumulate_type",
    "micro_batch_statistics",
    "reduce_type",
    "least_memory_bytes",
    "least_memory_bound",
    "search_trace",
    "mesh_shapes",
    "mesh_lower_bounds",
    "pin_prices",
    "recomputed",
    "offloaded",
    "plan",
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def printed(capsys, *arguments):
    """Run a command and return what it prints."""
    assert main([str(argument) for argument in arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def document(capsys, *arguments):
    return json.loads(printed(capsys, *arguments, "--json"))


def test_help_names_every_command():
    command = [sys.executable, "-m", "shardwright", "--help"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert all(name in run.stdout for name in COMMANDS)


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from shardwright.tools.main import main; main([]); "
        "print(*sorted({'numpy', 'rich', 'ortools', 'pydantic', 'networkx'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.endswith("shows the options of a command.\n\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: shardwright {command}")


def test_no_command_prints_the_overview(capsys):
    assert printed(capsys).startswith("usage: shardwright COMMAND ...")


def test_compile_prints_one_document(capsys, here):
    found = document(capsys, "compile", GPT, "--devices", "8", "--optimizer", "adam")
    assert set(found) == COMPILE_KEYS
    assert (found["model"], found["devices"]) == (GPT, 8)
    assert (found["mode"], found["search"], found["cost_model"]) == (
        "auto_parallel",
        "exact",
        "time",
    )
    assert found["status"] == "optimal"
    assert found["gap"] <= 1e-9
    assert found["objective"] == pytest.approx(found["predicted_step_seconds"])
    assert found["lower_bound"] == pytest.approx(found["objective"])
    # The search is told in seconds of counted work, the compilation in those of the clock.
    assert min(found["search_seconds"], found["compile_seconds"]) > 0
    assert found["strategies"]["gather_0"] == [[1, 1], [1, 1]]
    assert found["parameters"]["embedding.embedding_table"] == "[*, *]"
    name = "gpt-layers3-hidden16-heads2-batch8-sequence8-vocabulary256-8"
    assert (here / "plans" / name / "plan.json").is_file()


@pytest.mark.long
def test_compile_tells_a_person(capsys, here):
    arguments = ["--devices", "8", "--search", "tensor_parallel", "--out", "plan"]
    text = printed(capsys, "compile", GPT, *arguments, "--verbose")
    place = "on 8 devices of h100-pod, mesh x=2 y=2 z=2: auto_parallel, search tensor_parallel"
    assert text.startswith(f"{GPT}\n{place}\n")
    assert re.search(r"blocks/\*/layernorm1/layer_norm +3x +", text)
    assert re.search(r"projection/matmul +3x +1x1x8 1x8 +k=x@y@z +", text)
    assert re.search(r"blocks\.\*\.attention\.projection\.weight +3x +f32\[16, 16\]", text)
    assert "adds up blocks/*/feed_forward/projection/matmul, whose factor k is split" in text
    assert re.search(
        r"\nstep +serial [\d.]+ [um]s, overlapped [\d.]+ [um]s \(communication concurrent", text
    )
    assert re.search(
        r"memory +[\d.]+ KiB of 80.00 GiB \(6 % in reserve\) on each device: parameters [\d.]+ KiB",
        text,
    )
    assert "feasible on mesh 2x2x2, no lower bound (tensor_parallel)" in text
    assert re.search(r"network +a device sends [\d.]+ KiB in a step: \d+ \w+", text)
    assert "\nwritten   plan: model.ir, plan.json, program.ir, strategies.json, rank_" in text
    assert len(text.splitlines()) < 100
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.long
def test_the_first_answer_is_one_screen_in_words(capsys, here):
    arguments = ["--devices", "16", "--plan", "tensor=2,zero=3", "--out", "plan"]
    model = GPT.replace("batch=8,", "")
    title, devices, words, figures, *rest = printed(
        capsys, "compile", model, *arguments, "--html"
    ).splitlines()
    assert (title, devices) == (
        f"{model},batch=16",
        "on 16 devices of h100-pod, mesh data_pod=2 data_node=4 tensor=2: auto_parallel, search "
        "named_plan",
    )
    assert words == ("16 H100 SXM5 80GB: tensor parallel over 2, FSDP over 8, no recomputation")
    assert re.match(
        r"[\d.]+ ms a step, [\d,]+ tokens/s a device, \d+% MFU, [\d.]+ KiB of ", figures
    )
    assert rest[1:3] == [
        "trained in bfloat16, adam, batch 16 of 8 tokens (chosen: 1 sample for each device, as the "
        "model's",
        "  own batch does not divide over 16; `--batch` sets it)",
    ]
    assert len(rest) < 36
    assert rest[-2:] == [
        "more      `--verbose` tells the rest, `--html` writes a page to look at",
        "page      plan/report.html",
    ]
    assert "FSDP over 8" in (here / "plan" / "report.html").read_text()


def test_a_model_that_keeps_all_in_bfloat16_is_not_trained_in_float32(capsys):
    model = "gpt:layers=1,hidden=8,heads=2,sequence=8,vocabulary=16,dtype=bfloat16"
    words = ["estimate", model, "--batch", "2", "--plan", "data=2", "--precision", "float32"]
    assert main(words) == 0
    told = "trained in bfloat16, parameters and states too, sgd, batch 2 of 8 tokens"
    assert told in capsys.readouterr().out.splitlines()


@pytest.mark.long
def test_a_training_is_told_with_failures(capsys):
    given = ["estimate", GPT, "--plan", "data=8,zero=1", "--tokens", "1e12"]
    asked = [*given, "--price-per-hour", "2", "--failures", "mtbf=8000,checkpoint=72,restart=600"]
    said = " ".join(printed(capsys, *asked).split())
    found = document(capsys, *asked)
    days = 1e12 / 64 * found["overlapped_step_seconds"] / 86400
    assert found["days"] == pytest.approx(days)
    assert found["money"] == pytest.approx(24 * 2 * 8 * days)
    failures = found["failures"]
    assert failures["apart_seconds"] == 3600 * 1000
    assert failures["days"] / days == pytest.approx(failures["money"] / found["money"])
    assert "one in 41.7 days (one of a device in 8,000 h), a checkpoint of 72 s (as given)" in said
    told = " ".join(printed(capsys, *given).split())
    assert "(one of a device in 50,677 h, as of Llama 3's 16,384 H100)" in told
    alone = " ".join(printed(capsys, *given, "--failures", "none").split())
    assert "days, without failures" in alone
    assert document(capsys, *given, "--failures", "none")["failures"] is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ["--price-per-hour", "2"],
            "`--price-per-hour` has no effect without the tokens to train on; add `--tokens 1e12`",
        ),
        (
            ["--failures", "none"],
            "`--failures` has no effect without the tokens to train on; add `--tokens 1e12`",
        ),
        (
            ["--tokens", "1e9", "--failures", "often"],
            "`--failures` is the text `often`, expected `none`, or "
            "`mtbf=50677,checkpoint=60,restart=600`",
        ),
        (
            ["--tokens", "1e9", "--failures", "mtbf=1,mtbf=2"],
            "`--failures` gives `mtbf` twice; give it once",
        ),
        (
            ["--tokens", "1e9", "--failures", "mtbf=0"],
            "`mtbf` of `--failures` is 0, expected a number above 0",
        ),
    ],
)
@pytest.mark.parametrize("command", ["compile", "estimate", "fit"])
def test_wrong_questions_about_a_training(command, given, said, capsys):
    plan = ["--plan", "data=2"] if command == "estimate" else []
    assert main([command, GPT, "--devices", "2", *plan, *given]) == 2
    assert capsys.readouterr().err == f"shardwright: {said}\n"


@pytest.mark.long
def test_a_deep_model_stays_a_screen(capsys):
    deep = GPT.replace("layers=3", "layers=12")
    arguments = ["--devices", "4", "--search", "fully_sharded", "--full"]
    shallow = printed(capsys, "compile", GPT, *arguments)
    text = printed(capsys, "compile", deep, *arguments)
    assert abs(len(text.splitlines()) - len(shallow.splitlines())) <= 2  # lines that go on below


@pytest.mark.long
def test_small_operators_are_counted_and_shown_when_asked_for(capsys):
    arguments = ["compile", "gpt:layers=3", "--devices", "2"]
    text = printed(capsys, *arguments, "--verbose")
    hidden = re.search(r"\n(\d+) more, each row at most 0.\d% ", text)
    assert hidden
    assert "loss/log" not in text
    assert "loss/log" in printed(capsys, *arguments, "--full")
    screen = printed(capsys, *arguments).splitlines()
    assert len(screen) < 36
    assert {"step", "memory", "plan", "written"} <= {line.partition(" ")[0] for line in screen}


def test_gradients_are_reduced_together(capsys):
    arguments = ["compile", "mlp", "--devices", "4", "--mesh", "4", "--mode", "data_parallel"]
    alone = document(capsys, *arguments)["communication"]["all_reduce"]
    fused = document(capsys, *arguments, "--fusion", "64")["communication"]["all_reduce"]
    assert (alone["count"], fused["count"]) == (7, 2)  # six gradients, and the loss
    assert fused["bytes"] == pytest.approx(alone["bytes"])


def test_the_timeline_is_written(capsys, here):
    printed(capsys, "compile", GPT, "--devices", "2", "--trace", "step.json")
    events = json.loads((here / "step.json").read_text())["traceEvents"]
    assert any(event.get("cat") == "matmul" for event in events)


def test_options_reach_the_compiler(capsys, here):
    options = ["--mesh", "data=2,model=4", "--batch", "16", "--cluster", "cpu", "--seed", "7"]
    options += ["--optimizer", "momentum", "--learning-rate", "0.5", "--loss-scale", "8"]
    options += ["--ranks", "1,3-4", "--out", "plan", "--dataset-strategy", "data_parallel"]
    document(capsys, "compile", "mlp", "--devices", "8", *options)
    found = json.loads((here / "plan" / "plan.json").read_text())
    assert [axis["name"] for axis in found["mesh"]] == ["data", "model"]
    assert (found["model"], found["seed"], found["loss_scale"]) == ("mlp:batch=16", 7, 8.0)
    assert found["cluster"]["name"] == "cpu"
    settings = {"learning_rate": 0.5}
    assert found["optimizer"] == {"kind": "momentum", "settings": settings, "overrides": {}}
    listings = sorted(path.name for path in (here / "plan").glob("rank_*"))
    assert listings == ["rank_00001.ir", "rank_00003.ir", "rank_00004.ir"]
    program = parse((here / "plan" / "program.ir").read_text())
    assert program.values["image"].layout.splits == (("data", "model"), ())


def test_graphs_of_every_pass(capsys, here, monkeypatch):
    document(capsys, "compile", "mlp", "--devices", "2", "--dump-ir", "graphs")
    names = [path.name for path in sorted((here / "graphs").iterdir())]
    assert names[:3] == ["00_canonicalize.ir", "01_annotate.ir", "02_partition.ir"]
    monkeypatch.setenv("SHARDWRIGHT_SAVE_GRAPHS", "3")
    monkeypatch.setenv("SHARDWRIGHT_SAVE_GRAPHS_PATH", "saved")
    document(capsys, "compile", "mlp", "--devices", "2")
    saved = {path.name for path in (here / "saved" / "rank_0").iterdir()}
    stem = "02_partition"
    assert {f"{stem}.ir", f"{stem}_begin.ir", f"{stem}.dot", f"{stem}.json"} <= saved


def test_the_cost_model_of_mindspore(capsys):
    found = document(capsys, "compile", "mlp", "--devices", "4", "--cost-model", "mindspore")
    assert found["cost_model"] == "mindspore"
    assert found["status"] == "optimal"
    assert found["objective"] != pytest.approx(found["predicted_step_seconds"])


# Running


def test_a_classifier_learns_the_digits(capsys, here):
    pytest.importorskip("sklearn", reason="scikit-learn, which has the digits, is not installed")
    options = ["--optimizer", "momentum", "--learning-rate", "0.1", "--search", "tensor_parallel"]
    document(capsys, "compile", "mlp:batch=64,hidden=32", "--devices", "4", *options)
    plan = here / "plans" / "mlp-batch64-hidden32-4"
    found = document(capsys, "run", plan, "--steps", "30")
    assert {"losses", "seconds_per_step"} < set(found)
    assert len(found["losses"]) == 30
    assert found["losses"][0] == pytest.approx(np.log(10), rel=0.1)
    assert found["losses"][-1] < 1
    logs = sorted((plan / "logs").rglob("stdout"))
    assert [str(log.relative_to(plan / "logs")) for log in logs] == [
        f"rank.{rank}/stdout" for rank in range(4)
    ]
    last = logs[3].read_text().splitlines()[-1]
    assert last == f"epoch: 2 step: 2, loss is {found['losses'][-1]}"


@pytest.mark.long
def test_a_language_model_learns_a_text(capsys, here):
    options = ["--optimizer", "adam", "--learning-rate", "0.01", "--out", "plan"]
    document(capsys, "compile", GPT, "--devices", "2", *options)
    text = printed(capsys, "run", "plan", "--steps", "40")
    assert text.startswith(f"{GPT} on 2 ranks, training on bytes of\nPython's manual\n")
    losses = [float(loss) for loss in re.findall(r"\n *\d+-\d+ +(\d\.\d+) ", text)]
    assert len(losses) == 10
    assert losses[0] == pytest.approx(np.log(256), rel=0.1)
    assert losses[-1] < 0.75 * losses[0]


@pytest.mark.long
def test_every_plan_trains_alike(capsys, here):
    losses = []
    for search in ("data_parallel", "tensor_parallel", "fully_sharded"):
        arguments = ["--devices", "4", "--search", search, "--out", search]
        document(capsys, "compile", GPT, *arguments, "--precision", "float32")
        losses.append(document(capsys, "run", search, "--steps", "4")["losses"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert losses[2] == pytest.approx(losses[0], rel=1e-5)


def test_training_goes_on_from_a_checkpoint_under_another_plan(capsys, here):
    for search in ("data_parallel", "tensor_parallel"):
        options = ["--search", search, "--optimizer", "adam", "--out", search]
        document(capsys, "compile", "mlp:hidden=16", "--devices", "2", *options)
    whole = document(capsys, "run", "data_parallel", "--steps", "1", "--save", "state.npz")
    first = document(capsys, "run", "data_parallel", "--steps", "1", "--resume", "state.npz")
    other = document(capsys, "run", "tensor_parallel", "--steps", "1", "--resume", "state.npz")
    assert other["losses"] == pytest.approx(first["losses"], rel=1e-6)
    assert first["losses"][0] < whole["losses"][0]


@pytest.mark.parametrize("compressed", [False, True])
def test_images_of_a_folder(compressed, capsys, here):
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (50, 28, 28), np.uint8)
    labels = random.integers(0, 10, 50).astype(np.uint8)
    for name, array in (("images-idx3", images), ("labels-idx1", labels)):
        header = bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">i4").tobytes()
        content = header + array.tobytes()
        path = here / f"train-{name}-ubyte{'.gz' if compressed else ''}"
        path.write_bytes(gzip.compress(content) if compressed else content)
    document(capsys, "compile", "mlp:hidden=16", "--devices", "2", "--out", "plan")
    text = printed(capsys, "run", "plan", "--steps", "2", "--data", here)
    assert f"training on images in {here}" in text.replace("\n", " ")


def test_a_model_of_no_known_data_learns_random_samples_by_heart(capsys, here):
    document(capsys, "compile", "two_matmul:batch=8", "--devices", "2", "--out", "plan")
    text = printed(capsys, "run", "plan", "--steps", "2")
    assert "training on random samples" in text


# The other commands


def test_dump_of_a_model_and_of_passes(capsys):
    model = parse(printed(capsys, "dump", GPT))
    assert (model.mesh, model.name) == (None, "gpt")
    partitioned = parse(
        printed(capsys, "dump", GPT, "--devices", "4", "--after", "partition", "--mesh", "2x2")
    )
    assert str(partitioned.mesh) == "x=2 x y=2"
    assert "digraph" in printed(capsys, "dump", GPT, "--format", "dot")
    dot = printed(
        capsys,
        "dump",
        "mlp",
        "--devices",
        "2",
        "--cluster",
        "cpu",
        "--after",
        "lower_redistributions",
        "--format",
        "dot",
    )
    assert re.search(r"fillcolor=lightblue, label=\"all_reduce", dot)
    assert not re.search(r"fillcolor=lightblue, label=\"matmul", dot)
    assert json.loads(printed(capsys, "dump", GPT, "--format", "json"))["name"] == "gpt"


def test_dump_of_what_a_pass_changes(capsys):
    arguments = ["dump", "two_matmul", "--devices", "4", "--cluster", "cpu", "--gap", "0.3"]
    arguments.append("--diff")
    lines = printed(capsys, *arguments, "lower_redistributions").splitlines()
    assert lines[:2] == ["--- before lower_redistributions", "+++ after lower_redistributions"]
    gone = [line for line in lines[2:] if line.startswith("-")]
    new = [line for line in lines[2:] if line.startswith("+")]
    assert gone
    assert all("= redistribute(" in line for line in gone)
    assert not any("= redistribute(" in line for line in new)
    assert printed(capsys, *arguments, "canonicalize") == "`canonicalize` changes nothing\n"


def test_dump_of_a_plan_and_of_ranks(capsys):
    arguments = ["--devices", "32", "--search", "fully_sharded", "--out", "plan"]
    document(capsys, "compile", "mlp", *arguments)
    assert parse(printed(capsys, "dump", "plan")).mesh.size == 32
    text = printed(capsys, "dump", "plan", "--rank", "21")
    assert text.startswith("# rank 21 of 32 at x=2 y=5\n")
    bound = json.loads(printed(capsys, "dump", "plan", "--rank", "21", "--format", "json"))
    assert bound["name"] == "mlp.rank_00021"
    assert printed(capsys, "dump", "mlp", "--rank", "21", *arguments[:4]) == text


@pytest.mark.long
def test_every_search_side_by_side(capsys):
    models = ["mlp:batch=64,hidden=16", "two_matmul"]
    found = document(capsys, "bench", "strategies", *models, "--devices", "4")
    assert [(row["model"], row["search"]) for row in found] == [
        (model, search) for model in models for search in (*SEARCHES, "named_plan")
    ]
    for row in found:
        assert set(row) == COMPILE_KEYS - {"strategies"}
        assert row["objective"] >= row["lower_bound"] * (1 - 1e-9)
        best = found[0 if row["model"] == models[0] else len(SEARCHES) + 1]
        if row["mesh"] == best["mesh"]:
            assert row["objective"] >= best["objective"] * (1 - 1e-9)
    text = printed(capsys, "bench", "strategies", models[1], "--devices", "4")
    assert re.search(r"exact +[\d.]+ us +0% ", text)


@pytest.mark.long
def test_what_does_not_fit_is_said(capsys):
    arguments = ["mlp", "--devices", "4", "--memory", "0.003", "--gap", "0.3"]
    rows = document(capsys, "bench", "strategies", *arguments)
    assert rows[0]["memory_bytes_per_device"] <= 0.003 * 2**30
    lines = printed(capsys, "bench", "strategies", *arguments).splitlines()
    fits = {line.split()[0]: line.split()[-7] for line in lines if line.startswith(tuple(SEARCHES))}
    assert fits["exact"] == "yes"
    assert fits["data_parallel"] == "no"


def test_lists(capsys):
    models = printed(capsys, "models")
    assert all(f"\n{name} " in models for name in ("bert", "gpt", "mlp", "two_matmul"))
    clusters = printed(capsys, "clusters")
    assert all(f"\n{name} " in clusters for name in ("cpu", "h100-pod", "ascend910-racks"))
