"""Images looked up between their pixels, against numpy and what MindSpore 2.7.0 answers."""

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

# What MindSpore was given, as it was given.
RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.normal(size=(2, 3, 5, 6)).astype(np.float32)
GRID = RANDOM.uniform(-1.3, 1.3, (2, 4, 3, 2)).astype(np.float32)
REGIONS = np.array([[0, 0.5, 1, 4, 3.5], [1, 2, 2, 3, 2.2], [1, -1, 0, 7, 9]], dtype=np.float32)
BOXES = np.array([[0.1, 0.2, 0.8, 0.9], [0, 0, 1, 1], [-0.2, 0.5, 1.3, 0.6]], dtype=np.float32)


def between(image, y, x):
    """Return ``[c, h, w]`` at a place between four pixels; those outside are zero."""
    total = np.zeros(len(image))
    for row in (int(np.floor(y)), int(np.floor(y)) + 1):
        for column in (int(np.floor(x)), int(np.floor(x)) + 1):
            if 0 <= row < image.shape[1] and 0 <= column < image.shape[2]:
                weight = (1 - abs(y - row)) * (1 - abs(x - column))
                total += image[:, row, column] * weight
    return total


def looked_up(images, grid, padding, align):
    """Return what every place of a grid sees."""
    _, _, height, width = images.shape
    found = np.zeros((len(images), images.shape[1], *grid.shape[1:3]))
    for n, i, j in np.ndindex(grid.shape[:3]):
        x, y = (
            (g + 1) / 2 * (s - 1) if align else ((g + 1) * s - 1) / 2
            for g, s in zip(grid[n, i, j], (width, height), strict=True)
        )
        if padding == "border":
            x, y = np.clip(x, 0, width - 1), np.clip(y, 0, height - 1)
        found[n, :, i, j] = between(images[n], y, x)
    return found


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border"])
def test_a_grid_sees_images_between_their_pixels(padding, align):
    (found,) = results(ops.GridSampler2D("bilinear", padding, align), IMAGES, GRID)
    np.testing.assert_allclose(found, looked_up(IMAGES, GRID, padding, align), atol=1e-5)


@pytest.mark.parametrize(
    ("mode", "row", "expected"),
    [("bilinear", 0, [-0.08672, -0.54741, -0.07965]), ("nearest", 3, [0.08662, 1.64734, 0.91749])],
)
def test_a_grid_sees_what_mindspore_sees(mode, row, expected):
    (found,) = results(ops.GridSampler2D(mode), IMAGES, GRID)
    np.testing.assert_allclose(found[1, 2, row], expected, atol=1e-4)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("mode", [0, 1])
def test_regions_are_means_of_samples(mode, times):
    def expected(image, *sides):
        left, upper, right, lower = (np.array(sides) + [0, 0, mode, mode]) * 0.7
        wide, high = right - left, lower - upper
        if not mode:
            wide, high = max(wide, 1), max(high, 1)
        bins = np.zeros((3, 2, 3))
        for i, j, a, b in np.ndindex(2, 3, times, times):
            y = upper + (i + (a + 0.5) / times) * high / 2
            x = left + (j + (b + 0.5) / times) * wide / 3
            if -1 <= y <= 5 and -1 <= x <= 6:
                bins[:, i, j] += between(IMAGES[int(image)], *np.clip((y, x), 0, (4, 5)))
        return bins / times**2

    (found,) = results(ops.ROIAlign(2, 3, 0.7, times, mode), IMAGES, REGIONS)
    np.testing.assert_allclose(found, [expected(*r) for r in REGIONS], atol=1e-5)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (0, [[0.3513, 0.67007, 0.38363], [0.93828, 1.52733, 1.29823]]),
        (1, [[0.3409, 0.46414, -0.26746], [0.99084, 1.44491, 0.64203]]),
    ],
)
def test_regions_are_what_mindspore_has(mode, expected):
    (found,) = results(ops.ROIAlign(2, 3, 0.7, 2, mode), IMAGES, REGIONS)
    np.testing.assert_allclose(found[1, 2], expected, atol=1e-4)


@pytest.mark.parametrize(
    ("method", "expected"),
    [("bilinear", [0.48751, 0.63108, 0.77465, 0.91823]), ("nearest", [1.04184] * 4)],
)
def test_boxes_are_brought_to_one_size(method, expected):
    crop = ops.CropAndResize(method, 0.5)
    images = np.moveaxis(IMAGES, 1, -1).copy()
    indices = np.array([0, 1, 1])
    (found,) = results(lambda x, boxes, i: crop(x, boxes, i, (3, 4)), images, BOXES, indices)
    np.testing.assert_allclose(found[2, 1, :, 1], expected, atol=1e-4)
    np.testing.assert_array_equal(found[2, [0, 2]], 0.5)  # above and below the image
    corners = images[1][np.ix_([0, 4], [0, 5])]
    np.testing.assert_allclose(found[1][np.ix_([0, 2], [0, 3])], corners, rtol=1e-6)


def test_one_place_is_the_middle_and_what_lies_outside_is_zero_by_default():
    images = np.arange(15.0).reshape(1, 3, 5, 1)
    boxes = np.array([[0.0, 0.0, 1.0, 1.0], [2.0, 2.0, 3.0, 3.0]])
    crop = ops.CropAndResize()
    (found,) = results(lambda x, b, i: crop(x, b, i, (1, 1)), images, boxes, np.array([0, 0]))
    np.testing.assert_array_equal(found.ravel(), [7.0, 0.0])


@pytest.mark.parametrize(
    "make",
    [
        lambda: ops.GridSampler2D("bicubic"),
        lambda: ops.GridSampler2D(padding_mode="reflection"),
        lambda: ops.ROIAlign(2, 2, 1.0, 0),
        lambda: ops.ROIAlign(2, 2, 1.0, 2, 2),
        lambda: ops.CropAndResize("bilinear_v2"),
    ],
)
def test_what_is_not_known_is_refused(make):
    with pytest.raises(ModelError):
        make()


class Looks(nn.Cell):
    """Sum the squares of what a grid, which is a weight, sees of images, which are one too."""

    def __init__(self):
        self.images = Parameter("zeros", shape=(1, 2, 4, 4), dtype="float64")
        self.grid = Parameter("zeros", shape=(1, 3, 2, 2), dtype="float64")

    def construct(self, scale):
        found = ops.GridSampler2D()(self.images, self.grid)
        return (found * found).sum() * scale.sum()


def test_images_and_places_have_gradients():
    random = np.random.default_rng(1)
    values = {
        "images": random.normal(size=(1, 2, 4, 4)),
        "grid": random.uniform(-1.1, 1.1, (1, 3, 2, 2)),
    }
    definition = trace(Looks(), [InputSpec("scale", TensorType("float64", (1,)))])
    names = {p.name.rpartition(".")[2]: p.name for p in definition.graph.parameters}
    graph, communicator = Differentiate().run(definition.graph), LocalCommunicator(Mesh(()))
    state = initialize(graph, 0, communicator, definition.initial, "float64")
    state |= {names[k]: {0: v} for k, v in values.items()}
    executor = Executor(graph, communicator, float_dtype="float64")
    outputs = executor.step({"scale": np.ones(1)}, state).outputs

    def loss():
        return (looked_up(values["images"], values["grid"], "zeros", False) ** 2).sum()

    for kind, value in values.items():
        slope = np.zeros_like(value)
        for place in np.ndindex(value.shape):
            before = value[place]
            value[place] = before + 1e-6
            above = loss()
            value[place] = before - 1e-6
            slope[place] = (above - loss()) / 2e-6
            value[place] = before
        assert np.abs(slope).max() > 0.1
        np.testing.assert_allclose(outputs[f"{names[kind]}.grad"][0], slope, atol=1e-6)
