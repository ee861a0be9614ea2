"""Slices of tensors that are brought from one of MindSpore's layouts to another."""

import numpy as np
import pytest

from shardwright.ir.errors import ModelError
from shardwright.mindspore import Tensor
from shardwright.mindspore.parallel import _tensor

ARRANGEMENTS = {
    4: [(4,), (2, 2), (1, 4)],
    6: [(6,), (2, 3), (3, 2)],
    8: [(8,), (2, 4), (4, 2), (2, 2, 2)],
    12: [(12,), (3, 4), (2, 3, 2), (2, 6), (6, 2), (4, 3)],
}
SHAPES = [(24, 12), (12, 24), (2, 12, 12), (288,), (24, 1, 12)]


def drawn(generator, devices, shape):
    """Return a random layout of a shape."""
    arrangements = ARRANGEMENTS[devices]
    while True:
        sizes = arrangements[generator.integers(len(arrangements))]
        axes = [*range(len(sizes)), *[-1] * len(shape)]
        axes = tuple(int(axis) for axis in generator.permutation(axes)[: len(shape)])
        counts = _tensor._get_tensor_strategy(sizes, axes)
        if all(size % count == 0 for size, count in zip(shape, counts, strict=True)):
            return sizes, axes, shape


def slice_of(whole, layout, rank):
    """Return the slice of a rank, straight from what a layout says."""
    sizes, axes, shape = layout
    place = np.unravel_index(rank, sizes)
    parts = []
    for size, axis in zip(shape, axes, strict=True):
        count = sizes[len(sizes) - 1 - axis] if axis >= 0 else 1
        i = int(place[len(sizes) - 1 - axis]) if axis >= 0 else 0
        parts.append(slice(i * size // count, (i + 1) * size // count))
    return whole.reshape(shape)[tuple(parts)]


@pytest.mark.parametrize("devices", ARRANGEMENTS)
def test_the_steps_of_a_rank_make_the_slice_of_the_other_layout(devices):
    generator = np.random.default_rng(devices)
    whole = np.arange(288)
    ranks = [10 + rank for rank in range(devices)]
    for _ in range(60):
        source, target = (
            drawn(generator, devices, SHAPES[generator.integers(len(SHAPES))]) for _ in range(2)
        )
        place = int(generator.integers(devices))
        slices = {ranks[i]: slice_of(whole, source, i) for i in range(devices)}
        needed = _tensor._get_needed_rank_transform_operator_map_by_layouts(
            source, target, ranks, ranks[place]
        )
        steps = _tensor._generate_transform_operator_stack(needed, ranks[place])
        few = {rank: slices[rank] for rank in needed}
        _tensor._apply_tensor_transform_operators(steps, few, 100)
        assert np.array_equal(few[ranks[place]], slice_of(whole, target, place)), (source, target)


def test_a_whole_tensor_is_put_together_of_its_slices():
    generator = np.random.default_rng(0)
    for _ in range(20):
        layout = drawn(generator, 12, (12, 24))
        whole = np.arange(288).reshape(12, 24)
        parts = [slice_of(whole, layout, rank) for rank in range(12)]
        made = _tensor._reshape_param_data(Tensor(np.concatenate(parts)), *layout[:2])
        assert np.array_equal(made.asnumpy(), whole)
        own = _tensor._load_tensor(Tensor(whole), *layout[:2])
        assert np.array_equal(own.asnumpy(), parts[0])


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (((4,), (0,), (6,)), ((4,), (-1,), (6,)), "counts that divide the dimensions"),
        (((4,), (0, -1), (8,)), ((4,), (-1,), (8,)), "for each dimension an axis of the devices"),
        (((2, 2), (0, 0), (8, 8)), ((4,), (-1, -1), (8, 8)), "expected each axis for one"),
        (((2,), (0,), (8,)), ((4,), (-1,), (8,)), "`from_layout` is .*, expected 4 devices"),
        (((4,), (0,), (8,)), ((4,), (-1,), (9,)), "expected as many elements as `from_layout`"),
        (((4,), (0,), (0,)), ((4,), (-1,), (0,)), "expected positive sizes"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused(source, target, message):
    with pytest.raises(ModelError, match=message):
        _tensor._transform_tensor_by_layout(source, target, range(4), 0)


def test_a_missing_slice_is_named():
    steps = [(0, 0, ("AllGather", [0, 1, 0]))]
    with pytest.raises(ModelError, match="the slice of rank 1 is missing"):
        _tensor._apply_tensor_transform_operators(steps, {0: np.ones(2)}, 2)


def test_devices_that_are_no_multiple_are_refused():
    with pytest.raises(ModelError, match="over 6 devices cannot be brought to 4"):
        _tensor._construct_from_to_tensor_layout((8,), (6,), (-1,), (8,), (4,), (0,))
