"""Recurrent layers of ONNX: one operator where they are PyTorch's, else the same step by step."""

from collections import Counter

import numpy as np
import pytest
from onnx import ModelProto, helper
from onnx_tests import node_cases, run_alone, run_case, run_sharded

from shardwright.frontends.onnx import import_model
from tests.frontends.models import model

STEPS, BATCH, FEATURES, HIDDEN = 5, 4, 3, 6
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def layer(kind: str, direction: str, **how: object) -> ModelProto:
    """Return a layer with biases and given initial states, all of whose results are read."""
    random = np.random.default_rng(0)
    ways, rows = 2 if direction == "bidirectional" else 1, GATES[kind] * HIDDEN
    weights = {
        "w": random.normal(size=(ways, rows, FEATURES)).astype(np.float32),
        "r": random.normal(size=(ways, rows, HIDDEN)).astype(np.float32),
        "b": random.normal(size=(ways, 2 * rows)).astype(np.float32),
        "h": random.normal(size=(ways, BATCH, HIDDEN)).astype(np.float32),
        "c": random.normal(size=(ways, BATCH, HIDDEN)).astype(np.float32),
    }
    is_lstm = kind == "LSTM"
    given = ["x", "w", "r", "b", "", "h", *(["c"] if is_lstm else [])]
    made = ["y", "y_h", *(["y_c"] if is_lstm else [])]
    more = {"linear_before_reset": 1} if kind == "GRU" else {}
    own = {"direction": direction, "hidden_size": HIDDEN, **more, **how}
    nodes = [helper.make_node(kind, given, made, "/layer", **own)]
    nodes += [helper.make_node("Flatten", [name], [f"{name}_2"], axis=0) for name in made]
    nodes.append(helper.make_node("Concat", [f"{name}_2" for name in made], ["out"], axis=1))
    weights = weights if is_lstm else {n: w for n, w in weights.items() if n != "c"}
    return model("layer", nodes, {"x": (STEPS, BATCH, FEATURES)}, "out", weights)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", GATES)
def test_a_layer_is_one_operator_for_each_direction(kind: str, direction: str) -> None:
    random = np.random.default_rng(1)
    inputs = {"x": random.normal(size=(STEPS, BATCH, FEATURES)).astype(np.float32)}
    whole = import_model(layer(kind, direction))
    unrolled = import_model(layer(kind, direction, clip=1e9))  # which the operator does not have
    ways = 2 if direction == "bidirectional" else 1
    count = [
        Counter(node.operator for node in one.graph.nodes)["recurrent_layer"]
        for one in (whole, unrolled)
    ]
    assert count == [ways, 0]
    right = run_alone(unrolled, inputs, "float64")
    for found in (
        run_alone(whole, inputs, "float64"),
        run_sharded(whole, inputs, random, "float64"),
    ):
        np.testing.assert_allclose(found[0], right[0], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("how", [{"input_forget": 1}, {"activations": ["Sigmoid", "Tanh", "Relu"]}])
def test_other_layers_are_unrolled(how: dict[str, object]) -> None:
    graph = import_model(layer("LSTM", "forward", **how)).graph
    assert all(node.operator != "recurrent_layer" for node in graph.nodes)


def test_a_reset_before_the_product_is_unrolled() -> None:
    graph = import_model(layer("GRU", "forward", linear_before_reset=0)).graph
    assert all(node.operator != "recurrent_layer" for node in graph.nodes)


def test_the_layers_of_onnx_give_what_it_says() -> None:
    found = [run_case(case) for case in node_cases(("gru", "lstm", "rnn"))]
    assert len(found) > 8
    assert not [outcome.reason for outcome in found if not (outcome.alone and outcome.sharded)]
