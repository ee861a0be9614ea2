"""What PyTorch's exporters write: what is trained, what was merged, what is recognised.

The files in `fixtures` are made by `benchmarks/imported/onnx_fixtures.py`: five models, exported by
`torch.onnx.export` with `dynamo=True`, with `optimize=False` too (`dynamo-plain`), with
`dynamo=False`, and with `do_constant_folding=False` too (`script-plain`).
"""

import os
import re
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx_models import WAYS, Outcome, check
from onnx_tests import run_alone

import shardwright
from shardwright.frontends.onnx import Imported, import_model, read_model
from shardwright.frontends.onnx.stored import Stored
from shardwright.ir.errors import ExecutionError, ModelError, ShardwrightWarning
from shardwright.tools.main import main
from shardwright.zoo import load
from tests.extent import ANY_PLAN
from tests.frontends.models import model

FIXTURES = Path(__file__).parent / "fixtures"
FILES = sorted(path.stem for path in FIXTURES.glob("*.onnx"))
PLAIN = [name for name in FILES if name.endswith("-plain")]
DECODERS = [name for name in FILES if name.startswith(("llama", "gpt2"))]


def outcome_of(name: str) -> Outcome:
    stem, _, way = name.partition(".")
    assert way in WAYS
    return check(FIXTURES, stem, way)


def imported(name: str, **options: object) -> Imported:
    path = FIXTURES / f"{name}.onnx"
    return import_model(read_model(path), folder=FIXTURES, **options)  # type: ignore[arg-type]


def trained_in(found: Imported) -> set[str]:
    return {p.name for p in found.graph.parameters if p.trainable}


def parameters_of(name: str) -> set[str]:
    with np.load(FIXTURES / f"{name}.npz") as archive:
        return {key.removeprefix("parameter/") for key in archive if key.startswith("parameter/")}


# What is trained


@pytest.mark.parametrize("name", FILES)
def test_results_are_those_of_pytorch(name: str) -> None:
    assert outcome_of(name).result < 1e-6


@pytest.mark.parametrize("name", FILES)
def test_nothing_is_trained_that_was_no_parameter(name: str) -> None:
    found = outcome_of(name)
    assert 0 < found.trained == found.own


@pytest.mark.parametrize("name", PLAIN)
def test_without_optimization_all_parameters_are_trained(name: str) -> None:
    found = outcome_of(name)
    assert found.trained == found.own == found.parameters == found.gradients
    assert found.gradient < 1e-6


@pytest.mark.parametrize("name", [name for name in PLAIN if "dynamo" in name])
def test_without_optimization_nothing_is_warned_of(name: str) -> None:
    assert imported(name).warnings == ()


@pytest.mark.parametrize("name", ["llama.dynamo", "gpt2.dynamo", "lstm.dynamo"])
def test_every_parameter_that_was_merged_or_folded_is_named(name: str) -> None:
    found = imported(name)
    said = " ".join(found.warnings)
    lost = parameters_of(name.partition(".")[0]) - trained_in(found) - {"transformer.wte.weight"}
    assert lost
    assert [name for name in lost if f"`{name}`" not in said] == []
    assert "optimize=False" in said


def test_a_parameter_that_a_constant_was_computed_from_is_named() -> None:
    said = " ".join(imported("segmenter.dynamo").warnings)
    assert "`expand` (computed from `token`)" in said
    assert "`normalization.bias`, `normalization.weight`" in said
    assert "`convolution.weight` (read by" in said


def test_a_head_that_was_transposed_is_told_to_be_a_constant() -> None:
    assert "(computed from `lm_head.weight`)" in " ".join(imported("gpt2.dynamo").warnings)


def test_unnamed_weights_are_told_with_the_node_that_reads_them() -> None:
    said = " ".join(imported("lstm.script").warnings)
    assert re.search(r"`onnx::LSTM_\d+` \(read by `/recurrent/LSTM`\)", said)


def test_equal_fresh_parameters_that_were_merged_are_parted_again() -> None:
    found = imported("llama.script")
    assert {"model.norm.weight", "model.layers.1.input_layernorm.weight"} <= trained_in(found)
    assert "is trained by itself again: `model.norm.weight`" in " ".join(found.warnings)


def test_a_parameter_that_was_merged_into_a_buffer_is_trained() -> None:
    node, read = helper.make_node, ["n.weight", "n.bias", "n.running_mean", "n.running_var"]
    nodes = [
        node("Identity", ["n.running_mean"], ["n.bias"]),
        node("Identity", ["n.weight"], ["n.running_var"]),
        node("BatchNormalization", ["x", *read], ["y"]),
    ]
    weights = {
        "n.running_mean": np.zeros(3, np.float32),
        "n.weight": np.ones(3, np.float32),
    }
    found = import_model(model("m", nodes, {"x": (2, 3, 4)}, "y", weights))
    assert trained_in(found) == {"n.weight", "n.bias"}
    assert "merged 1 parameter into" in found.warnings[0]


def test_names_of_modules_with_capitals_are_found_again() -> None:
    node = helper.make_node("Mul", ["x", "first.Norm.weight"], ["y"])
    node.metadata_props.add(key="pkg.torch.onnx.fx_node", value="%mul(%x, %p_second_norm_weight)")
    scopes = "['', 'second', 'second.Norm', 'mul']"
    node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=scopes)
    weights = {"first.Norm.weight": np.ones(3, np.float32)}
    proto = model("m", [node], {"x": (2, 3)}, "y", weights)
    value = helper.make_tensor_value_info("first.Norm.weight", onnx.TensorProto.FLOAT, None)
    kind = "pkg.torch.export.graph_signature.InputSpec.kind"
    value.metadata_props.add(key=kind, value="PARAMETER")
    original = "pkg.torch.onnx.original_node_name"
    value.metadata_props.add(key=original, value="p_first_norm_weight")
    proto.graph.value_info.append(value)
    assert "`second.Norm.weight`" in import_model(proto).warnings[0]


def with_identity(weight: np.ndarray) -> Imported:
    """Two layers, of which the second reads the weight of the first by another name."""
    node = helper.make_node
    nodes = [
        node("Identity", ["first.weight"], ["second.weight"]),
        node("MatMul", ["x", "first.weight"], ["h"]),
        node("MatMul", ["h", "second.weight"], ["y"]),
    ]
    return import_model(model("m", nodes, {"x": (2, 3)}, "y", {"first.weight": weight}))


def test_equal_parameters_of_different_numbers_are_one_and_named() -> None:
    found = with_identity(np.arange(9, dtype=np.float32).reshape(3, 3))
    assert trained_in(found) == {"first.weight"}
    assert "`second.weight` with `first.weight`" in found.warnings[0]
    assert trained_in(with_identity(np.ones((3, 3), np.float32))) == {
        "first.weight",
        "second.weight",
    }


@pytest.mark.parametrize(
    "name", ["onnx::Add_12", "val_7", "1234", "/Constant_output_0", "const_fold_opt__3", "inv_freq"]
)
def test_constants_without_a_name_of_their_own_are_not_trained(name: str) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["h"]),
        helper.make_node("Add", ["h", name], ["y"]),
    ]
    weights = {
        "weight": np.eye(3, dtype=np.float32),
        name: np.arange(3, dtype=np.float32),
    }
    found = import_model(model("m", nodes, {"x": (2, 3)}, "y", weights))
    assert trained_in(found) == {"weight"}


def test_a_file_that_names_no_parameter_says_that_nothing_is_trained() -> None:
    nodes = [helper.make_node("MatMul", ["x", "val_1"], ["y"])]
    weights = {"val_1": np.arange(9, dtype=np.float32).reshape(3, 3)}
    found = import_model(model("m", nodes, {"x": (2, 3)}, "y", weights))
    assert found.warnings[-1].startswith("nothing is trained")


def test_parameters_of_one_number_are_trained_where_they_are_noted() -> None:
    node = helper.make_node
    nodes = [node("Div", ["x", "temperature"], ["h"]), node("Mul", ["h", "weight"], ["y"])]
    weights = {
        "temperature": np.array(2, np.float32),
        "weight": np.arange(3, dtype=np.float32),
    }
    proto = model("m", nodes, {"x": (2, 3)}, "y", weights)
    for name in weights:
        value = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        key = "pkg.torch.export.graph_signature.InputSpec.kind"
        value.metadata_props.add(key=key, value="PARAMETER")
        proto.graph.value_info.append(value)
    assert trained_in(import_model(proto)) == {"temperature", "weight"}


def test_warnings_are_told_by_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    path = FIXTURES / "segmenter.dynamo.onnx"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load(str(path))
    assert {warning.category for warning in caught} == {ShardwrightWarning}
    assert "merged or folded at least 2 parameters" in str(caught[0].message)
    assert main(["compile", str(path), "--devices", "2", "--cluster", "cpu"]) == 0
    captured = capsys.readouterr().err
    assert f"shardwright: warning: `{path}`: the exporter has merged or folded" in captured


# What is recognised


@pytest.mark.parametrize("name", DECODERS)
def test_attention_and_normalizations_of_decoders_are_one_operator_each(name: str) -> None:
    counts = Counter(node.operator for node in imported(name).graph.nodes)
    assert counts["scaled_dot_product_attention"] == 2
    assert counts["rms_norm"] == 5 * name.startswith("llama")
    assert counts["layer_norm"] == 5 * name.startswith("gpt2")
    assert not {"softmax", "is_nan", "where", "sqrt", "reciprocal"} & set(counts)


@pytest.mark.parametrize("name", [name for name in DECODERS if name.startswith("llama")])
def test_heads_of_keys_that_are_shared_are_not_repeated(name: str) -> None:
    graph = imported(name).graph
    assert "broadcast_to" not in {node.operator for node in graph.nodes}
    for node in graph.nodes:
        if node.operator == "scaled_dot_product_attention":
            shapes = [value.type.shape[1] for value in graph.operand_values(node)]
            assert shapes[:3] == [4, 2, 2]
            assert len(shapes) == 4 or node.attributes["causal"]


def test_scopes_are_the_modules_that_the_exporter_notes() -> None:
    scopes = {node.scope for node in imported("llama.dynamo-plain").graph.nodes}
    assert "model/layers/0/self_attn/q_proj" in scopes


def attention(kind: str) -> onnx.ModelProto:
    """Attention of 4 heads of 3 positions, the mask computed from an input."""
    node = helper.make_node
    cast = node("Cast", ["seen"], ["read"], to=onnx.TensorProto.BOOL)
    masks = {
        "chosen": [cast, node("Where", ["read", "scores", "minus infinity"], ["masked"])],
        "finite": [cast, node("Where", ["read", "scores", "far below"], ["masked"])],
        "added": [
            cast,
            node("Where", ["read", "zero", "minus infinity"], ["mask"]),
            node("Add", ["scores", "mask"], ["masked"]),
        ],
        "samples": [node("Identity", ["scores"], ["masked"])],
    }
    nodes = [
        node("Mul", ["x", "half"], ["q"]),
        node("Transpose", ["x"], ["t"], perm=[0, 2, 1] if kind == "samples" else [0, 1, 3, 2]),
        node("Mul", ["t", "half"], ["k"]),
        node("MatMul", ["q", "k"], ["scores"]),
        *masks[kind],
        node("Softmax", ["masked"], ["weights"], axis=-1),
        node("IsNaN", ["weights"], ["empty"]),
        node("Where", ["empty", "zero", "weights"], ["filled"]),
        node("MatMul", ["filled", "x"], ["y"]),
    ]
    numbers = {"half": 0.5, "zero": 0.0, "minus infinity": -np.inf, "far below": -1e9}
    used = {name for n in nodes for name in n.input}
    weights = {n: np.array(v, np.float32) for n, v in numbers.items() if n in used}
    x = (2, 3, 4) if kind == "samples" else (2, 4, 3, 5)
    inputs = {"x": x} if kind == "samples" else {"x": x, "seen": (2, 1, 3, 3)}
    return model("m", nodes, inputs, "y", weights)


@pytest.mark.parametrize("kind", ["chosen", "finite", "added", "samples"])
def test_attention_with_a_mask_that_is_computed(kind: str) -> None:
    proto = attention(kind)
    found = import_model(proto)
    operators = [node.operator for node in found.graph.nodes]
    assert "scaled_dot_product_attention" in operators
    assert "softmax" not in operators
    random = np.random.default_rng(1)
    inputs = {v.name: random.normal(size=v.type.shape) for v in found.graph.inputs}
    if "seen" in inputs:
        inputs["seen"] = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 1]] * 2).reshape(2, 1, 3, 3)
    inputs = {name: array.astype(np.float32) for name, array in inputs.items()}
    expected = expected_attention(inputs["x"], inputs.get("seen"), kind)
    np.testing.assert_allclose(run_alone(found, inputs)[0], expected, rtol=1e-5, atol=1e-6)


def expected_attention(x: np.ndarray, seen: np.ndarray | None, kind: str) -> np.ndarray:
    scores = 0.25 * x @ np.swapaxes(x, -1, -2)
    if seen is not None:
        scores = np.where(seen > 0, scores, -1e9 if kind == "finite" else -np.inf)
    peak = scores.max(-1, keepdims=True)
    e = np.exp(scores - np.where(np.isfinite(peak), peak, 0))
    return e / np.maximum(e.sum(-1, keepdims=True), 1e-30) @ x


# Losses of images


def test_a_loss_of_images_takes_the_second_dimension_as_classes() -> None:
    found = imported("segmenter.dynamo-plain", loss="cross_entropy")
    x, label = found.graph.inputs
    assert str(label.type) == "i32[2, 5, 5]"
    random = np.random.default_rng(0)
    inputs = {"x": random.normal(size=x.type.shape).astype(np.float32)}
    labels = random.integers(0, 3, label.type.shape)
    scores = run_alone(imported("segmenter.dynamo-plain"), inputs)[0]
    picked = np.take_along_axis(scores, labels[:, None], 1)[:, 0]
    expected = (np.log(np.exp(scores).sum(1)) - picked).mean()
    loss = run_alone(found, {**inputs, label.name: labels})[0]
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("shape", "axis", "given", "labels"),
    [
        ((2, 3, 5, 7), None, None, (2, 5, 7)),
        ((2, 3, 5, 7), 3, None, (2, 3, 5)),
        ((2, 3, 5, 7), None, 3, (2, 3, 5)),
        ((2, 3, 5), None, None, (2, 3)),
        ((2, 3, 5), 1, None, (2, 5)),
        ((2, 3, 5), None, -2, (2, 5)),
    ],
)
def test_where_the_classes_are(
    shape: tuple[int, ...], axis: int | None, given: int | None, labels: tuple[int, ...]
) -> None:
    ends = [helper.make_node("Relu", ["x"], ["y"])]
    if axis is not None:
        ends = [helper.make_node("Softmax", ["x"], ["y"], axis=axis)]
    proto = model("m", ends, {"x": shape}, "y", {})
    graph = import_model(proto, loss="cross_entropy", class_axis=given).graph
    assert graph.inputs[1].type.shape == labels
    assert "softmax" not in {node.operator for node in graph.nodes}


def test_a_class_axis_that_is_none_is_refused(tmp_path: Path) -> None:
    path = FIXTURES / "segmenter.dynamo-plain.onnx"
    assert load(f"{path}:class_axis=3").inputs[1].type.shape == (2, 3, 5)
    with pytest.raises(ModelError, match="no dimension 4 of classes; `class_axis` is"):
        load(f"{path}:class_axis=4")
    with pytest.raises(ModelError, match="`class_axis` is `x`, expected an integer"):
        load(f"{path}:class_axis=x")


# Scattering


@pytest.mark.parametrize("reduction", ["max", "min", "mul", "add"])
@pytest.mark.parametrize("by_row", [True, False])
def test_a_scatter_with_a_reduction_is_a_few_operators(reduction: str, by_row: bool) -> None:
    node = helper.make_node
    expand = [node("Expand", ["index", "sizes"], ["wide"])]
    scatter = node("ScatterElements", ["x", "wide", "u"], ["y"], axis=0, reduction=reduction)
    index = (50, 1) if by_row else (50, 4)
    inputs = {"x": (6, 4), "index": index, "u": (50, 4)}
    sizes = {"sizes": np.array([50, 4])}
    proto = model("m", [*expand, scatter], inputs, "y", sizes, integers=("index",))
    found = import_model(proto)
    assert len(found.graph.nodes) < 20
    random = np.random.default_rng(0)
    x, u = (random.normal(size=shape).astype(np.float32) for shape in ((6, 4), (50, 4)))
    at = random.integers(-6, 6, index)
    expected = x.copy()
    ufunc = {"max": np.maximum, "min": np.minimum, "mul": np.multiply, "add": np.add}[reduction]
    columns = np.broadcast_to(np.arange(4), (50, 4))
    ufunc.at(expected, (np.broadcast_to(at, (50, 4)), columns), u)
    result = run_alone(found, {"x": x, "index": at, "u": u})[0]
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-6)


def test_messages_along_many_edges_are_a_few_operators() -> None:
    assert len(imported("graph.dynamo").graph.nodes) < 35


# Weights in files of their own


@pytest.fixture
def external(tmp_path: Path) -> Path:
    """A model whose weights are in `weights.bin`."""
    proto = onnx.load(FIXTURES / "llama.dynamo-plain.onnx")
    path = tmp_path / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=64)
    return path


def test_weights_are_read_only_when_they_are_asked_for(
    external: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    original = numpy_helper.to_array

    def counted(tensor: onnx.TensorProto, base_dir: str = "") -> np.ndarray:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            read.append(tensor.name)
        return original(tensor, base_dir)

    monkeypatch.setattr(numpy_helper, "to_array", counted)
    definition = load(str(external))
    assert read == []
    weight = definition.initial["lm_head.weight"]
    assert read == ["lm_head.weight"]
    right = imported("llama.dynamo-plain").initial["lm_head.weight"]
    np.testing.assert_array_equal(weight, right)


def test_a_model_is_planned_without_its_weights(
    external: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_weights = shardwright.compile(str(external), 4, cluster="cpu", **ANY_PLAN)
    (tmp_path / "weights.bin").unlink()
    with pytest.warns(ShardwrightWarning, match="`weights.bin` are missing"):
        compilation = shardwright.compile(str(external), 4, cluster="cpu", **ANY_PLAN)
    document = compilation.plan.document
    assert document.predicted_step_seconds == with_weights.plan.document.predicted_step_seconds
    with pytest.raises(ExecutionError, match="begin with values of the model, which are missing"):
        next(iter(shardwright.run(compilation, 1)))
    plan = str(tmp_path / "plan")
    assert (
        main(["compile", str(external), "--devices", "4", "--cluster", "cpu", "--out", plan]) == 0
    )
    capsys.readouterr()
    assert main(["run", plan, "--steps", "1"]) == 2
    error = capsys.readouterr().err
    assert "compile it again in the folder with the files of its weights" in error


def test_an_element_that_is_needed_and_missing_is_told(tmp_path: Path) -> None:
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    proto = model("m", nodes, {"x": (2, 2)}, "y", {"shape": np.array([4])})
    path = tmp_path / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="there.bin", size_threshold=0)
    (tmp_path / "there.bin").unlink()
    with pytest.raises(ModelError) as caught:
        load(str(path))
    assert str(caught.value) == (
        "the elements of `shape` must be known when the model is imported (in Reshape `y`); they "
        "are in `there.bin`, which is missing"
    )


@pytest.mark.parametrize(
    ("location", "what"),
    [
        ("../secret", "leads out of the folder of the model"),
        ("sub/../../secret", "leads out of the folder of the model"),
        ("link", "leads out of the folder of the model"),
        ("pipe", "is a folder, a pipe or a device"),
        (".", "is a folder, a pipe or a device"),
    ],
)
def test_weights_that_are_no_file_of_the_folder_are_not_called_missing(
    location: str, what: str, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to("/dev/zero")
    tensor = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[4])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    with pytest.raises(ModelError) as caught:
        _ = Stored(tensor, str(folder)).is_absent
    assert str(caught.value) == (
        f"the elements of `w` are in the file `{location}`, which {what}; "
        "put it into the folder of the model"
    )


def test_a_file_of_weights_that_is_too_short_is_told(external: Path) -> None:
    (external.parent / "weights.bin").write_bytes(b"short")
    definition = load(str(external))
    with pytest.raises(ModelError, match=r"`lm_head\.weight` cannot be read"):
        definition.initial["lm_head.weight"]


def test_an_element_type_that_no_program_has_is_told() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    proto = model("m", nodes, {"x": (2, 2)}, "y", {})
    proto.graph.initializer.append(helper.make_tensor("w", onnx.TensorProto.FLOAT8E4M3FN, [1], [1]))
    with pytest.raises(ModelError, match="the element type FLOAT8E4M3FN cannot be imported"):
        import_model(proto)
