"""Errors of importing ONNX models name the node, the input or the package."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from shardwright.frontends.onnx import import_model
from shardwright.ir.errors import ModelError, PackageError
from shardwright.zoo import load
from tests.frontends.models import mlp, model

SIZES = {"batch": 8}


def error_of(act: Callable[[], object]) -> str:
    with pytest.raises((ModelError, PackageError)) as caught:
        act()
    return str(caught.value)


def test_lacking_operators_are_listed_all_at_once() -> None:
    node = helper.make_node
    nodes = [
        node("Transposed", ["x"], ["a"], "first"),
        node("Relu", ["a"], ["b"]),
        node("Unheard", ["b"], ["c"], "second"),
        node("Unheard", ["c"], ["y"]),
    ]
    proto = model("m", nodes, {"x": (2, 2)}, "y", {})
    message = error_of(lambda: import_model(proto))
    assert message.startswith(
        "the model has 2 operators that cannot be imported: "
        "`Transposed` (nearest: `Transpose`) at `first`; `Unheard`"
    )
    assert "`Unheard` at `second`, `y`" in message


def test_an_open_size_is_asked_for() -> None:
    assert error_of(lambda: import_model(mlp())) == (
        "the input `x` has an open size `batch` in dimension 0; give it: `model.onnx:batch=8`"
    )


def test_a_size_that_no_input_has_is_refused() -> None:
    assert error_of(lambda: import_model(mlp(), sizes={**SIZES, "length": 3})) == (
        "the model has no size `length`; its sizes are batch, x.0, x.1"
    )


def test_a_size_goes_before_that_of_the_model() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    proto = model("m", nodes, {"x": (1, 4)}, "y", {})
    graph = import_model(proto, sizes={"batch": 6, "x.1": 5}).graph
    assert str(graph.inputs[0].type) == "f32[6, 5]"


def test_a_shape_that_is_computed_from_data_is_refused() -> None:
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"], "shaping")]
    proto = model("m", nodes, {"x": (2, 2), "shape": (1,)}, "y", {}, integers=("shape",))
    assert error_of(lambda: import_model(proto)) == (
        "the elements of `shape` must be known when the model is imported (in Reshape `shaping`)"
    )


def test_a_node_that_reads_nothing_or_nonsense_is_named() -> None:
    node = helper.make_node
    proto = model("m", [node("Relu", ["z"], ["y"], "first")], {"x": (2, 2)}, "y", {})
    assert error_of(lambda: import_model(proto)) == (
        "the node reads `z`, which is not defined (in Relu `first`)"
    )
    proto = model("m", [node("Transpose", ["x"], ["y"], perm=[0, 2])], {"x": (2, 2)}, "y", {})
    assert "in Transpose `y`" in error_of(lambda: import_model(proto))
    proto = model("m", [node("Concat", ["x", "x"], ["y"])], {"x": (2, 2)}, "y", {})
    assert error_of(lambda: import_model(proto)).startswith("`concat` cannot take the operands")


def test_an_unknown_loss_is_refused() -> None:
    message = error_of(lambda: import_model(mlp(), sizes=SIZES, loss="hinge"))
    assert message.startswith("no loss is called `hinge`; use one of ")


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"no model")
    assert error_of(lambda: load(str(path))).startswith(f"`{path}` is no ONNX model: ")
    missing = tmp_path / "missing.onnx"
    assert error_of(lambda: load(str(missing))) == f"there is no file `{missing}`"


@pytest.mark.parametrize("make", [mlp], ids=["mlp"])
def test_without_the_package_one_sentence_says_how_to_install_it(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(sys.modules):
        if name.startswith("shardwright.frontends.onnx"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert error_of(lambda: load(f"{saved}:batch=8")) == (
        f"reading `{saved}` needs `onnx`, which is not installed; "
        "run `pip install 'shardwright[onnx]'`"
    )


@pytest.mark.parametrize("padding", ["border", "reflection"])
def test_cubic_samples_near_the_border_are_refused(padding: str) -> None:
    node = helper.make_node("GridSample", ["x", "g"], ["y"], mode="cubic", padding_mode=padding)
    proto = model("m", [node], {"x": (1, 2, 5, 5), "g": (1, 3, 3, 2)}, "y", {})
    message = error_of(lambda: import_model(proto))
    assert f"mode `cubic` with padding `{padding}` (`zeros` can) cannot be imported" in message


# Models made to do harm


def with_functions(calls: dict[str, tuple[str, ...]]) -> ModelProto:
    """Return a model that calls `f0`, of functions that call others one after another."""
    node, opsets = helper.make_node, [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    functions = []
    for name, called in calls.items():
        places = ["x", *(f"t{i}" for i in range(1, len(called))), "y"]
        steps = zip(called, places, places[1:], strict=False)
        nodes = [node(f, [a], [b], domain="own" if f in calls else "") for f, a, b in steps]
        functions.append(helper.make_function("own", name, ["x"], ["y"], nodes, opsets))
    proto = model("m", [node("f0", ["x"], ["y"], domain="own")], {"x": (2, 2)}, "y", {})
    proto.functions.extend(functions)
    proto.opset_import.append(helper.make_opsetid("own", 1))
    return proto


def test_functions_that_double_are_counted_before_they_are_written_out() -> None:
    calls = {f"f{i}": (f"f{i + 1}",) * 2 for i in range(31)} | {"f31": ("Relu",)}
    assert error_of(lambda: import_model(with_functions(calls))) == (
        "the model has 2,147,483,648 nodes with its functions written out, at most 1,000,000 are "
        "imported"
    )
    few = {f"f{i}": (f"f{i + 1}",) * 2 for i in range(3)} | {"f3": ("Relu",)}
    assert len(import_model(with_functions(few)).graph.nodes) == 8


def test_a_function_that_calls_itself_is_refused() -> None:
    calls = {"f0": ("f1",), "f1": ("Relu", "f0")}
    message = error_of(lambda: import_model(with_functions(calls)))
    assert message.startswith("the function `f")
    assert message.endswith(
        "calls itself, directly or through others; ONNX allows no recursion: use Loop"
    )


@pytest.mark.parametrize("operator", ["ConstantOfShape", "Range", "Mul"])
def test_a_constant_that_exceeds_memory_is_not_computed(operator: str) -> None:
    ints, size = np.array([2**20, 2**20]), 2**15
    weights = {
        "ConstantOfShape": {"shape": ints},
        "Range": {"a": np.array(0), "b": np.array(2**40), "c": np.array(1)},
        "Mul": {"a": np.ones((size, 1), np.int64), "b": np.ones((1, size), np.int64)},
    }[operator]
    nodes = [
        helper.make_node(operator, list(weights), ["big"]),
        helper.make_node("Cast", ["big"], ["cast"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["cast"], ["sum"], keepdims=0),
        helper.make_node("Add", ["x", "sum"], ["y"]),
    ]
    message = error_of(lambda: import_model(model("m", nodes, {"x": (2, 2)}, "y", weights)))
    assert message.startswith("the model computes a constant of 1,")
    assert message.endswith("; compute it from an input, or store it as a weight")


def test_functions_within_functions_end() -> None:
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("mine", 1)]
    functions = []
    for number in range(1000):
        called = ("Relu", "") if number == 0 else (f"f{number - 1}", "mine")
        body = [helper.make_node(called[0], ["x"], ["y"], domain=called[1])]
        functions.append(helper.make_function("mine", f"f{number}", ["x"], ["y"], body, opsets))
    proto = model(
        "m", [helper.make_node("f999", ["x"], ["y"], domain="mine")], {"x": (2,)}, "y", {}
    )
    proto.opset_import.add(domain="mine", version=1)
    proto.functions.extend(functions)
    assert error_of(lambda: import_model(proto)) == (
        "the functions and branches of the model are nested too deeply; write some of them out"
    )
