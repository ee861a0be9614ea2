"""Functions that are split, and functions that are applied to slices."""

import numpy as np
import pytest

import shardwright.mindspore as ms
from shardwright.ir.errors import ShardwrightError
from shardwright.mindspore import ops

X = np.arange(24, dtype="float32").reshape(4, 6)
Y = np.arange(6, dtype="float32")


def scaled(x, y):
    return x * y, x.sum()


@pytest.mark.parametrize("compiled", [False, True])
def test_a_mapped_function_is_applied_to_each_slice(compiled):
    mapped = ops.vmap(scaled, in_axes=(1, None), out_axes=(1, -1))

    def function(x, y):
        return mapped(x, y)

    made = (ms.jit(function) if compiled else function)(ms.Tensor(X), ms.Tensor(Y[:4]))
    expected = [scaled(column, Y[:4]) for column in X.T]
    np.testing.assert_allclose(made[0].asnumpy(), np.stack([e[0] for e in expected], 1))
    np.testing.assert_allclose(made[1].asnumpy(), [e[1] for e in expected])
    (rows,) = ms.vmap(lambda x: (x + 1,))(ms.Tensor(X))
    np.testing.assert_allclose(rows.asnumpy(), X + 1)


@pytest.mark.parametrize(
    ("axes", "results", "sentence"),
    [
        ((0, 1), 0, r"`in_axes` is 1 for the input 1, whose shape is \(6,\)"),
        ((0, 0), 0, r"the sizes there are \[4, 6\], expected one"),
        ((None, None), 0, r"the sizes there are \[\], expected one"),
        ((0,), 0, r"`in_axes` is \(0,\), expected a number for each of 2 tensors"),
        ((0, None), (0,), r"`out_axes` is \(0,\), expected a number for each of 2 tensors"),
    ],
)
def test_inputs_that_cannot_be_sliced_are_refused(axes, results, sentence):
    with pytest.raises(RuntimeError, match=sentence):
        ops.vmap(scaled, axes, results)(ms.Tensor(X), ms.Tensor(Y))


def test_a_function_is_not_split_inside_of_another_nor_of_slices():
    split = ms.shard(lambda x: x + 1, ((2, 1),))
    np.testing.assert_allclose(split(split(ms.Tensor(X))).asnumpy(), X + 2)
    with pytest.raises(RuntimeError, match="inside of a function of `shard`: Nested use of shard"):
        ms.shard(split, ((2, 1),))(ms.Tensor(X))
    with pytest.raises(RuntimeError, match=r"inside of a function of `vmap`: The usage of vmap"):
        ms.vmap(split)(ms.Tensor(X))
    np.testing.assert_allclose(split(ms.Tensor(X)).asnumpy(), X + 1)


def test_slices_of_inputs_that_are_no_tuple_are_refused():
    split = ms.shard(lambda x: x + 1, ([2, 1],))
    with pytest.raises(ShardwrightError, match="in_strategy should be a two-dimension tuple"):
        ms.jit(lambda x: split(x))(ms.Tensor(X))
