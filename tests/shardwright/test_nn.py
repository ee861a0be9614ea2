import numpy as np
import pytest

from shardwright import nn
from shardwright.compiler.driver import compile_graph
from shardwright.cost_model.cluster import cluster
from shardwright.ir.errors import IRError, ModelError, OptionError
from shardwright.ir.types import TensorType
from shardwright.parallel import AutoParallel
from shardwright.parameter import Parameter
from shardwright.planner.options import CompileOptions
from shardwright.session import begin
from shardwright.tensor import Tensor
from shardwright.tracing import InputSpec, trace
from tests.equivalence import assert_equal, trained
from tests.shardwright.programs import outputs_of

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(4, 6))


def result_of(cell, *arrays):
    specs = [InputSpec(f"x{i}", TensorType(a.dtype.name, a.shape), 9) for i, a in enumerate(arrays)]
    definition = trace(cell, specs)
    return outputs_of(definition, {s.name: a for s, a in zip(specs, arrays, strict=True)})[0]


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (nn.ReLU(), np.maximum(X, 0)),
        (nn.SiLU(), X / (1 + np.exp(-X))),
        (nn.Tanh(), np.tanh(X)),
        (nn.Sigmoid(), 1 / (1 + np.exp(-X))),
        (nn.Softmax(), softmax(X)),
        (nn.Softmax(axis=0), softmax(X.T).T),
        (nn.RMSNorm(6, dtype="float64"), X / np.sqrt((X**2).mean(-1, keepdims=True) + 1e-6)),
        (
            nn.LayerNorm((6,), dtype="float64"),
            (X - X.mean(-1, keepdims=True)) / np.sqrt(X.var(-1, keepdims=True) + 1e-5),
        ),
        (nn.Dense(6, 3, "ones", 0.5, dtype="float64"), X.sum(-1, keepdims=True) + [[0.5] * 3]),
        (
            nn.Dense(6, 2, "ones", has_bias=False, activation="relu", dtype="float64"),
            np.maximum(X.sum(-1, keepdims=True), 0) * np.ones(2),
        ),
        (nn.SequentialCell([nn.ReLU(), nn.Tanh()]), np.tanh(np.maximum(X, 0))),
        (nn.Flatten(), X),
    ],
)
def test_layers_compute_what_they_say(cell, expected):
    np.testing.assert_allclose(result_of(cell, X), expected, rtol=1e-6, atol=1e-12)


IMAGE = RANDOM.normal(size=(2, 4, 6, 6))


@pytest.mark.parametrize(
    ("cell", "shape", "weight"),
    [
        (nn.Conv2d(4, 6, 3), (2, 6, 6, 6), (6, 4, 3, 3)),
        (nn.Conv2d(4, 6, 3, 2), (2, 6, 3, 3), (6, 4, 3, 3)),
        (nn.Conv2d(4, 6, 3, pad_mode="valid", dilation=2), (2, 6, 2, 2), (6, 4, 3, 3)),
        (nn.Conv2d(4, 8, (3, 1), group=4, pad_mode="pad", padding=1), (2, 8, 6, 8), (8, 1, 3, 1)),
        (nn.Conv2dTranspose(4, 6, 2, 2), (2, 6, 12, 12), (4, 6, 2, 2)),
        (nn.Conv2dTranspose(4, 6, 3, 2), (2, 6, 12, 12), (4, 6, 3, 3)),
        (nn.Conv2dTranspose(4, 6, 3, 2, pad_mode="valid", group=2), (2, 6, 13, 13), (4, 3, 3, 3)),
        (nn.MaxPool2d(2, 2), (2, 4, 3, 3), None),
        (nn.AvgPool2d(3, 2, "same"), (2, 4, 3, 3), None),
        (nn.GlobalAvgPool(), (2, 4), None),
    ],
)
def test_convolutions_and_poolings_have_the_shapes_they_say(cell, shape, weight):
    assert result_of(cell, IMAGE.astype(np.float32)).shape == shape
    if weight is not None:
        assert cell.weight.shape == weight


def test_convolutions_of_ones_count_what_they_meet():
    ones = np.ones((1, 1, 3, 3))
    cell = nn.Conv2d(1, 1, 3, has_bias=True, weight_init="ones", bias_init=0.5, dtype="float64")
    expected = np.array([[4, 6, 4], [6, 9, 6], [4, 6, 4]]) + 0.5
    np.testing.assert_allclose(result_of(cell, ones)[0, 0], expected)


def test_poolings_take_means_and_maxima():
    windows = IMAGE.reshape(2, 4, 3, 2, 3, 2)
    np.testing.assert_allclose(result_of(nn.MaxPool2d(2, 2), IMAGE), windows.max((3, 5)))
    np.testing.assert_allclose(result_of(nn.AvgPool2d(2, 2), IMAGE), windows.mean((3, 5)))
    np.testing.assert_allclose(result_of(nn.GlobalAvgPool(), IMAGE), IMAGE.mean((2, 3)))


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: nn.Conv2d(2, 2, 3, pad_mode="full"), "a convolution has the padding mode `full`"),
        (lambda: nn.Conv2dTranspose(2, 2, 2, 3), "windows of (2, 2) at a stride of (3, 3) leave"),
    ],
)
def test_wrong_padding_is_refused(make, what):
    with pytest.raises(ModelError) as caught:
        make()
    assert caught.value.what.startswith(what)


def test_hashed_features_find_their_row():
    features = np.array([[1, 2], [5, 9], [7, 100]], np.int32)
    one = result_of(nn.HashEmbedding(4, 3), features)
    np.testing.assert_array_equal(one[0, 0], one[1, 0])  # 5 is 1 modulo 4
    np.testing.assert_array_equal(one[0, 0], one[1, 1])  # so is 9
    two = result_of(nn.HashEmbedding((4, 7), 3), features)
    np.testing.assert_array_equal(two[1, 1], two[2, 1])  # 9 and 100 are 2 modulo 7
    assert len({tuple(row) for row in two.reshape(-1, 3)}) == 3


def test_binary_cross_entropy():
    logits, labels = X[:, :1], np.array([[0.0], [1.0], [1.0], [0.25]])
    p = 1 / (1 + np.exp(-logits))
    expected = -(labels * np.log(p) + (1 - labels) * np.log(1 - p)).mean()
    assert result_of(nn.BCEWithLogitsLoss(), logits, labels) == pytest.approx(expected)


IMAGES = RANDOM.normal(size=(4, 6, 3, 2))


def normalized(x, axes):
    centred = x - x.mean(axes, keepdims=True)
    return centred / np.sqrt(x.var(axes, keepdims=True) + 1e-5)


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (nn.InstanceNorm2d(6, dtype="float64"), normalized(IMAGES, (2, 3))),
        (
            nn.GroupNorm(2, 6, dtype="float64"),
            normalized(IMAGES.reshape(4, 2, 3, 3, 2), (2, 3, 4)).reshape(IMAGES.shape),
        ),
        (nn.BatchNorm2d(6, dtype="float64"), normalized(IMAGES, (0, 2, 3))),
        (
            nn.BatchNorm2d(6, dtype="float64", parts=2),
            np.concatenate([normalized(part, (0, 2, 3)) for part in (IMAGES[:2], IMAGES[2:])]),
        ),
        (nn.PReLU(6, 0.5, "float64"), np.where(IMAGES > 0, IMAGES, IMAGES / 2)),
        (nn.LeakyReLU(), np.where(IMAGES > 0, IMAGES, IMAGES / 5)),
        (nn.ELU(), np.where(IMAGES > 0, IMAGES, np.expm1(IMAGES))),
        (nn.HSwish(), IMAGES * np.clip(IMAGES / 6 + 0.5, 0, 1)),
        (nn.HSigmoid(), np.clip(IMAGES / 6 + 0.5, 0, 1)),
        (nn.Softplus(), np.log1p(np.exp(IMAGES))),
        (nn.Mish(), IMAGES * np.tanh(np.log1p(np.exp(IMAGES)))),
        (nn.ReLU6(), np.clip(IMAGES, 0, 6)),
        (nn.LogSoftmax(), np.log(softmax(IMAGES))),
    ],
)
def test_layers_of_images_compute_what_they_say(cell, expected):
    np.testing.assert_allclose(result_of(cell, IMAGES), expected, rtol=1e-6, atol=1e-12)


class NormalizedInParts(nn.Cell):
    def __init__(self, parts):
        self.conv = nn.Conv2d(6, 4, 1)
        self.norm = nn.BatchNorm2d(4, parts=parts)

    def construct(self, x):
        y = self.norm(self.conv(x))
        return (y * y * y).mean()


@pytest.mark.parametrize("parts", [1, 2])
def test_local_statistics_need_no_sums_between_ranks(parts):
    spec = InputSpec("x", TensorType("float32", IMAGES.shape))
    graph = trace(NormalizedInParts(parts), [spec]).graph
    found = {}
    for mode, devices in (("stand_alone", 1), ("data_parallel", 2)):
        options = CompileOptions(mode=mode)
        found[mode] = compile_graph(graph, cluster("cpu"), devices, options).program
    partial = {
        node.results[0].layout.partial
        for node in found["data_parallel"].nodes
        if node.operator in ("channel_mean", "channel_variance")
    }
    assert partial == {()} if parts == 2 else () not in partial
    assert_equal(trained(found["data_parallel"]), trained(found["stand_alone"]))


def test_parts_of_a_batch_that_are_not_equal_are_refused():
    with pytest.raises(ModelError, match="a batch of 4 cannot be cut into 3 equal parts"):
        result_of(nn.BatchNorm2d(6, parts=3, dtype="float64"), IMAGES)


def test_gelu_is_near_the_normal_distribution():
    np.testing.assert_allclose(
        result_of(nn.GELU(), np.array([1.0, -1.0])), [0.8412, -0.1588], atol=1e-3
    )


def test_flatten_joins_all_but_the_first():
    assert result_of(nn.Flatten(), X.reshape(2, 2, 3, 2)).shape == (2, 12)


def test_an_embedding_looks_rows_up():
    tokens = np.array([[1, 3], [3, 0]], np.int32)
    rows = result_of(nn.Embedding(5, 4, dtype="float64"), tokens)
    assert rows.shape == (2, 2, 4)
    np.testing.assert_array_equal(rows[0, 1], rows[1, 0])
    assert not np.array_equal(rows[0, 0], rows[0, 1])


def test_dropout_drops_the_asked_share_and_keeps_the_mean():
    kept = result_of(nn.Dropout(p=0.25), np.ones((100, 100)))
    assert set(np.unique(kept)) == {0, 1 / 0.75}
    assert (kept == 0).mean() == pytest.approx(0.25, abs=0.02)
    np.testing.assert_array_equal(result_of(nn.Dropout(0.0), X), X)
    with pytest.raises(OptionError, match="`p` is 1"):
        nn.Dropout(1)


def test_dropouts_draw_apart():
    class Twice(nn.Cell):
        def __init__(self):
            self.first, self.second = nn.Dropout(0.5), nn.Dropout(0.5)

        def construct(self, x):
            return self.first(x) - self.second(x)

    assert np.abs(result_of(Twice(), np.ones((8, 8)))).max() > 0


# Losses

LOGITS = RANDOM.normal(size=(4, 3, 5))
CLASSES = RANDOM.integers(0, 5, (4, 3)).astype(np.int32)
WEIGHTS = softmax(RANDOM.normal(size=(4, 3, 5)))
SPARSE = -np.log(np.take_along_axis(softmax(LOGITS), CLASSES[..., None], -1))[..., 0]
DENSE = -(WEIGHTS * np.log(softmax(LOGITS))).sum(-1)


@pytest.mark.parametrize(
    ("loss", "labels", "expected"),
    [
        (nn.CrossEntropyLoss(), CLASSES, SPARSE.mean()),
        (nn.CrossEntropyLoss("sum"), CLASSES, SPARSE.sum()),
        (nn.CrossEntropyLoss("none"), WEIGHTS, DENSE),
        (nn.SoftmaxCrossEntropyWithLogits(sparse=True), CLASSES, SPARSE),
        (nn.SoftmaxCrossEntropyWithLogits(reduction="mean"), WEIGHTS, DENSE.mean()),
        (nn.MSELoss(), WEIGHTS, ((LOGITS - WEIGHTS) ** 2).mean()),
    ],
)
def test_losses_compute_what_they_say(loss, labels, expected):
    np.testing.assert_allclose(result_of(loss, LOGITS, labels), expected, rtol=1e-10)


# Attention


def test_causal_attention_does_not_look_ahead():
    cell = nn.MultiheadAttention(8, 2, causal=True, dtype="float64")
    x = RANDOM.normal(size=(1, 5, 8))
    later = x.copy()
    later[:, 3:] += 1
    one, other = result_of(cell, x), result_of(cell, later)
    np.testing.assert_allclose(one[:, :3], other[:, :3], rtol=1e-12)
    assert np.abs(one[:, 3:] - other[:, 3:]).max() > 1e-3


def test_attention_is_that_of_its_definition():
    cell = nn.MultiheadAttention(4, 2, weight_init="ones", out_init="ones", dtype="float64")
    x = RANDOM.normal(size=(1, 3, 4))
    value = x.sum(-1)  # weights of one make queries, keys and values equal
    weights = softmax(value[0, :, None] * value[0] * 2 / np.sqrt(2))
    expected = 4 * (weights @ value[0])
    np.testing.assert_allclose(result_of(cell, x)[0], expected[:, None] * np.ones(4), rtol=1e-10)


@pytest.mark.parametrize("post", [False, True])
def test_a_transformer_layer_keeps_the_shape(post):
    cell = nn.TransformerLayer(8, 2, post_layernorm=post, dtype="float64")
    out = result_of(cell, RANDOM.normal(size=(2, 3, 8)))
    assert out.shape == (2, 3, 8)
    if post:
        np.testing.assert_allclose(out.mean(-1), 0, atol=1e-9)


# Normalization of batches


class Normalized(nn.Cell):
    def __init__(self):
        self.dense = nn.Dense(6, 6)
        self.norm = nn.BatchNorm1d(6, momentum=0.75)

    def construct(self, x):
        return self.norm(self.dense(x)).max(axis=1).sum()


def moving(mode):
    network = Normalized()
    options = AutoParallel(network, mode, devices=1 if mode == "stand_alone" else 2).options
    session = begin(network, {"x": X.astype(np.float32)}, options)
    losses = [session.step([X.astype(np.float32)]) for _ in range(2)]
    return losses, session.state["norm.moving_mean"][0], session.state["norm.moving_variance"][0]


def test_a_batch_normalization_is_over_the_whole_batch_and_moves():
    expected = moving("stand_alone")
    assert np.abs(expected[1]).max() > 0.01
    assert np.abs(expected[2] - 1).max() > 0.01
    for found, wanted in zip(moving("data_parallel"), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


def test_a_normalized_batch_has_mean_zero():
    y = result_of(nn.BatchNorm1d(6), X.astype(np.float32))
    np.testing.assert_allclose(y.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(y.std(0), 1, rtol=1e-2)
    with pytest.raises(ModelError, match=r"`BatchNorm1d` takes \(2, 3\) dimensions, not 1"):
        result_of(nn.BatchNorm1d(6), X[0].astype(np.float32))


# Refusals


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: nn.LayerNorm((2, 3)), r"the shape \(2, 3\) is to be normalized"),
        (lambda: nn.get_activation("rleu"), "no activation is called `rleu`"),
        (lambda: nn.MSELoss("average"), "a loss is reduced by `average`"),
        (lambda: nn.SequentialCell(nn.ReLU(), 3), "contains an item that is not a cell"),
        (lambda: nn.SGD([]), "the optimizer `sgd` has no parameters"),
        (
            lambda: nn.SGD([Parameter("ones", shape=1)], learning_rate="fast"),
            "the learning rate `fast` names `fast`",
        ),
        (lambda: Parameter("ones"), "a parameter begins as `ones`, but has no shape"),
    ],
)
def test_wrong_cells_are_refused(make, what):
    with pytest.raises((ModelError, OptionError), match=what):
        make()


def test_an_initializer_that_nobody_knows_is_refused():
    with pytest.raises(IRError, match="no initializer is called `glorot`"):
        Parameter("glorot", shape=(2, 2))


def test_a_layer_begins_with_given_data():
    weight = np.arange(12.0).reshape(4, 3)
    layer = nn.Dense(3, 4, weight_init=Tensor(weight), bias_init=Tensor(np.ones(4)))
    assert np.array_equal(layer.weight.asnumpy(), weight)
    assert np.array_equal(layer(Tensor(np.ones((1, 3)))).asnumpy(), weight.sum(1)[None] + 1)


def test_data_of_another_shape_is_refused():
    with pytest.raises(ModelError) as caught:
        nn.Dense(3, 4, weight_init=Tensor(np.zeros((3, 4))))
    assert str(caught.value) == "a parameter begins as data of shape [3, 4], expected [4, 3]"
