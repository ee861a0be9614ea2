"""No command overwrites a file of the user, and default folders tell models apart."""

import json

import numpy as np
import pytest

import shardwright as sw
from shardwright.ir.errors import OutputError
from shardwright.solver.formats.contest import write_contest
from shardwright.solver.problem import Problem, Variable
from shardwright.tools.main import main

MLP = "mlp:batch=4,hidden=8"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys, *arguments):
    """Return the exit code of a command and what it says went wrong."""
    code = main([str(argument) for argument in arguments])
    return code, capsys.readouterr().err.removeprefix("shardwright: ").rstrip("\n")


def test_other_sizes_have_another_folder(capsys, here):
    for model in (MLP, "mlp:batch=4,hidden=16", "mlp"):
        assert run(capsys, "compile", model, "--devices", "2") == (0, "")
    assert run(capsys, "compile", "mlp", "--devices", "2", "--batch", "8") == (0, "")
    names = sorted(path.name for path in (here / "plans").iterdir())
    assert names == ["mlp-2", "mlp-batch4-hidden16-2", "mlp-batch4-hidden8-2", "mlp-batch8-2"]


def test_a_default_folder_with_another_model_is_not_overwritten(capsys, here):
    code = (
        "import shardwright as sw\n"
        "class Net(sw.nn.Cell):\n"
        "    def construct(self, x):\n"
        "        return sw.ops.ReduceSum()(x * x)\n"
        "def net():\n"
        "    return Net(), [sw.InputSpec('x', sw.TensorType('float32', (4, 4)))]\n"
    )
    for folder in ("one", "two"):
        (here / folder).mkdir()
        (here / folder / "model.py").write_text(code)
    assert run(capsys, "compile", "one/model.py:net", "--devices", "2") == (0, "")
    found = run(capsys, "compile", "two/model.py:net", "--devices", "2")
    assert found == (
        2,
        "the default folder `plans/model-net-2` has a plan of another model, `one/model.py:net`; "
        "name a folder with `--out`",
    )
    assert run(capsys, "compile", "one/model.py:net", "--devices", "2") == (0, "")


@pytest.mark.parametrize("devices", ["2", "4"])
def test_a_long_name_is_cut(devices, capsys, here):
    sizes = "layers=1,hidden=16,heads=2,batch=8,sequence=4,vocabulary=32,dropout=0.125,tied=true"
    model = f"gpt:{sizes}"
    assert run(capsys, "compile", model, "--devices", devices) == (0, "")
    (name,) = [path.name for path in (here / "plans").iterdir()]
    assert name.startswith("gpt-layers1-hidden16-heads2-batch8-")
    assert name.endswith(f"-{devices}")
    assert len(name) < 100


def test_the_report_lists_the_files_of_the_plan_alone(capsys, here):
    assert main(["compile", MLP, "--devices", "2", "--out", "plan"]) == 0
    (here / "plan" / "a_note.txt").write_text("mine")
    capsys.readouterr()
    assert main(["compile", MLP, "--devices", "2", "--out", "plan"]) == 0
    text = capsys.readouterr().out
    assert "written   plan: model.ir, plan.json, program.ir, strategies.json, rank_" in text
    assert "a_note.txt" not in text
    assert (here / "plan" / "a_note.txt").read_text() == "mine"


# Graphs of every pass


def test_graphs_are_replaced_by_graphs_only(capsys, here):
    arguments = ["compile", MLP, "--devices", "2", "--dump-ir", "graphs"]
    assert run(capsys, *arguments) == (0, "")
    (here / "graphs" / "notes.txt").write_text("mine")
    assert run(capsys, *arguments) == (0, "")
    assert (here / "graphs" / "notes.txt").read_text() == "mine"
    (here / "graphs" / "03_mirror.ir").write_text("mine")
    (here / "plans").rename("before")
    assert run(capsys, *arguments) == (
        2,
        "the graphs cannot be written: `03_mirror.ir` is something else, it is not overwritten (in "
        "graphs); name another folder",
    )
    assert (here / "graphs" / "03_mirror.ir").read_text() == "mine"
    assert not (here / "plans").exists()


def test_graphs_in_the_place_of_a_file(capsys, here):
    (here / "graphs").write_text("mine")
    code, error = run(capsys, "compile", MLP, "--devices", "2", "--dump-ir", "graphs")
    assert (code, error) == (2, "the graphs cannot be written: a file is there (in graphs)")
    assert [path.name for path in here.iterdir()] == ["graphs"]


# Traces


def test_a_trace_replaces_traces_only(capsys, here):
    arguments = ["compile", MLP, "--devices", "2", "--trace", "step.json"]
    assert run(capsys, *arguments) == (0, "")
    assert run(capsys, *arguments) == (0, "")
    assert json.loads((here / "step.json").read_text())["traceEvents"]
    (here / "step.json").write_text('{"mine": 1}')
    (here / "plans").rename("before")
    assert run(capsys, *arguments) == (
        2,
        "the trace cannot be written: a file that is something else is there (in step.json); name "
        "another file",
    )
    assert (here / "step.json").read_text() == '{"mine": 1}'
    assert not (here / "plans").exists()


# Pages


@pytest.mark.parametrize("command", ["compile", "estimate"])
def test_a_page_replaces_pages_only(capsys, here, command):
    arguments = [command, MLP, "--devices", "2", "--html", "page.html"]
    arguments += ["--plan", "data=2"] if command == "estimate" else []
    for _ in range(2):
        assert run(capsys, *arguments) == (0, "")
    assert "<!-- a page of shardwright -->" in (here / "page.html").read_text()[:60]
    (here / "page.html").write_text("<!doctype html>mine")
    if command == "compile":
        (here / "plans").rename("before")
    assert run(capsys, *arguments) == (
        2,
        "the page cannot be written: a file that is something else is there (in page.html); name "
        "another file",
    )
    assert (here / "page.html").read_text() == "<!doctype html>mine"
    assert not (here / "plans").exists()


def test_a_page_into_no_folder(capsys, here):
    code, error = run(capsys, "compile", MLP, "--devices", "2", "--html", "none/page.html")
    assert (code, error) == (2, "the page cannot be written: there is no folder `none`")
    assert [*here.iterdir()] == []


def test_a_page_and_a_trace_in_one_file(capsys, here):
    code, error = run(capsys, "compile", MLP, "--devices", "2", "--html", "a", "--trace", "a")
    assert (code, error) == (2, "`--trace` and `--html` name the same file, `a`; name two files")
    assert [*here.iterdir()] == []


# Solutions of instances


def test_a_solution_does_not_replace_its_instance(capsys, here):
    write_contest(Problem((Variable("a", np.array([1, 2])),)), here / "small.json")
    before = (here / "small.json").read_bytes()
    arguments = ["bench", "solver", "small.json", "--time-limit", "1", "--solution-out"]
    assert run(capsys, *arguments, ".") == (
        2,
        "the solution cannot be written: `small.json` is something else, it is not overwritten "
        "(in .); name another folder",
    )
    assert (here / "small.json").read_bytes() == before
    for _ in range(2):
        assert run(capsys, *arguments, "solutions") == (0, "")
    assert json.loads((here / "solutions" / "small.json").read_text()) == [0]


def test_two_instances_of_one_name(capsys, here):
    for folder in ("one", "two"):
        (here / folder).mkdir()
        write_contest(Problem((Variable("a", np.array([1, 2])),)), here / folder / "small.json")
    names = ["one/small.json", "two/small.json"]
    found = run(capsys, "bench", "solver", *names, "--solution-out", "solutions")
    assert found == (2, "two instances would write `small.json`; solve them one by one")
    assert not (here / "solutions").exists()


# Training


def test_logs_replace_logs_only(capsys, here):
    assert run(capsys, "compile", MLP, "--devices", "2", "--out", "plan") == (0, "")
    for _ in range(2):
        assert run(capsys, "run", "plan", "--steps", "1") == (0, "")
    log = here / "plan" / "logs" / "rank.1" / "stdout"
    assert log.read_text().startswith("epoch: 1 step: 1, loss is")
    log.write_text("mine")
    assert run(capsys, "run", "plan", "--steps", "1") == (
        2,
        f"the log cannot be written: a file that is something else is there (in "
        f"{log.relative_to(here)}); name another file",
    )
    assert log.read_text() == "mine"


# Other documents


def test_the_document_of_operators_replaces_itself_only(capsys, here):
    for _ in range(2):
        assert run(capsys, "operators", "--markdown", "operators.md") == (0, "")
    (here / "operators.md").write_text("mine")
    code, error = run(capsys, "operators", "--markdown", "operators.md")
    assert (code, error.partition(" (in")[0]) == (
        2,
        "the document cannot be written: a file that is something else is there",
    )
    assert (here / "operators.md").read_text() == "mine"


def test_a_file_of_strategies_replaces_strategies_only(here):
    parallel = sw.AutoParallel(sw.nn.ReLU())
    (here / "old.json").write_text('{"matmul_0": [[1, 1], [1, 1]]}')
    parallel.save_operator_strategy_file("old.json")
    (here / "mine.py").write_text("mine")
    with pytest.raises(OutputError, match="a file that is something else is there"):
        parallel.save_operator_strategy_file("mine.py")
