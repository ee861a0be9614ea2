"""Plans of every mode compute what the program of one device does."""

import json
from pathlib import Path

import pytest

from shardwright.api import compile, verify
from shardwright.ir.graph import Value
from shardwright.ir.layout import Layout
from shardwright.ir.types import TensorType
from shardwright.operators.builder import Builder
from shardwright.tools.main import main
from shardwright.tracing import Definition, InputSpec
from tests.extent import ANY_PLAN, crossed, first, long_after

HYBRID = Path(__file__).with_name("hybrid_model.py")
GPT = "gpt:layers=1,hidden=16,heads=2,batch=8,sequence=4,vocabulary=32"


@pytest.mark.parametrize("function", ["split_batch", "split_layers"])
@pytest.mark.parametrize("devices", [2, 4])
def test_hand_written_parallel_programs(function, devices):
    plan = compile(f"{HYBRID}:{function}", devices, mode="hybrid_parallel").plan
    result = verify(plan)
    assert (result.equal, result.first_difference) == (True, None)
    assert {"up.grad", "up"} <= set(result.errors) or function == "split_batch"
    assert "all_reduce" in plan.document.communication


def test_gradients_of_hand_written_programs_may_be_averaged():
    """An equal loss is trained on as it is; of losses that differ, the mean is."""
    for model in ("split_batch", "local_loss"):
        plan = compile(f"{HYBRID}:{model}", 2, mode="hybrid_parallel", gradients_mean=True)
        result = verify(plan)
        assert (result.equal, result.first_difference) == (True, None)


def test_a_parameter_may_be_an_output() -> None:
    """The output is whole; the parameter of the same name is stored in slices."""
    build, kind = Builder(), TensorType("float32", (8, 8))
    x = build.input(Value("x", kind))
    w = build.parameter(Value("w", kind), {"initializer": "normal(0.1)"})
    loss = build.emit("reduce_sum", build.emit("matmul", x, w))
    graph = build.graph("weight_too", (loss.name, "w"))
    definition = Definition(graph, (InputSpec("x", kind),))
    compiled = compile(definition, 2, cluster="cpu", search="fully_sharded")
    assert compiled.plan.program.values["w"].layout != Layout.replicated(2)
    assert verify(compiled).equal


@pytest.mark.parametrize(
    ("mode", "optimizer"),
    long_after(
        1,
        first(
            3,
            crossed(
                ("stand_alone", "data_parallel", "semi_auto_parallel"), ("sgd", "momentum", "adam")
            ),
        ),
    ),
)
def test_every_mode_and_optimizer(mode, optimizer, tmp_path, capsys):
    out = str(tmp_path / "plan")
    options = ["--mode", mode, "--optimizer", optimizer, "--loss-scale", "128"]
    devices = "1" if mode == "stand_alone" else "4"
    assert main(["compile", GPT, "--devices", devices, "--out", out, "--json", *options]) == 0
    capsys.readouterr()
    assert main(["verify", out, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {
        *("proven", "trusted", "first_failure", "reason", "seconds"),
        *("compared", "equal", "max_relative_error", "first_difference", "tensors"),
        *("rounding", "rounding_bound"),
    }
    assert (found["equal"], found["first_difference"], found["compared"]) == (True, None, "full")
    assert (found["proven"], found["first_failure"], found["reason"]) == (True, None, None)
    assert found["max_relative_error"] < 1e-9
    states = {"sgd": 0, "momentum": 1, "adam": 2}[optimizer]
    parameters = 16  # with a gradient each; adam counts its steps besides
    assert found["tensors"] == 1 + parameters * (2 + states) + (optimizer == "adam")


@pytest.mark.long
def test_a_plan_that_exchanges_halos_computes_the_same():
    """One image on eight ranks: the search splits its space."""
    plan = compile("unet:batch=1,side=64,width=8,depth=1", 8, cluster="cpu", **ANY_PLAN).plan
    assert {"halo_exchange", "halo_sum"} <= set(plan.document.communication)
    result = verify(plan)
    assert (result.equal, result.first_difference) == (True, None)


def test_an_edited_program_is_verified_as_it_is(tmp_path, capsys):
    plan = compile(GPT, 4, search="tensor_parallel").plan
    out = tmp_path / "plan"
    node = next(node for node in plan.program.nodes if node.operator == "all_reduce")
    assert main(["compile", GPT, "--devices", "4", "--search", "tensor_parallel", "--json"]
                + ["--out", str(out)]) == 0  # fmt: skip
    lines = (out / "program.ir").read_text().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith(f"  {node.name}: ")]
    text = "".join(kept).replace(f"{node.name},", f"{node.operands[0]},")
    (out / "program.ir").write_text(text.replace(f"{node.name})", f"{node.operands[0]})"))
    capsys.readouterr()
    assert main(["verify", str(out)]) == 1
    captured = capsys.readouterr()
    assert captured.err == "shardwright: `program.ir` was edited after the plan was written\n"
    assert captured.out.startswith("not proven: `")
    assert "\ndifferent: `" in captured.out
    assert main(["verify", str(out), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["equal"], found["max_relative_error"]) == (False, None)
    assert found["first_difference"] in plan.program.values
