"""ONNX models: they compute what ONNX says, on any number of ranks, and can be trained."""

from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx_tests import (
    is_plain,
    model_of,
    network_cases,
    node_cases,
    node_modules,
    run_alone,
    run_case,
    run_sharded,
)
from onnx_training import train_cases

import shardwright
from shardwright.frontends.onnx import import_model
from shardwright.tools.main import main
from shardwright.zoo import load
from tests.extent import ANY_PLAN, first
from tests.frontends.models import (
    conv_net,
    exported_gpt,
    looped,
    mlp,
    model,
    recurrent,
    transformer,
)

MODELS = (conv_net, exported_gpt, recurrent, looped, transformer, mlp)
SIZES = {"batch": 8}
EVERY = 17  # of the node tests one in so many is run here
# They compute what is expected in loops of Python: 3.6 of the 4.9 s of all. Pools are compared with
# the evaluator of onnx below.
SLOW = ("averagepool", "lppool", "maxpool")

# The evaluator of ONNX reads a stale state in the branch of a loop.
EVALUATED = tuple(make for make in MODELS if make is not looped)


def sizes_of(proto: ModelProto) -> dict[str, int]:
    if proto.graph.name == "m":  # whose sizes are known
        return {}
    return {**SIZES, "sequence": 8} if proto.graph.name == "exported_gpt" else SIZES


def inputs_of(proto: ModelProto) -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)
    found = {}
    for value in import_model(proto, sizes=sizes_of(proto)).graph.inputs:
        shape = value.type.shape
        real = value.type.is_float
        found[value.name] = (
            random.normal(size=shape).astype(np.float32)
            if real
            else random.integers(-4, 32, shape)  # ONNX counts negative positions from the back
        )
    return found


# What it computes


@pytest.mark.parametrize("make", EVALUATED, ids=lambda make: make.__name__)
def test_a_model_computes_what_onnx_says(make: Callable[[], ModelProto]) -> None:
    proto = make()
    inputs = inputs_of(proto)
    try:
        expected = ReferenceEvaluator(proto).run(None, inputs)
    except NotImplementedError as error:  # two directions of an LSTM, up to ONNX 1.22
        pytest.skip(str(error))
    imported = import_model(proto, sizes=sizes_of(proto))
    assert len(imported.graph.outputs) == len(expected)
    random = np.random.default_rng(0)
    for found in (run_alone(imported, inputs), run_sharded(imported, inputs, random)):
        for result, right in zip(found, expected, strict=True):
            np.testing.assert_allclose(result, right, rtol=1e-4, atol=1e-5)


def test_a_loop_is_unrolled_and_its_branches_are_taken() -> None:
    x = inputs_of(looped())["x"]
    imported = import_model(looped(), sizes=SIZES)
    weight = imported.initial["step.weight"]
    expected = x
    for _ in range(3):
        expected = np.tanh(expected @ weight)
    np.testing.assert_allclose(run_alone(imported, {"x": x})[0], expected, rtol=1e-6)
    assert [node.operator for node in imported.graph.nodes] == ["matmul", "tanh"] * 3


def test_functions_of_the_model_are_inlined() -> None:
    node = helper.make_node
    power = node("LeakyRelu", ["s"], ["y"])
    power.attribute.append(
        onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    )
    opset = [helper.make_opsetid("", 18)]
    function = helper.make_function(
        "mine",
        "Shifted",
        ["x", "b"],
        ["y"],
        [node("Add", ["x", "b"], ["s"]), power],
        opset,
        ["slope"],
    )
    calls = [
        node("Shifted", ["x", "b"], ["h"], "/one/Shifted", domain="mine", slope=0.5),
        node("Shifted", ["h", "b"], ["y"], "/two/Shifted", domain="mine", slope=0.25),
    ]
    proto = model("m", calls, {"x": (2, 3)}, "y", {"b": np.array([1, -2, 3], np.float32)})
    proto.functions.append(function)
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    x = np.array([[-3, 1, 2], [4, -5, -6]], np.float32)
    expected = x
    for slope in (0.5, 0.25):
        shifted = expected + np.array([1, -2, 3], np.float32)
        expected = np.where(shifted < 0, slope * shifted, shifted)
    imported = import_model(proto)
    np.testing.assert_allclose(run_alone(imported, {"x": x})[0], expected, rtol=1e-6)
    assert [value.name for value in imported.graph.parameters] == ["b"]
    assert {"h", "y"} <= set(imported.graph.values)
    assert [node.scope for node in imported.graph.nodes] == ["one", "one", "two", "two"]


@pytest.mark.parametrize("kind", [TensorProto.BFLOAT16, TensorProto.FLOAT16])
def test_equal_constants_of_16_bits_are_one_buffer(kind: int) -> None:
    node, numbers = helper.make_node, (1.0, -2.0, 0.5)
    constants = [
        node("Constant", [], [name], value=helper.make_tensor(name, kind, (3,), numbers))
        for name in ("a", "b")
    ]
    nodes = [
        *constants,
        node("Cast", ["x"], ["low"], to=kind),
        node("Add", ["low", "a"], ["sum"]),
        node("Mul", ["sum", "b"], ["product"]),
        node("Cast", ["product"], ["y"], to=TensorProto.FLOAT),
    ]
    imported = import_model(model("m", nodes, {"x": (2, 3)}, "y", {}))
    x = np.array([[1, 2, 3], [-1, 0, 4]], np.float32)
    expected = (x + np.array(numbers)) * np.array(numbers)
    np.testing.assert_array_equal(run_alone(imported, {"x": x})[0], expected)
    assert len(imported.graph.parameters) == 1


@pytest.fixture(scope="module")
def some_cases() -> list[onnx.backend.test.case.test_case.TestCase]:
    modules = sorted(node_modules(), key=SLOW.__contains__)
    cases = node_cases(first(len(modules) - len(SLOW), modules))
    plain = [case for case in cases if is_plain(model_of(case))]
    return sorted(plain, key=lambda case: case.name)[::EVERY]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_some_of_the_node_tests_of_onnx(
    some_cases: list[onnx.backend.test.case.test_case.TestCase],
) -> None:
    # The gradients of the others are compared below.
    cases = first(len(some_cases) // 2, [*some_cases[1::2], *some_cases[::2]])
    found = [run_case(case) for case in cases]
    only_alone = [o.name for o in found if o.alone and not o.sharded]
    assert not only_alone, f"pass on one rank, but not sharded: {only_alone}"
    passed = sum(o.sharded for o in found)
    assert passed >= 0.9 * len(found), [f"{o.name}: {o.reason}" for o in found if not o.alone]


@pytest.mark.long
def test_gradients_of_some_node_tests_are_equal_on_four_ranks(
    some_cases: list[onnx.backend.test.case.test_case.TestCase],
) -> None:
    cases = first(len(some_cases) // 2, [*some_cases[::2], *some_cases[1::2]])
    count, wrong = train_cases(cases)
    assert count > len(cases) / 2
    assert not wrong


SIZES_OF_POOLS = {
    "unit": {"kernel_shape": [2, 2]},
    "padded": {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 2, 1]},
    "ceiled": {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
    "dilated": {"kernel_shape": [2, 3], "dilations": [2, 1]},
    "same": {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_LOWER"},
}
POOLS = {"AveragePool": {"count_include_pad": 1}, "MaxPool": {}, "LpPool": {"p": 3}}
# The evaluator leaves out the last windows there, and adds up more than there is here.
WRONG = {("MaxPool", "same"), ("LpPool", "ceiled")}


@pytest.mark.parametrize(
    ("operator", "sizes"),
    [pair for pair in product(POOLS, SIZES_OF_POOLS) if pair not in WRONG],
)
def test_pools_are_those_of_the_evaluator(operator: str, sizes: str) -> None:
    x = np.random.default_rng(0).normal(size=(1, 2, 6, 7)).astype(np.float32)
    for further in ({}, POOLS[operator]):
        attributes = {**SIZES_OF_POOLS[sizes], **further}
        pool = onnx.helper.make_node(operator, ["x"], ["y"], **attributes)
        proto = model("pool", [pool], {"x": x.shape}, "y", {}, opset=22)
        (right,) = ReferenceEvaluator(proto).run(None, {"x": x})
        (found,) = run_alone(import_model(proto), {"x": x})
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-6)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_a_well_known_network_gives_the_result_that_comes_with_it() -> None:
    # Of squeezenet, the scores are so large that rounding decides between equal classes.
    case = next(case for case in network_cases() if case.name == "resnet50")
    outcome = run_case(case)
    assert outcome.alone, outcome.reason
    assert outcome.sharded, outcome.reason


# What it looks like


def test_names_and_scopes_are_kept() -> None:
    graph = import_model(mlp(), sizes=SIZES).graph
    assert [p.name for p in graph.parameters] == [
        "layer1.weight",
        "layer1.bias",
        "layer2.weight",
        "layer2.bias",
    ]
    assert [value.name for value in graph.inputs] == ["x"]
    assert graph.outputs == ("probability",)
    first = graph.nodes[0]
    assert (first.name, first.scope) == ("layer1/MatMul_output_0", "layer1")


def test_shapes_that_the_graph_computes_leave_no_trace() -> None:
    graph = import_model(transformer(), sizes=SIZES).graph
    assert all(value.type.is_float or value.name == "tokens" for value in graph.inputs)
    trained = {p.name for p in graph.parameters if p.trainable}
    assert "head_shape" not in graph.values
    assert trained == {
        *("table", "positions", "qkv", "out", "up", "down"),
        *("norm.weight", "norm.bias"),
    }
    assert import_model(transformer(), sizes=SIZES).highs == {"tokens": 32}


def test_inputs_and_constants_that_are_returned_are_results_of_their_own() -> None:
    nodes = [
        helper.make_node("Identity", ["x"], ["y"]),
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Cast", ["s"], ["z"], to=onnx.TensorProto.FLOAT),
    ]
    proto = model("m", nodes, {"x": (2, 3)}, "y", {})
    for name in ("z", "x", "y"):
        declared = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        proto.graph.output.append(declared)
    imported = import_model(proto)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = run_alone(imported, {"x": x})
    for result, right in zip(found, (x, np.array([2, 3]), x, x), strict=True):
        np.testing.assert_array_equal(result, right)
    assert len(set(imported.graph.outputs)) == 4
    assert imported.graph.outputs[:2] == ("y", "z")


def test_statistics_of_training_are_not_trained() -> None:
    graph = import_model(conv_net(), sizes=SIZES).graph
    frozen = {p.name for p in graph.parameters if not p.trainable}
    assert frozen == {"mean", "variance"}


# Compositions


def operators_of(proto: ModelProto) -> list[str]:
    return [node.operator for node in import_model(proto, sizes=sizes_of(proto)).graph.nodes]


def test_compositions_that_exporters_write_out_are_one_operator() -> None:
    found = Counter(operators_of(exported_gpt()))
    assert (found["layer_norm"], found["gelu"], found["scaled_dot_product_attention"]) == (3, 1, 1)
    assert not {"softmax", "tanh", "sqrt", "where"} & set(found)
    graph = import_model(exported_gpt(), sizes=sizes_of(exported_gpt())).graph
    node = next(n for n in graph.nodes if n.operator == "scaled_dot_product_attention")
    assert node.attributes == {"causal": True, "scale": 0.5}
    assert len(node.operands) == 3
    assert node.scope == "h.0/attn"


def masked_attention(kind: str) -> ModelProto:
    """Attention of 3 positions; its mask is chosen, or added."""
    node = helper.make_node
    later = np.triu(np.ones((3, 3), bool), 1)
    own = np.eye(3, dtype=bool)
    weights = {
        "later": later,
        "own": own,
        "below": np.array(-1e9, np.float32),
        "added": np.where(later, np.float32(-1e9), np.float32(0)),
        "bias": np.arange(9, dtype=np.float32).reshape(3, 3),
    }
    masks = {
        "later": node("Where", ["later", "below", "scores"], ["masked"]),
        "others": node("Where", ["own", "below", "scores"], ["masked"]),
        "own": node("Where", ["own", "scores", "below"], ["masked"]),
        "added": node("Add", ["scores", "added"], ["masked"]),
        "bias": node("Add", ["bias", "scores"], ["masked"]),
        "none": node("Identity", ["scores"], ["masked"]),
    }
    nodes = [
        node("Transpose", ["x"], ["turned"], perm=[0, 1, 3, 2]),
        node("MatMul", ["x", "turned"], ["scores"]),
        masks[kind],
        node("Softmax", ["masked"], ["weights"], axis=-1),
        node("MatMul", ["weights", "x"], ["y"]),
    ]
    used = {name for n in nodes for name in n.input}
    kept = {name: array for name, array in weights.items() if name in used}
    return model("m", nodes, {"x": (2, 2, 3, 4)}, "y", kept)


@pytest.mark.parametrize(
    ("kind", "operands", "causal"),
    [
        ("later", 3, True),
        ("others", 4, False),
        ("own", 4, False),
        ("added", 3, True),
        ("bias", 4, False),
        ("none", 3, False),
    ],
)
def test_masks_of_attention(kind: str, operands: int, causal: bool) -> None:
    proto = masked_attention(kind)
    graph = import_model(proto).graph
    node = graph.nodes[-1]
    assert node.operator == "scaled_dot_product_attention"
    assert (len(node.operands), node.attributes["causal"]) == (operands, causal)
    inputs = inputs_of(proto)
    expected = ReferenceEvaluator(proto).run(None, inputs)[0]
    found = run_alone(import_model(proto), inputs)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def pointwise(*nodes: NodeProto, **weights: np.ndarray) -> ModelProto:
    return model("m", list(nodes), {"x": (3, 8)}, nodes[-1].output[0], weights)


def erf_gelu(root: float, half: float) -> ModelProto:
    node = helper.make_node
    return pointwise(
        node("Div", ["x", "root"], ["a"]),
        node("Erf", ["a"], ["b"]),
        node("Add", ["b", "one"], ["c"]),
        node("Mul", ["x", "c"], ["d"]),
        node("Mul", ["d", "half"], ["y"]),
        root=np.array(root, np.float32),
        one=np.array(1, np.float32),
        half=np.array(half, np.float32),
    )


def rms_norm(first: str) -> ModelProto:
    node = helper.make_node
    return pointwise(
        node("Pow", ["x", "two"], ["a"]),
        node("ReduceMean", ["a", "axis"], ["b"]),
        node("Add", ["b", "epsilon"], ["c"]),
        node("Sqrt", ["c"], ["d"]),
        node("Reciprocal", ["d"], ["e"]),
        node("Mul", [first, "e"], ["f"]),
        node("Mul", ["weight", "f"], ["y"]),
        two=np.array(2, np.float32),
        axis=np.array([-1]),
        epsilon=np.array(1e-3, np.float32),
        weight=np.arange(8, dtype=np.float32),
    )


def silu() -> ModelProto:
    node = helper.make_node
    return pointwise(node("Sigmoid", ["x"], ["a"]), node("Mul", ["x", "a"], ["y"]))


_UNFUSED = ["square", "reduce_mean", "add_scalar", "sqrt", "reciprocal", "mul", "mul"]


@pytest.mark.parametrize(
    ("proto", "operators"),
    [
        (erf_gelu(2**0.5, 0.5), ["gelu"]),
        (erf_gelu(2.0, 0.5), ["scale", "erf", "add_scalar", "mul", "scale"]),
        (erf_gelu(2**0.5, 1.5), ["scale", "erf", "add_scalar", "mul", "scale"]),
        (rms_norm("x"), ["rms_norm"]),
        (rms_norm("d"), _UNFUSED),
        (silu(), ["silu"]),
    ],
)
def test_only_what_is_the_same_is_made_one(proto: ModelProto, operators: list[str]) -> None:
    assert operators_of(proto) == operators
    inputs = inputs_of(proto)
    expected = ReferenceEvaluator(proto).run(None, inputs)[0]
    found = run_alone(import_model(proto), inputs)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


# Training


@pytest.mark.long
@pytest.mark.parametrize("make", first(4, MODELS), ids=lambda make: make.__name__)
def test_training_on_four_ranks_is_training_on_one(saved: Path) -> None:
    text = f"{saved}:" + ",".join(f"{k}={v}" for k, v in sizes_of(onnx.load(saved)).items())
    plan = shardwright.compile(text, 4, cluster="cpu", **ANY_PLAN)
    result = shardwright.verify(plan)
    assert result.equal, result.reason
    losses = [record.loss for record in shardwright.run(plan, 4)]
    alone = shardwright.compile(text, 1, cluster="cpu", mode="stand_alone")
    expected = [record.loss for record in shardwright.run(alone, 4)]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert len(set(losses)) == 4


@pytest.mark.parametrize("make", [mlp], ids=["mlp"])
def test_the_loss_of_weights_in_the_file(saved: Path) -> None:
    definition = load(f"{saved}:batch=8")
    inputs = inputs_of(mlp())
    probability = ReferenceEvaluator(mlp()).run(None, inputs)[0]
    labels = np.arange(8, dtype=np.int32)
    expected = -np.log(probability[np.arange(8), labels]).mean()
    imported = import_model(mlp(), sizes=SIZES, loss="cross_entropy")
    assert imported.graph.outputs == definition.graph.outputs == ("loss",)
    found = run_alone(imported, {**inputs, "label": labels})
    np.testing.assert_allclose(found[0], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("loss", "inputs"), [("mse", ["x", "label"]), ("mean", ["x"]), ("none", ["x"])]
)
def test_losses_by_option(loss: str, inputs: list[str]) -> None:
    graph = import_model(mlp(), sizes=SIZES, loss=loss).graph
    assert [value.name for value in graph.inputs] == inputs


def test_dropout_in_training_is_equal_however_it_is_split(tmp_path: Path) -> None:
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "weight"], ["h"]),
        node("Dropout", ["h", "rate", "training"], ["y"], "/dropout/Dropout", seed=3),
    ]
    weights = {
        "weight": np.eye(6, dtype=np.float32),
        "rate": np.array(0.5, np.float32),
        "training": np.array(True),
    }
    path = tmp_path / "dropout.onnx"
    onnx.save(model("dropout", nodes, {"x": (8, 6)}, "y", weights), path)
    plan = shardwright.compile(f"{path}:loss=mse", 4, cluster="cpu", mesh="2x2")
    assert shardwright.verify(plan).equal
    losses = [record.loss for record in shardwright.run(plan, 3)]
    assert len(set(losses)) == 3


@pytest.mark.parametrize("make", [mlp], ids=["mlp"])
def test_the_commands_take_a_file(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = str(tmp_path / "plan")
    options = ["--devices", "4", "--cluster", "cpu", "--batch", "8", "--out", plan]
    assert main(["compile", str(saved), *options]) == 0
    assert main(["verify", plan]) == 0
    assert main(["run", plan, "--steps", "2"]) == 0
    assert main(["dump", f"{saved}:batch=8"]) == 0
    assert "parameter layer1.weight: f32[16, 32]" in capsys.readouterr().out
    assert main(["compile", str(saved), "--devices", "4"]) == 2
    assert "open size `batch`" in capsys.readouterr().err
