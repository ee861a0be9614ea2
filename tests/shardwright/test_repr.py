"""Every object of the API says what it is in one short line."""

import subprocess
import sys

import numpy as np
import pytest

import shardwright as sw
from shardwright import nn, ops
from shardwright.ir.graph import Graph
from shardwright.ir.units import seconds_text
from shardwright.planner.options import CompileOptions
from shardwright.solver import Problem, Variable, solve
from shardwright.zoo import load

SMALL = "mlp:hidden=16,batch=8"
GPT = "gpt:layers=1,hidden=256,heads=2,sequence=64,vocabulary=64,batch=8"
LONGEST = 300


@pytest.fixture(scope="module")
def compilation():
    return sw.compile(SMALL, 4, cluster="cpu")


@pytest.fixture(scope="module")
def large():
    """Return a compilation whose parts are large."""
    gpt = "gpt:layers=6,hidden=32,heads=2,sequence=8,vocabulary=64,batch=8"
    return sw.compile(gpt, 4, cluster="cpu", search="fully_sharded")


def objects(compilation):
    """Return an object of every public class, by its name."""
    compiled, plan = compilation.compiled, compilation.plan
    verdict = sw.verify(compilation, steps=1)
    dense = nn.Dense(3, 4)
    problem = Problem(tuple(Variable(f"v{i}", np.arange(9.0)) for i in range(99)))
    return {
        "Compilation": compilation,
        "Compiled": compiled,
        "PassManager": compiled.passes,
        "Plan": plan,
        "PlanDocument": plan.document,
        "Graph": plan.program,
        "Node": plan.program.nodes[0],
        "Value": plan.program.inputs[0],
        "Cluster": compilation.cluster,
        "Mesh": plan.mesh,
        "SearchResult": compiled.result,
        "Decisions": compiled.decisions,
        "MemoryUseReport": compiled.memory,
        "Layout": plan.program.inputs[0].layout,
        "Strategy": next(iter(compiled.decisions.strategies.values())),
        "Definition": load(SMALL),
        "InputSpec": load(SMALL).inputs[0],
        "Problem": problem,
        "Solution": solve(problem),
        "Verdict": verdict,
        "Proof": verdict.proof,
        "Verification": verdict.numbers,
        "StepRecord": next(iter(sw.run(compilation, 1))),
        "CompileOptions": CompileOptions(pins={f"matmul_{i}": ((1, 1),) for i in range(99)}),
        "AutoParallel": sw.AutoParallel(dense, devices=2),
        "Model": sw.Model(dense),
        "Dense": dense,
        "SequentialCell": nn.SequentialCell([nn.Dense(3, 4), nn.ReLU()] * 50),
        "Adam": nn.Adam(dense.trainable_params()),
        "MatMul": ops.MatMul().shard(((1, 2), (2, 1))),
        "Tensor": sw.Tensor(np.ones((30, 30))),
        "ArrayDataset": sw.dataset.ArrayDataset({"image": np.ones((50, 28))}),
        "Checked": sw.check_operator("add"),
    }


@pytest.mark.long
def test_every_object_has_a_short_line(large):
    for name, item in objects(large).items():
        line = repr(item)
        assert name in line.replace("Tensor", "Tensor "), line
        assert "\n" not in line
        assert len(line) < LONGEST, (name, len(line))


def test_the_line_of_a_compilation(compilation):
    document = compilation.plan.document
    assert repr(compilation) == (
        f"<Compilation {SMALL} on 4 devices: "
        f"{document.predicted_step_seconds * 1e6:.3g} us, proven optimal, "
        f"{document.memory.peak_bytes / 1024:.2f} KiB>"
    )


def test_the_line_and_the_table_tell_the_step_that_was_minimised():
    document = sw.compile(GPT, 4, cluster="h100-pod:figures=datasheet").plan.document
    step = seconds_text(document.objective)
    assert step != seconds_text(document.predicted_step_seconds)
    assert f": {step}, " in repr(document)
    assert document.table["overlapped step"] == step


def test_the_line_of_a_plan_says_how_good_it_is(large):
    assert "no lower bound" in repr(large.plan)


def test_the_line_of_options_shows_those_that_are_set():
    options = CompileOptions(gap=0.0, memory_limit=3e9)
    assert repr(options) == "CompileOptions(memory_limit=3000000000.0, gap=0.0)"


def test_notebooks_show_tables(compilation):
    for item in (compilation, compilation.plan, compilation.plan.program):
        table = item._repr_html_()
        assert table.startswith("<table><caption>")
        assert table.endswith("</table>")
        assert len(table) < 8000


def test_tables_escape_names():
    assert "<b>" not in Graph("<b>", (), (), (), ())._repr_html_()


def test_the_public_names_are_sorted_and_not_private():
    names = dir(sw)
    assert names == sorted(names)
    assert not [name for name in names if name.startswith("_")]
    assert all(getattr(sw, name) is not None for name in names)
    assert {"compile", "verify", "run", "CompileOptions", "AutoParallel", "nn"} <= set(names)


def test_importing_the_package_imports_nothing_else():
    code = "import sys, shardwright; print(*filter(lambda m: 'shardwright.' in m, sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "\n"
