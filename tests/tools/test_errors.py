"""Every mistake of the user gives one sentence, exit code 2, and leaves nothing behind."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shardwright.api import compile
from shardwright.compiler.plans.files import document_digest
from shardwright.cost_model.cluster import preset_names
from shardwright.tools.main import main
from tests.told import without_untested

ROOT = Path(__file__).parents[2]
MODELS = Path(__file__).with_name("hybrid_model.py")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def complaint(capsys, *arguments):
    """Return what a command that fails says, and check that it says nothing else."""
    assert main([str(argument) for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("shardwright: ")
    assert captured.err.count("\n") == 1
    return captured.err.removeprefix("shardwright: ").rstrip("\n")


COMPILE = {
    "unknown_model": (
        ["mpl", "--devices", "4"],
        "no model is called `mpl`; did you mean `mlp`?",
    ),
    "unknown_size": (
        ["mlp:hiden=3", "--devices", "4"],
        "`mlp` has no size `hiden`; did you mean `hidden`?",
    ),
    "size_that_is_no_number": (
        ["mlp:batch=many", "--devices", "4"],
        "`batch` of `mlp` is `many`, expected type int",
    ),
    "missing_model_file": (
        ["nowhere.py:net", "--devices", "4"],
        "there is no file `nowhere.py`; write `path/to/file.py:function`",
    ),
    "unknown_operator": (
        [f"{MODELS}:wrong_operator", "--devices", "4"],
        "AttributeError: no operator is called `rleu` (in hybrid_model.py:76: return ops.rleu(x))",
    ),
    "shape_mismatch": (
        [f"{MODELS}:wrong_shape", "--devices", "4"],
        "matmul: factor `k` is 4 elsewhere but 5 here (in `layer`, hybrid_model.py:84: return "
        "self.layer(x))",
    ),
    "model_without_loss": (
        [f"{MODELS}:no_loss", "--devices", "4"],
        "the first output `add_1` of the model is f32[8, 6], expected a real scalar; a model that "
        "is trained returns its loss first",
    ),
    "model_that_fails": (
        [f"{MODELS}:fails", "--devices", "4"],
        f"ZeroDivisionError: division by zero (in {MODELS}, line 96)",
    ),
    "mesh_of_other_size": (
        ["mlp", "--devices", "8", "--mesh", "3x2"],
        "mesh shape `3x2` has 6 ranks, but there are 8 devices; the sizes of the axes multiply to "
        "the number of devices",
    ),
    "mesh_that_is_none": (
        ["mlp", "--devices", "8", "--mesh", "round"],
        "`round` is not a mesh shape; write `2x4` or `data=2,model=4`",
    ),
    "too_many_devices": (
        ["mlp", "--devices", "4096"],
        "cluster `h100-pod` has 2048 devices, but 4096 were asked for; use 1 to 2048 devices, or a "
        "larger cluster",
    ),
    "no_devices": (
        ["mlp", "--devices", "0"],
        "`--devices` is 0, expected an integer of at least 1",
    ),
    "unknown_cluster": (
        ["mlp", "--devices", "8", "--cluster", "h100pod"],
        "no cluster is called `h100pod`; did you mean `h100-pod`? there are "
        f"{', '.join(sorted((*preset_names(), 'h100-a100')))}, or a .yaml or .json file",
    ),
    "missing_cluster_file": (
        ["mlp", "--devices", "8", "--cluster", "mine.yaml"],
        "cannot read cluster file `mine.yaml`: No such file or directory",
    ),
    "unknown_search": (
        ["mlp", "--devices", "8", "--search", "quick"],
        "`--search` is `quick`, expected exact, dynamic_programming, recursive_programming, "
        "sharding_propagation, data_parallel, tensor_parallel or fully_sharded",
    ),
    "unknown_option": (
        ["mlp", "--devices", "8", "--frobnicate"],
        "unrecognized arguments: --frobnicate; see `shardwright compile --help`",
    ),
    "missing_strategies": (
        ["mlp", "--devices", "8", "--strategies", "pins.json"],
        "the strategies cannot be read: no such file or directory (in pins.json)",
    ),
    "indivisible_batch": (
        ["mlp", "--devices", "8", "--batch", "7", "--mode", "data_parallel"],
        "`image` has a batch of 7, it cannot be split over 8 devices; use a batch that 8 divides",
    ),
    "size_given_twice": (
        ["mlp:hidden=64,hidden=32", "--devices", "8"],
        "the size `hidden` of `mlp` is given twice; give it once",
    ),
    "size_beyond_64_bits": (
        ["mlp:batch=99999999999999999999", "--devices", "8"],
        "a tensor of shape (99999999999999999999, 784) has 313599999999999999996864 bytes, "
        "expected at most 2^63 - 1",
    ),
    "negative_seed": (
        ["mlp", "--devices", "8", "--seed", "-1"],
        "`--seed` is -1, expected an integer of at least 0",
    ),
    "misspelt_option": (
        ["mlp", "--devices", "8", "--memry", "3"],
        "unrecognized arguments: --memry 3; did you mean `--memory`?",
    ),
    "batch_given_twice": (
        ["mlp:batch=8", "--devices", "8", "--batch", "8"],
        "the size `batch` of `mlp:batch=8` is given twice; give it once",
    ),
    "ranks_the_wrong_way_round": (
        ["mlp", "--devices", "4", "--ranks", "3-1"],
        "the range `3-1` is empty; write `1-3`",
    ),
    "trace_in_no_folder": (
        ["mlp", "--devices", "2", "--trace", "nowhere/step.json"],
        "the trace cannot be written: there is no folder `nowhere`",
    ),
    "rank_that_is_none": (
        ["mlp", "--devices", "2", "--ranks", "0,9"],
        "there is no rank 9, the program has 2; ranks are 0 to 1",
    ),
}


@pytest.mark.parametrize("case", COMPILE)
def test_compile(case, capsys, here):
    arguments, expected = COMPILE[case]
    dump = ["--dump-ir", "graphs"]
    assert complaint(capsys, "compile", *arguments, "--json", *dump) == expected
    assert list(here.iterdir()) == []


STRATEGIES = {
    "not_json": ("matmul", "a file of strategies must be JSON, this is not (in pins.json)"),
    "a_list": ("[]", "a file of strategies holds an object, this does not (in pins.json)"),
    "no_counts": (
        '{"matmul_0": "x"}',
        'the strategy of `matmul_0` is `"x"`, it must be a list of split counts for each operand '
        '(in pins.json); write `"matmul_0": [[2, 4], [4, 1]]`',
    ),
    "no_such_operator": (
        '{"matmul_9": [[1, 1], [1, 1]]}',
        "a strategy is pinned on `matmul_9`, but the model has no such operator",
    ),
    "indivisible": (
        '{"matmul_0": [[3, 1], [1, 1]]}',
        "`matmul` cannot be split by ((3, 1), (1, 1)): its operands are ((32, 784), (512, 784)) "
        "and the mesh is x=2 x y=2 (in the strategy pinned on `matmul_0`); give the number of "
        "slices of each dimension, for each tensor",
    ),
}


@pytest.mark.parametrize("case", STRATEGIES)
def test_strategies(case, capsys, here):
    content, expected = STRATEGIES[case]
    (here / "pins.json").write_text(content)
    arguments = ["compile", "mlp", "--devices", "4", "--strategies", "pins.json"]
    assert complaint(capsys, *arguments) == expected
    assert [path.name for path in here.iterdir()] == ["pins.json"]


def test_a_cluster_file_that_describes_none(capsys, here):
    (here / "mine.yaml").write_text("name: mine\n")
    found = complaint(capsys, "compile", "mlp", "--devices", "4", "--cluster", "mine.yaml")
    assert found == "`device` is missing; `levels` is missing (in mine.yaml)"
    assert [path.name for path in here.iterdir()] == ["mine.yaml"]


def test_a_directory_that_holds_something_else_is_not_overwritten(capsys, here):
    (here / "out").mkdir()
    (here / "out" / "letter.txt").write_text("dear")
    found = complaint(capsys, "compile", "mlp", "--devices", "2", "--out", "out")
    assert found == (
        "the directory holds something that is no plan, it is not overwritten (in out); name "
        "another directory"
    )
    assert [path.name for path in here.rglob("*")] == ["out", "letter.txt"]


def test_a_file_is_not_overwritten(capsys, here):
    (here / "out").write_text("dear")
    found = complaint(capsys, "compile", "mlp", "--devices", "2", "--out", "out")
    assert found == "the plan cannot be written: a file is there (in out)"
    assert (here / "out").read_text() == "dear"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    compiled = compile("mlp:batch=4,hidden=8", 2)
    return compiled.write(tmp_path_factory.mktemp("written") / "plan")


@pytest.fixture
def plan(here, written):
    return Path(shutil.copytree(written, here / "plan"))


def edit(plan, change):
    document = json.loads((plan / "plan.json").read_text())
    change(document)
    (plan / "plan.json").write_text(json.dumps(document))


AGAIN = (
    "compile the model again: `shardwright compile mlp:batch=4,hidden=8 --devices 2 --cluster "
    "h100-pod --figures datasheet --precision float32 --optimizer sgd`"
)
DAMAGES = {
    "no_document": (
        lambda plan: (plan / "plan.json").unlink(),
        "a plan has a file `plan.json`, this has none (in plan)",
    ),
    "half_a_document": (
        lambda plan: (plan / "plan.json").write_text((plan / "plan.json").read_text()[:99]),
        "a plan must be JSON, but line 6 is not (in plan/plan.json); compile the model again",
    ),
    "not_text": (
        lambda plan: (plan / "plan.json").write_bytes(b"\xff\xfe\x00"),
        "`plan.json` is not text (in plan)",
    ),
    "another_document": (
        lambda plan: (plan / "plan.json").write_text("{}"),
        "this file is not a plan: expected the format `shardwright plan` (in plan/plan.json)",
    ),
    "another_version": (
        lambda plan: edit(plan, lambda document: document.update(schema_version=7)),
        f"the plan has schema version 7, expected 1 (in plan/plan.json); {AGAIN}",
    ),
    "a_key_too_few": (
        lambda plan: edit(plan, lambda document: document.pop("seed")),
        f"`seed` of the plan: field required (in plan/plan.json); {AGAIN}",
    ),
    "missing_model": (
        lambda plan: (plan / "model.ir").unlink(),
        "a plan has a file `model.ir`, this has none (in plan)",
    ),
    "changed_model": (
        lambda plan: (plan / "model.ir").write_text("graph nothing {\n}\n"),
        "`model.ir` was changed after the plan was written: its SHA-256 differs (in plan); compile "
        "the model again",
    ),
    "a_file_elsewhere": (
        lambda plan: edit(plan, lambda document: document["files"].update({"../x": "0"})),
        "the plan lists `../x`, which is not in its directory (in plan/plan.json)",
    ),
    "no_program_listed": (
        lambda plan: edit(plan, lambda document: document["files"].pop("program.ir")),
        "the plan lists no `program.ir` (in plan/plan.json)",
    ),
}


@pytest.mark.parametrize("command", ["run", "verify", "dump"])
@pytest.mark.parametrize("case", DAMAGES)
def test_corrupt_plans(case, command, plan, capsys):
    damage, expected = DAMAGES[case]
    damage(plan)
    assert complaint(capsys, command, "plan") == expected
    assert not (plan / "logs").exists()


ATTRIBUTES = {
    "a_name_in_a_shape": (
        "x: f32[4]* = spread(label) {axis=(0,), shape=('x', 4)}",
        "spread: the size of factor `i0` of `i1 -> i0 i1` is 'x', expected an integer of at least "
        "1",
    ),
    "an_axis_without_end": (
        "x: f32[4] = reduce_sum(image) {axis=(1e400, 1)}",
        "reduce_sum: dimension inf is asked of a tensor with 2 dimensions",
    ),
    "a_size_beyond_64_bits": (
        f"x: f32[{2**64}] = spread(image) {{shape=({2**64},)}}",
        f"a tensor of shape ({2**64},) has {2**66} bytes, expected at most 2^63 - 1",
    ),
    "no_dimension": (
        "x: f32[4, 784] = all_gather(image) {axes=('x',), dimension=None}",
        "`all_gather` cannot take the operands: f32[4, 784] with axes=('x',), dimension=None",
    ),
}


@pytest.mark.parametrize("command", ["run", "verify", "prove"])
@pytest.mark.parametrize("case", ATTRIBUTES)
def test_attributes_that_an_operator_cannot_read(case, command, plan, capsys):
    line, expected = ATTRIBUTES[case]
    text = (plan / "program.ir").read_text()
    first = next(row for row in text.splitlines() if " = " in row)
    changed = text.replace(first, f"  {line}\n{first}", 1)
    (plan / "program.ir").write_text(changed)

    def agree(document):
        document["files"]["program.ir"] = hashlib.sha256(changed.encode()).hexdigest()
        document["files"]["plan.json"] = document_digest(document)

    edit(plan, agree)
    code = main([command, "plan"])
    captured = capsys.readouterr()
    assert code == (2 if command == "run" or case == "a_size_beyond_64_bits" else 1)
    assert expected in (captured.out + captured.err).replace("\n", " ")
    assert "Traceback" not in captured.err


OTHER_DEVICES = {
    "devices": (
        lambda document: document.update(devices=4),
        "the plan is for 4 devices, but its mesh has 2 ranks (in plan/plan.json); compile the "
        "model again",
    ),
    "mesh": (
        lambda document: (document.update(devices=4), document["mesh"][0].update(size=4)),
        "the mesh of the plan is x=4, that of its program is x=2 (in plan/plan.json); compile the "
        "model again",
    ),
    "input": (
        lambda document: document["inputs"][0].update(type="f32[8, 784]"),
        "the inputs of the plan are not those of its program: image: f32[4, 784], label: i32[4] "
        "(in plan/plan.json); compile the model again",
    ),
    "digest": (
        lambda document: document["files"].update({"program.ir": "0" * 64}),
        "`plan.json` was changed after the plan was written: its SHA-256 differs (in plan); "
        "compile the model again",
    ),
    "optimizer": (
        lambda document: document["optimizer"]["settings"].update(learning_rate=5),
        "`plan.json` was changed after the plan was written: its SHA-256 differs (in plan); "
        "compile the model again",
    ),
}


@pytest.mark.parametrize("command", ["run", "verify", "prove", "dump"])
@pytest.mark.parametrize("case", OTHER_DEVICES)
def test_a_document_that_was_changed(case, command, plan, capsys):
    change, expected = OTHER_DEVICES[case]
    edit(plan, change)
    assert complaint(capsys, command, "plan") == expected


def test_an_edited_program_does_not_run(plan, capsys):
    (plan / "program.ir").write_text("graph nothing {\n}\n")
    assert complaint(capsys, "run", "plan").startswith("`program.ir` was changed after")


def test_a_program_that_cannot_be_read_is_not_verified(plan, capsys):
    (plan / "program.ir").write_text("graph nothing {\n  what is this\n}\n")
    assert complaint(capsys, "verify", "plan") == (
        "`program.ir`: the line is neither an input, a parameter, a node, an update nor a return "
        "(in line 2: what is this); a node reads `name: f32[2, 3] = operator(operands) "
        "{key=value}`"
    )


@pytest.mark.parametrize("command", ["run", "verify"])
def test_a_plan_that_is_not_there(command, here, capsys):
    expected = "there is no such plan (in nowhere); compile the model first"
    assert complaint(capsys, command, "nowhere") == expected


OTHERS = {
    "unknown_pass": (
        ["dump", "mlp", "--devices", "2", "--after", "magic"],
        "pass `magic` does not run; expected canonicalize, annotate, partition, insert_mirrors, "
        "differentiate, append_optimizer, lower_redistributions, clean_up, delay_statistics or "
        "fuse_all_reduces",
    ),
    "unknown_rank": (
        ["dump", "mlp", "--devices", "2", "--rank", "2"],
        "there is no rank 2, the program has 2; ranks are 0 to 1",
    ),
    "unknown_command": (
        ["complie", "mlp"],
        "unknown command `complie`; expected one of compile, estimate, diff, fit, run, launch, "
        "reshard, export, certificates, prove, verify, dump, opt, bench, models, operators, "
        "clusters, check, calibrate",
    ),
    "a_limit_where_nothing_is_compiled": (
        ["dump", "mlp", "--memory", "3"],
        "`--memory` has no effect, the model is printed as it was traced; leave it out",
    ),
    "a_batch_of_a_plan": (
        ["dump", "plan", "--batch", "3"],
        "`--batch` has no effect, a plan is compiled already; leave it out",
    ),
    "searches_of_a_mode_without": (
        ["bench", "strategies", "mlp", "--devices", "2", "--mode", "data_parallel"],
        "`bench strategies` compares searches, the mode `data_parallel` has none; leave `--mode` "
        "out",
    ),
    "searches_of_stages": (
        ["bench", "strategies", "mlp", "--devices", "4", "--stages", "2"],
        "`bench strategies` compares searches for one pipeline stage, `--stages` is 2; leave "
        "`--stages` out; pipelines are compared by `--plan pipeline=2` and `compile`",
    ),
    "missing_data": (
        ["run", "plan", "--data", "nowhere"],
        "there is no file `train-images-idx3-ubyte`, nor with `.gz` (in nowhere)",
    ),
    "missing_checkpoint": (
        ["run", "plan", "--resume", "state.npz"],
        "there is no such checkpoint (in state.npz)",
    ),
    "an_export_over_files": (
        ["export", "plan", "--to", "placements", "--out", "plan"],
        "the folder has files, they are not overwritten (in plan); name a new folder",
    ),
    "an_export_of_no_plan": (
        ["export", "nowhere", "--to", "placements", "--out", "new"],
        "there is no such plan (in nowhere); compile the model first",
    ),
    "no_steps": (
        ["run", "plan", "--steps", "-1"],
        "`--steps` is -1, expected an integer of at least 1",
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_commands(case, plan, capsys):
    arguments, expected = OTHERS[case]
    assert complaint(capsys, *arguments) == expected
    assert [path.name for path in plan.parent.iterdir()] == ["plan"]


def test_a_wrong_level_of_graphs_to_save(capsys, here, monkeypatch):
    monkeypatch.setenv("SHARDWRIGHT_SAVE_GRAPHS", "4")
    expected = "`SHARDWRIGHT_SAVE_GRAPHS` is `4`, expected 0, 1, 2 or 3"
    assert complaint(capsys, "compile", "mlp", "--devices", "2") == expected


def test_the_program_itself_fails_so():
    command = [sys.executable, "-m", "shardwright", "compile", "mpl", "--devices", "2"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (2, "")
    told = without_untested(run.stderr)
    assert told == "shardwright: no model is called `mpl`; did you mean `mlp`?\n"


@pytest.mark.parametrize("arguments", [("rnu",), ("run", "plan", "--step", "1", "--wrong")])
def test_one_of_the_processes_of_a_launcher_tells(arguments, capsys, monkeypatch):
    monkeypatch.setenv("PMI_RANK", "1")
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("PMI_RANK", "0")
    assert complaint(capsys, *arguments)
