"""Boxes, values of few bits, and cosine transforms, against numpy and what MindSpore answers."""

import numpy as np
import pytest

from shardwright import nn, ops
from shardwright.ir.errors import ModelError
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import TensorType
from shardwright.parameter import Parameter
from shardwright.passes.differentiate import Differentiate
from shardwright.runtime import Executor, LocalCommunicator, initialize
from shardwright.tracing import InputSpec, trace
from tests.shardwright.ops.test_composite import results

RANDOM = np.random.default_rng(0)
# The first boxes of each kind that MindSpore 2.7.0 was given, and what it answered.
ANCHORS = np.array(
    [[6.369617, 2.697867, 11.616067, 8.804343], [0.409735, 0.165276, 5.21511, 7.710783]]
)
TRUTHS = np.array(
    [[8.574042, 0.335856, 15.616295, 5.126084], [7.296555, 1.756556, 10.394538, 5.715367]]
)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("iou", [[0.179727, 0.0], [0.341232, 0.0]]),
        ("iof", [[0.297573, 0.0], [0.810174, 0.0]]),
    ],
)
def test_overlaps_of_boxes(mode, expected):
    (found,) = results(ops.IOU(mode), ANCHORS, TRUTHS)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_an_unknown_overlap_is_refused():
    with pytest.raises(ModelError, match="not by `giou`"):
        ops.IOU("giou")


def test_boxes_as_seen_from_anchors():
    encode = ops.BoundingBoxEncode((0.1, 0.0, 0.0, 0.0), (1.0, 1.0, 2.0, 1.0))
    (found,) = results(encode, ANCHORS, TRUTHS)
    expected = [
        [0.396654, -0.424984, 0.126348, -0.204835],
        [0.939231, -0.023646, -0.174145, -0.544240],
    ]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_boxes_within_an_image():
    boxes = np.array(
        [[0, 0, 3, 4], [1, 1, 60, 20], [-1, 0, 3, 3], [0, 0, 29.5, 39], [0, 0, 29, 39.0]]
    )
    (found,) = results(ops.CheckValid(), boxes, np.array([20.0, 15.0, 2.0]))
    np.testing.assert_array_equal(found, [True, False, False, False, True])


def test_what_is_no_box_is_refused():
    with pytest.raises(ModelError, match="boxes have four numbers"):
        results(ops.IOU(), ANCHORS[:, :3], TRUTHS)


def quantized(x, low, high, bits):
    step = (high - low) / (2**bits - 1)
    low = -np.rint(-low / step) * step
    return np.clip(np.rint((x - low) / step), 0, 2**bits - 1) * step + low


@pytest.mark.parametrize("bits", [3, 8])
def test_values_of_few_bits(bits):
    x = RANDOM.normal(size=(4, 6))
    low, high = np.array([-1.0]), np.array([1.4])
    (found,) = results(ops.FakeQuantPerLayer(bits), x, low, high)
    np.testing.assert_allclose(found, quantized(x, -1.0, 1.4, bits), rtol=1e-12, atol=1e-12)
    assert len(np.unique(found.round(9))) <= 2**bits
    zero = results(ops.FakeQuantPerLayer(bits), np.zeros((2, 3)), low, high)[0]
    np.testing.assert_allclose(zero, 0, atol=1e-12)


def test_symmetric_values():
    fake = ops.FakeQuantPerLayer(4, symmetric=True, narrow_range=True)
    x = RANDOM.normal(size=(4, 6))
    (found,) = results(fake, x, np.array([-0.5]), np.array([1.4]))
    (turned,) = results(fake, -x, np.array([-0.5]), np.array([1.4]))
    np.testing.assert_allclose(found, -turned, rtol=1e-12)
    np.testing.assert_allclose(found, np.clip(np.rint(x * 5), -7, 7) / 5, rtol=1e-12)


def test_values_of_few_bits_by_channel():
    x, low, high = RANDOM.normal(size=(2, 3, 4)), -np.ones(3), np.array([1.0, 2.0, 3.0])
    (found,) = results(ops.FakeQuantPerChannel(4), x, low, high)
    for c in range(3):
        expected = quantized(x[:, c], -1.0, high[c], 4)
        np.testing.assert_allclose(found[:, c], expected, rtol=1e-12, atol=1e-12)


class Quantized(nn.Cell):
    def __init__(self):
        self.x = Parameter("zeros", shape=(5,), dtype="float64")
        self.fake = ops.FakeQuantPerLayer(4)

    def construct(self, low, high):
        return (self.fake(self.x, low, high) * 3.0).sum()


def test_the_gradient_passes_between_the_limits():
    one = TensorType("float64", (1,))
    definition = trace(Quantized(), [InputSpec("low", one), InputSpec("high", one)])
    x = np.array([-2.0, -0.4, 0.0, 0.3, 1.9])
    (name,) = (parameter.name for parameter in definition.graph.parameters)
    given = {"low": np.array([-1.0]), "high": np.array([1.0])}
    graph = Differentiate().run(definition.graph)
    communicator = LocalCommunicator(Mesh(()))
    state = initialize(graph, 0, communicator, definition.initial, "float64") | {name: {0: x}}
    outputs = Executor(graph, communicator, float_dtype="float64").step(given, state).outputs
    np.testing.assert_array_equal(outputs[f"{name}.grad"][0], [0, 3, 3, 3, 0])


@pytest.mark.parametrize("ema", [False, True])
def test_limits_that_follow(ema):
    x, share = RANDOM.normal(size=(2, 3, 4)), 0.9 if ema else 0.0
    low, high = np.array([-5.0]), np.array([0.5])
    found = results(ops.MinMaxUpdatePerLayer(ema, 0.9), x, low, high)
    np.testing.assert_allclose(found[0], low * share + x.min() * (1 - share))
    np.testing.assert_allclose(found[1], high * share + x.max() * (1 - share))
    found = results(ops.MinMaxUpdatePerChannel(ema, 0.9), x, low.repeat(3), high.repeat(3))
    np.testing.assert_allclose(found[0], low * share + x.min(axis=(0, 2)) * (1 - share))
    positive = results(ops.MinMaxUpdatePerLayer(), np.abs(x), low, high)
    np.testing.assert_array_equal(positive[0], [0])


def test_cosine_transforms():
    x = np.array([[1.0, 2, 4], [0, 3, -1]])
    (found,) = results(ops.DCT(), x)
    expected = [[4.0415, -2.1213, 0.4082], [1.1547, 0.7071, -2.8577]]
    np.testing.assert_allclose(found, expected, atol=1e-4)
    np.testing.assert_allclose(results(ops.IDCT(), found)[0], x, atol=1e-12)
    longer = results(lambda x: ops.DCT()(x, 4), x)[0]
    np.testing.assert_allclose(longer[0], [3.5, 0.1121, -2.5, 1.5772], atol=1e-4)
    shorter = results(lambda x: ops.DCT()(x, 2), x)[0]
    np.testing.assert_allclose(shorter, [[2.1213, -0.7071], [2.1213, -2.1213]], atol=1e-4)
    inverse = results(lambda x: ops.IDCT()(x, 4), x)[0]
    np.testing.assert_allclose(inverse[0], [3.8066, -0.9588, -2.0412, 1.1934], atol=1e-4)
    both = results(ops.DCTN(), x)[0]
    np.testing.assert_allclose(both[0], [3.6742, -1.0, -1.7321], atol=1e-4)
    np.testing.assert_allclose(results(ops.IDCTN(), both)[0], x, atol=1e-12)


def test_extrema_of_segments_as_in_mindspore():
    largest = ops.UnsortedSegmentMax(segments=3)
    (found,) = results(largest, np.array([1.0, 2, 3]), np.array([0, 0, 2]))
    np.testing.assert_array_equal(found, [2, np.finfo("float64").min, 3])
