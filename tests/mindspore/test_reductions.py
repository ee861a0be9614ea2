"""Extrema and where they stand, along dimensions that a strategy splits."""

import numpy as np
import pytest

import shardwright.mindspore as ms
from shardwright.communication import world
from shardwright.ir.errors import ShardwrightError
from shardwright.mindspore.ops import operations
from tests.mindspore.cells import Applied

RANDOM = np.random.default_rng(7)


def on_ranks(operator, x, ranks=8):
    with world(ranks):
        parallel = ms.AutoParallel(Applied(operator), "semi_auto", devices=ranks)
        made = parallel(x)
    several = isinstance(made, tuple)
    return [item.asnumpy() for item in (made if several else (made,))], parallel.session.compiled


@pytest.mark.long
@pytest.mark.parametrize("shape", [(4, 8), (8, 4, 2)])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("name", ["Argmax", "Argmin"])
def test_the_first_of_equal_ones_counts_wherever_it_is_cut(name, axis, shape):
    """Few different numbers, so that equal ones stand in several parts."""
    function = {"Argmax": np.argmax, "Argmin": np.argmin}[name]
    for trial in range(3):
        x = RANDOM.integers(0, 2 + trial, shape).astype(np.float32)
        counts = [1] * len(shape)
        counts[axis] = 2
        operator = getattr(operations, name)(axis).shard((tuple(counts),))
        (found,), compiled = on_ranks(operator, x)
        np.testing.assert_array_equal(found, function(x, axis=axis))
        assert found.dtype == np.int32
        cut = [n for n in compiled.program.nodes if n.operator == name.lower()]
        assert len(cut) == 2


@pytest.mark.parametrize("keep_dims", [True, False])
@pytest.mark.parametrize(
    ("name", "place", "value"),
    [("ArgMaxWithValue", np.argmax, np.max), ("ArgMinWithValue", np.argmin, np.min)],
)
def test_the_element_is_that_of_the_position(name, place, value, keep_dims):
    x = RANDOM.integers(-3, 3, (8, 6)).astype(np.float32)
    operator = getattr(operations, name)(axis=0, keep_dims=keep_dims).shard(((4, 2),))
    (found, element), _ = on_ranks(operator, x)
    np.testing.assert_array_equal(found, place(x, axis=0, keepdims=keep_dims))
    np.testing.assert_array_equal(element, value(x, axis=0, keepdims=keep_dims))


def test_a_number_that_is_none_stands_before_all_others():
    x = np.array([[3, 1, np.nan, 2, np.nan, 9, 0, 4]], np.float32)
    (found,), _ = on_ranks(operations.Argmax(1).shard(((1, 4),)), x)
    np.testing.assert_array_equal(found, [2])


@pytest.mark.parametrize("strategy", [((1, 3),), ((1, 4, 1),), ((1, 16),)])
def test_strategies_that_do_not_fit_are_refused(strategy):
    x = np.zeros((4, 8), np.float32)
    with pytest.raises(ShardwrightError):
        on_ranks(operations.Argmax(1).shard(strategy), x)
