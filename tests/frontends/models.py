"""Small ONNX models, made with the helpers of the ONNX project."""

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

OPSET = 18


def model(
    name: str,
    nodes: list[NodeProto],
    inputs: dict[str, tuple[str | int, ...]],
    output: str,
    weights: dict[str, np.ndarray],
    *,
    integers: tuple[str, ...] = (),
    opset: int = OPSET,
) -> ModelProto:
    """Return a model with one output, whose shape is left open."""
    graph = helper.make_graph(
        nodes,
        name,
        [
            helper.make_tensor_value_info(
                key, TensorProto.INT64 if key in integers else TensorProto.FLOAT, shape
            )
            for key, shape in inputs.items()
        ],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, key) for key, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def _normal(random: np.random.Generator, *shape: int) -> np.ndarray:
    return random.normal(0, 0.2, shape).astype(np.float32)


def mlp() -> ModelProto:
    """Two layers and a softmax."""
    random = np.random.default_rng(0)
    node = helper.make_node
    return model(
        "mlp",
        [
            node("MatMul", ["x", "layer1.weight"], ["/layer1/MatMul_output_0"], "/layer1/MatMul"),
            node("Add", ["/layer1/MatMul_output_0", "layer1.bias"], ["sum"], "/layer1/Add"),
            node("Relu", ["sum"], ["hidden"], "/relu/Relu"),
            node("Gemm", ["hidden", "layer2.weight", "layer2.bias"], ["scores"], transB=1),
            node("Softmax", ["scores"], ["probability"]),
        ],
        {"x": ("batch", 16)},
        "probability",
        {
            "layer1.weight": _normal(random, 16, 32),
            "layer1.bias": _normal(random, 32),
            "layer2.weight": _normal(random, 12, 32),
            "layer2.bias": _normal(random, 12),
        },
    )


def conv_net() -> ModelProto:
    """Convolution, normalization, pooling and a flattening that reads its size from the graph."""
    random = np.random.default_rng(1)
    node = helper.make_node
    nodes = [
        node(
            "Conv", ["x", "conv.weight", "conv.bias"], ["c"], pads=[1, 1, 1, 1], name="/conv/Conv"
        ),
        node("BatchNormalization", ["c", "gamma", "beta", "mean", "variance"], ["n"]),
        node("LeakyRelu", ["n"], ["r"], alpha=0.1),
        node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Shape", ["p"], ["shape"]),
        node("Gather", ["shape", "zero"], ["count"], axis=0),
        node("Concat", ["count", "rest"], ["flat_shape"], axis=0),
        node("Reshape", ["p", "flat_shape"], ["flat"]),
        node("MatMul", ["flat", "fc.weight"], ["scores"]),
    ]
    weights = {
        "conv.weight": _normal(random, 8, 3, 3, 3),
        "conv.bias": _normal(random, 8),
        "gamma": 1 + _normal(random, 8),
        "beta": _normal(random, 8),
        "mean": _normal(random, 8),
        "variance": 1 + np.abs(_normal(random, 8)),
        "fc.weight": _normal(random, 128, 10),
        "zero": np.array([0]),
        "rest": np.array([-1]),
    }
    return model("conv_net", nodes, {"x": ("N", 3, 8, 8)}, "scores", weights)


def _transformer_weights(
    hidden: int, heads: int, sequence: int, vocabulary: int
) -> dict[str, np.ndarray]:
    random = np.random.default_rng(2)
    return {
        "table": _normal(random, vocabulary, hidden),
        "positions": _normal(random, sequence, hidden),
        "qkv": _normal(random, hidden, 3 * hidden),
        "out": _normal(random, hidden, hidden),
        "norm.weight": 1 + _normal(random, hidden),
        "norm.bias": _normal(random, hidden),
        "up": _normal(random, hidden, 4 * hidden),
        "down": _normal(random, 4 * hidden, hidden),
        "head_shape": np.array([0, 0, heads, hidden // heads]),
        "flat_shape": np.array([0, 0, hidden]),
        "scale": np.array(0.5, np.float32),
        "least": np.array([-1e9], np.float32),
        "zero": np.array(0),
        "one": np.array(1),
        "zero1": np.array([0]),
        "one1": np.array([1]),
    }


def transformer() -> ModelProto:
    """Tokens to scores through one block of attention, as exporters write it: with shapes computed.

    The causal mask is made by the graph, too.
    """
    hidden, heads, sequence, vocabulary = 16, 4, 8, 32
    node = helper.make_node
    weights = _transformer_weights(hidden, heads, sequence, vocabulary)
    nodes = [
        node("Gather", ["table", "tokens"], ["e"], "/embed/Gather"),
        node("Add", ["e", "positions"], ["h"]),
        node("LayerNormalization", ["h", "norm.weight", "norm.bias"], ["n"], axis=-1),
        node("MatMul", ["n", "qkv"], ["mixed"]),
        node("Split", ["mixed"], ["q", "k", "v"], axis=2, num_outputs=3),
    ]
    for name, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [
            node("Reshape", [name, "head_shape"], [f"{name}.heads"]),
            node("Transpose", [f"{name}.heads"], [f"{name}.t"], perm=order),
        ]
    nodes += [
        node("MatMul", ["q.t", "k.t"], ["raw"], "/attention/MatMul"),
        node("Mul", ["raw", "scale"], ["scaled"]),
        node("Shape", ["tokens"], ["token_shape"]),
        node("Gather", ["token_shape", "one"], ["length"]),
        node("Range", ["zero", "length", "one"], ["places"]),
        node("Unsqueeze", ["places", "zero1"], ["row"]),
        node("Unsqueeze", ["places", "one1"], ["column"]),
        node("Less", ["column", "row"], ["hidden_places"]),
        node("Where", ["hidden_places", "least", "scaled"], ["masked"]),
        node("Softmax", ["masked"], ["weights"], axis=-1),
        node("MatMul", ["weights", "v.t"], ["read"]),
        node("Transpose", ["read"], ["read.t"], perm=[0, 2, 1, 3]),
        node("Reshape", ["read.t", "flat_shape"], ["flat"]),
        node("MatMul", ["flat", "out"], ["o"]),
        node("Add", ["h", "o"], ["h2"]),
        node("MatMul", ["h2", "up"], ["u"]),
        node("Tanh", ["u"], ["g"]),
        node("MatMul", ["g", "down"], ["d"]),
        node("Add", ["h2", "d"], ["h3"]),
        node("Transpose", ["table"], ["table.t"], perm=[1, 0]),
        node("MatMul", ["h3", "table.t"], ["scores"]),
    ]
    inputs: dict[str, tuple[str | int, ...]] = {"tokens": ("batch", sequence)}
    return model("transformer", nodes, inputs, "scores", weights, integers=("tokens",))


class _Exporter:
    """Writes nodes as exporters do: named by their scope, constants as nodes."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}

    def __call__(self, operator: str, *inputs: object, scope: str = "", **how: object) -> str:
        names = [i if isinstance(i, str) else self.constant(i) for i in inputs]
        name = f"{scope}/{operator}_{len(self.nodes)}"
        node = helper.make_node(operator, names, [f"{name}_output_0"], name, **how)
        self.nodes.append(node)
        return node.output[0]

    def constant(self, value: object) -> str:
        array = np.asarray(value, np.float32 if isinstance(value, float) else np.int64)
        name = f"/Constant_{len(self.nodes)}"
        node = helper.make_node("Constant", [], [f"{name}_output_0"], name)
        node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(array)))
        self.nodes.append(node)
        return node.output[0]

    def weight(self, name: str, *shape: int) -> str:
        self.weights[name] = _normal(self.random, *shape)
        return name

    def layer_norm(self, x: str, name: str, size: int) -> str:
        centred = self("Sub", x, self("ReduceMean", x, [-1]))
        variance = self("ReduceMean", self("Pow", centred, 2.0), [-1])
        root = self("Sqrt", self("Add", variance, 1e-5))
        scaled = self("Mul", self("Div", centred, root), self.weight(f"{name}.weight", size))
        return self("Add", scaled, self.weight(f"{name}.bias", size))

    def heads(self, x: str, count: int, size: int, order: list[int]) -> str:
        shape = self("Shape", x)
        leading = [self("Unsqueeze", self("Gather", shape, i, axis=0), [0]) for i in (0, 1)]
        wanted = self("Concat", *leading, [count], [size], axis=0)
        return self("Transpose", self("Reshape", x, wanted), perm=order)

    def gelu(self, x: str) -> str:
        cube = self("Mul", self("Pow", x, 3.0), 0.044715)
        tanh = self("Tanh", self("Mul", self("Add", x, cube), (2 / np.pi) ** 0.5))
        return self("Mul", self("Mul", x, 0.5), self("Add", tanh, 1.0))


def exported_gpt() -> ModelProto:
    """GPT-2 with one block, every composition written out."""
    hidden, heads, places, vocabulary = 16, 4, 12, 32
    e = _Exporter(5)
    length = e("Gather", e("Shape", "tokens"), 1, axis=0)
    positions = e("Unsqueeze", e("Range", 0, length, 1), [0])
    tokens = e("Gather", e.weight("wte.weight", vocabulary, hidden), "tokens")
    x = e("Add", tokens, e("Gather", e.weight("wpe.weight", places, hidden), positions))
    y = e.layer_norm(x, "h.0.ln_1", hidden)
    flat = e("Reshape", y, [-1, hidden])
    mixed = e("Gemm", flat, e.weight("qkv.weight", hidden, 3 * hidden), e.weight("qkv.bias", 48))
    mixed = e("Reshape", mixed, e("Concat", e("Shape", "tokens"), [3 * hidden], axis=0))
    parts = [e("Slice", mixed, [i * hidden], [(i + 1) * hidden], [2]) for i in range(3)]
    orders = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    q, k, v = (
        e.heads(part, heads, hidden // heads, order)
        for part, order in zip(parts, orders, strict=True)
    )
    scores = e("Div", e("MatMul", q, k, scope="/h.0/attn"), (hidden / heads) ** 0.5)
    e.weights["h.0.attn.bias"] = np.tril(np.ones((1, 1, places, places), bool))
    rows = e("Slice", "h.0.attn.bias", [0], e("Unsqueeze", length, [0]), [2])
    mask = e("Slice", rows, [0], e("Unsqueeze", length, [0]), [3])
    weights = e("Softmax", e("Where", mask, scores, -3.4e38), axis=-1)
    read = e("Transpose", e("MatMul", weights, v, scope="/h.0/attn"), perm=[0, 2, 1, 3])
    read = e("Reshape", read, [0, 0, hidden])
    x = e("Add", x, e("MatMul", read, e.weight("out.weight", hidden, hidden)))
    y = e.layer_norm(x, "h.0.ln_2", hidden)
    wide = e.gelu(e("MatMul", y, e.weight("up.weight", hidden, 4 * hidden)))
    x = e("Add", x, e("MatMul", wide, e.weight("down.weight", 4 * hidden, hidden)))
    x = e.layer_norm(x, "ln_f", hidden)
    scores = e("MatMul", x, e.weight("head.weight", hidden, vocabulary))
    inputs: dict[str, tuple[str | int, ...]] = {"tokens": ("batch", "sequence")}
    return model("exported_gpt", e.nodes, inputs, scores, e.weights, integers=("tokens",))


def recurrent() -> ModelProto:
    """A bidirectional LSTM over a sequence, and a layer over its last states."""
    random = np.random.default_rng(3)
    node = helper.make_node
    how = {"direction": "bidirectional", "hidden_size": 8}
    nodes = [
        node("Transpose", ["x"], ["by_step"], perm=[1, 0, 2]),
        node("LSTM", ["by_step", "w", "r", "b"], ["", "last"], "/lstm/LSTM", **how),
        node("Transpose", ["last"], ["by_sample"], perm=[1, 0, 2]),
        node("Flatten", ["by_sample"], ["flat"]),
        node("Gemm", ["flat", "head.weight"], ["scores"]),
    ]
    weights = {
        "w": _normal(random, 2, 32, 6),
        "r": _normal(random, 2, 32, 8),
        "b": _normal(random, 2, 64),
        "head.weight": _normal(random, 16, 4),
    }
    inputs: dict[str, tuple[str | int, ...]] = {"x": ("batch", 3, 6)}
    return model("recurrent", nodes, inputs, "scores", weights)


def looped() -> ModelProto:
    """A matrix applied again and again by a loop, inside of which a branch is taken."""
    node = helper.make_node
    value, real, boolean = helper.make_tensor_value_info, TensorProto.FLOAT, TensorProto.BOOL
    grown = helper.make_graph(
        [node("MatMul", ["state", "step.weight"], ["moved"]), node("Tanh", ["moved"], ["then"])],
        "grow",
        [],
        [value("then", real, None)],
    )
    kept = helper.make_graph(
        [node("Identity", ["state"], ["otherwise"])], "keep", [], [value("otherwise", real, None)]
    )
    body = helper.make_graph(
        [
            node("Less", ["trip", "most"], ["early"]),
            node("If", ["early"], ["next"], then_branch=grown, else_branch=kept),
            node("Identity", ["going"], ["going.next"]),
        ],
        "body",
        [
            value("trip", TensorProto.INT64, ()),
            value("going", boolean, ()),
            value("state", real, None),
        ],
        [value("going.next", boolean, ()), value("next", real, None)],
    )
    nodes = [
        node("Loop", ["trips", "", "x"], ["scores"], "/loop/Loop", body=body),
    ]
    weights = {
        "step.weight": _normal(np.random.default_rng(4), 6, 6) * 4,
        "trips": np.array(4),
        "most": np.array(3),
    }
    return model("looped", nodes, {"x": ("batch", 6)}, "scores", weights)
