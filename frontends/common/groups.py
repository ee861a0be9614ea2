"""Products of rows that are sorted by group: each group has a matrix, as grouped kernels have."""

import numpy as np

from shardwright.frontends.common.call import Emitting
from shardwright.frontends.common.errors import UnsupportedError
from shardwright.ir.graph import Value


def group_of_rows(call: Emitting, ends: Value, count: int) -> Value:
    """Return the group of each row ``[row, 1]``: how many groups end at the row or before.

    A row behind the last group is of no group.

    Parameters
    ----------
    call : Emitting
        The call that is converted.
    ends : Value
        Where each group ends, ``[group]``.
    count : int
        How many rows there are.
    """
    groups = ends.type.elements
    row = call.constant(np.arange(count)[:, None], "int64")
    ended = call.emit("greater_equal", row, call.reshape(call.cast(ends, "int64"), (1, groups)))
    return call.emit("reduce_sum", call.cast(ended, "int64"), axis=(1,), keep_dims=True)


def product_of_groups(call: Emitting, rows: Value, matrices: Value, ends: Value) -> Value:
    """Return rows ``[row, k]`` times the matrix ``[group, k, n]`` of the group that each is in.

    They are rows of experts, of which each chose one.

    Raises
    ------
    UnsupportedError
        If the shapes are not these.
    """
    shapes = rows.type.shape, matrices.type.shape, ends.type.shape
    if [len(shape) for shape in shapes] != [2, 3, 1]:
        raise UnsupportedError(f"a product of groups of the shapes {shapes}")
    group = group_of_rows(call, ends, rows.type.shape[0])
    held = call.emit("dispatch", rows, group, experts=matrices.type.shape[0])
    return call.emit("combine", call.emit("grouped_matmul", held, matrices), group)


def picked(call: Emitting, rows: Value, mask: Value) -> Value:
    """Return the rows ``[row, k]`` that a mask has; others are zeros, which nothing reads.

    It is the dispatch to one expert, as `put` is the way back.
    """
    held = call.emit("dispatch", rows, _one_expert(call, mask), experts=1, ragged=False)
    return call.reshape(held, rows.type.shape)


def put(call: Emitting, rows: Value, mask: Value) -> Value:
    """Return the rows ``[row, k]`` that a mask has, and zeros for others."""
    held = call.reshape(rows, (1, *rows.type.shape))
    return call.emit("combine", held, _one_expert(call, mask))


def _one_expert(call: Emitting, mask: Value) -> Value:
    """Return the choice of each entry of a mask, ``[row, 1]``: the expert, or none."""
    taken = call.reshape(call.cast(mask, "int64"), (mask.type.elements, 1))
    return call.shifted(taken, -1)
