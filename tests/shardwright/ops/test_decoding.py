"""Attention of one query at a cache, against what the whole sequence gives."""

import numpy as np
import pytest

from shardwright import nn, ops
from shardwright.ir.errors import ModelError
from tests.shardwright.ops.test_composite import results

RANDOM = np.random.default_rng(0)
HEADS, KV_HEADS, SIZE, COUNT = 4, 2, 3, 5
QUERY = RANDOM.normal(size=(2, HEADS, 1, SIZE))
KEY, VALUE = RANDOM.normal(size=(2, 2, KV_HEADS, COUNT, SIZE))
LENGTHS = np.array([2, 4])
LEFT_OUT = np.array([[True, False, False, False, False], [False, False, True, False, True]])
SHIFT = RANDOM.normal(size=(1, HEADS, 1, COUNT))


def attended(left_out, shift):
    """Return the means of the values, weighed by the softmax of the products."""
    scores = 0.5 * QUERY @ np.swapaxes(KEY.repeat(2, axis=1), -1, -2) + shift
    weights = np.where(left_out[:, None, None], 0, np.exp(scores))
    return weights / weights.sum(-1, keepdims=True) @ VALUE.repeat(2, axis=1)


@pytest.mark.parametrize("layout", ["BNSD", "BSH"])
@pytest.mark.parametrize("has_mask", [False, True])
@pytest.mark.parametrize("has_lengths", [False, True])
@pytest.mark.parametrize("has_shift", [False, True])
def test_a_query_meets_what_is_known(layout, has_mask, has_lengths, has_shift):
    attention = ops.IncreFlashAttention(HEADS, layout, 0.5, KV_HEADS)
    optional = {
        "attn_mask": (has_mask, LEFT_OUT),
        "actual_seq_lengths": (has_lengths, LENGTHS),
        "pse_shift": (has_shift, SHIFT),
    }
    given = {name: array for name, (yes, array) in optional.items() if yes}

    def function(q, k, v, *rest):
        return attention(q, k, v, **dict(zip(given, rest, strict=True)))

    def laid(x):
        return x if layout == "BNSD" else x.swapaxes(1, 2).reshape(len(x), x.shape[2], -1)

    (found,) = results(function, *(laid(x) for x in (QUERY, KEY, VALUE)), *given.values())
    left_out = has_mask & LEFT_OUT | has_lengths & (np.arange(COUNT) >= LENGTHS[:, None])
    expected = attended(left_out, SHIFT if has_shift else 0)
    np.testing.assert_allclose(found, laid(expected), rtol=1e-10)


@pytest.mark.parametrize("axis", [-1, -2])
def test_each_sample_writes_its_own_position(axis):
    cache = RANDOM.normal(size=(2, 3, 4, 4))
    new = RANDOM.normal(size=(2, 3, 4, 1) if axis == -1 else (2, 3, 1, 4))
    update = ops.KVCacheScatterUpdate()
    (found,) = results(lambda c, i, u: update(c, i, u, axis), cache, np.array([3, 1]), new)
    moved, expected = np.moveaxis(found, axis, 1), np.moveaxis(cache.copy(), axis, 1)
    for sample, position in enumerate((3, 1)):
        expected[sample, position] = np.moveaxis(new, axis, 1)[sample, 0]
    np.testing.assert_array_equal(moved, expected)


class Step(nn.Cell):
    """Write the keys and values of a position, then attend up to it."""

    def construct(self, q, k, v, keys, values, at):
        keys, values = (
            ops.KVCacheScatterUpdate()(cache, at, new) for cache, new in ((keys, k), (values, v))
        )
        out = ops.IncreFlashAttention(2, "BNSD")(q, keys, values, actual_seq_lengths=at + 1)
        return out, keys, values


def test_steps_give_what_causal_attention_gives():
    q, k, v = RANDOM.normal(size=(3, 2, 2, 4, 3))
    keys, values = np.zeros((2, 2, 2, 6, 3))
    found = []
    for i in range(4):
        one = (slice(None), slice(None), slice(i, i + 1))
        given = [x[one].copy() for x in (q, k, v)]
        out, keys, values = results(Step().construct, *given, keys, values, np.array([i, i]))
        found.append(out)
    scores = np.where(np.tri(4, dtype=bool), q @ np.swapaxes(k, -1, -2), -np.inf)
    weights = np.exp(scores)
    expected = weights / weights.sum(-1, keepdims=True) @ v
    np.testing.assert_allclose(np.concatenate(found, axis=2), expected, rtol=1e-10)


def test_what_cannot_be_is_refused():
    with pytest.raises(ModelError, match="unknown layout `SBH` of queries: expected BSH or BNSD"):
        ops.IncreFlashAttention(2, "SBH")
    cache = np.zeros((1, 1, 4, 2))
    with pytest.raises(ModelError, match="give one position"):
        results(ops.KVCacheScatterUpdate(), cache, np.array([0]), np.zeros((1, 1, 2, 2)))
