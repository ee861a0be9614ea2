"""Products: `dot_general` as a matrix product, and convolutions."""

from math import prod
from typing import Any

import numpy as np

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.common.groups import product_of_groups
from shardwright.frontends.jax.converters.shape import transposed
from shardwright.frontends.jax.primitive_call import Call
from shardwright.frontends.jax.primitives import converts
from shardwright.ir.graph import Value


@converts("dot_general")
def _dot(call: Call) -> Value:
    (left, right), (left_batch, right_batch) = call.params["dimension_numbers"]
    dtype = _computed_in(call)
    a, b = (call.cast(value, dtype) for value in call.values())
    sides = _Side(call, a, left_batch, left), _Side(call, b, right_batch, right)
    if left_batch and not sides[0].is_last and sides[1].is_last:
        # Weights by values: rows come from the second operand, as in attention.
        second, first = sides
        found = _product(call, first, second)
        rank, free = len(left_batch), len(first.free)
        order = [*range(rank), *range(rank + free, found.type.rank), *range(rank, rank + free)]
        found = transposed(call, found, order)
    else:
        found = _product(call, *sides)
    return call.cast(found, call.result.dtype)


def _computed_in(call: Call) -> str:
    """Return the type that products are summed in."""
    types = {value.type.dtype for value in call.values()}
    if len(types) == 1 and types == {call.result.dtype}:
        return call.result.dtype
    if not call.result.is_float:
        return call.result.dtype
    wide = max((*types, call.result.dtype), key=_bytes)
    return wide


def _bytes(dtype: str) -> tuple[int, str]:
    order = {"float64": 4, "float32": 3, "bfloat16": 2, "float16": 2}
    return order.get(dtype, 0), dtype


class _Side:
    """An operand of a product: its batch, free and contracted dimensions."""

    def __init__(self, call: Call, x: Value, batch: Any, contracted: Any) -> None:
        self.x, self.call = x, call
        self.batch, self.contracted = list(map(int, batch)), list(map(int, contracted))
        taken = {*self.batch, *self.contracted}
        self.free = [d for d in range(x.type.rank) if d not in taken]

    def sizes(self, dims: list[int]) -> tuple[int, ...]:
        """Return the sizes of dimensions."""
        return tuple(self.x.type.shape[d] for d in dims)

    @property
    def is_last(self) -> bool:
        """Whether the contracted dimensions are the last ones."""
        rank = self.x.type.rank
        return self.contracted == list(range(rank - len(self.contracted), rank))

    def rows(self) -> Value:
        """Return the operand as ``[batch..., free..., contracted]``."""
        turned = transposed(self.call, self.x, [*self.batch, *self.free, *self.contracted])
        free = self.sizes(self.free)
        if self.batch or not free:
            free = (prod(free),)
        shape = (*self.sizes(self.batch), *free, prod(self.sizes(self.contracted)))
        return self.call.reshape(turned, shape)

    def columns(self) -> tuple[Value, bool]:
        """Return the operand as ``[batch..., contracted, free]``, or the reverse, and which."""
        is_last = self.is_last and bool(self.free)
        order = (
            [*self.batch, *self.free, *self.contracted]
            if is_last
            else [*self.batch, *self.contracted, *self.free]
        )
        turned = transposed(self.call, self.x, order)
        sides = (prod(self.sizes(self.free)), prod(self.sizes(self.contracted)))
        shape = (*self.sizes(self.batch), *(sides if is_last else sides[::-1]))
        return self.call.reshape(turned, shape), is_last


def _product(call: Call, first: _Side, second: _Side) -> Value:
    """Return the product ``[batch..., free of the first..., free of the second...]``."""
    columns, is_reversed = second.columns()
    how = {"transpose_b": True} if is_reversed else {}
    found = call.emit("matmul", first.rows(), columns, **how)
    batch = first.sizes(first.batch)
    shape = (*batch, *first.sizes(first.free), *second.sizes(second.free))
    return call.reshape(found, shape)


# Convolutions


@converts("conv_general_dilated")
def _convolution(call: Call) -> Value:
    params = call.params
    x, w = call.values()
    left, right, out = params["dimension_numbers"]
    x, w = transposed(call, x, left), transposed(call, w, right)
    if params["batch_group_count"] != 1:
        raise UnsupportedError("a convolution with groups of the batch")
    groups = int(params["feature_group_count"])
    padding = tuple((int(a), int(b)) for a, b in params["padding"])
    spread = tuple(map(int, params["lhs_dilation"]))
    how: dict[str, Any] = {
        "stride": tuple(map(int, params["window_strides"])),
        "dilation": tuple(map(int, params["rhs_dilation"])),
        "groups": groups,
    }
    if any(n > 1 for n in spread):
        x = _spread(call, x, spread)
    if any(n < 0 for pair in padding for n in pair):
        raise UnsupportedError("a convolution with negative padding")
    found = call.emit("convolution", x, w, padding=padding, **how)
    back = [0] * len(out)
    for position, d in enumerate(out):
        back[d] = position
    return transposed(call, found, back)


def _spread(call: Call, x: Value, spread: tuple[int, ...]) -> Value:
    """Return a value with zeros between its elements in space."""
    none = (0,) * x.type.rank
    return call.emit("pad", x, before=none, after=none, between=(0, 0, *(n - 1 for n in spread)))


@converts("ragged_dot_general")
def _ragged(call: Call) -> Value:
    """Multiply the rows of each group by its matrix; every group computes all rows."""
    numbers = call.params["ragged_dot_dimension_numbers"]
    plain = (((1,), (1,)), ((), ()))
    groups = tuple(numbers.lhs_ragged_dimensions), tuple(numbers.rhs_group_dimensions)
    found = tuple(tuple(map(tuple, pair)) for pair in numbers.dot_dimension_numbers)
    if found != plain or groups != ((0,), (0,)) or call.params["group_offset"] is not None:
        raise UnsupportedError("a ragged product but of `[row, k]` and `[group, k, column]`")
    x, weights, sizes = call.values()
    ends = call.reshape(call.emit("cumsum", sizes, axis=0), (1, sizes.type.elements))
    begins = call.emit("sub", ends, call.reshape(sizes, ends.type.shape))
    row = call.like(np.arange(x.type.shape[0])[:, None], ends)
    after = call.emit("greater_equal", row, begins)
    own = call.emit("logical_and", after, call.emit("less", row, ends))
    marks = call.cast(own, x.type.dtype)
    made = call.emit("einsum", x, weights, equation="mk,gkn->gmn")
    return call.cast(call.emit("einsum", made, marks, equation="gmn,mg->mn"), call.result.dtype)


@converts("cholesky")
def _cholesky(call: Call) -> Value:
    return call.emit("cholesky", call.at(0))


@converts("triangular_solve")
def _solve(call: Call) -> Value:
    a, b = call.values()
    how = {
        "lower": bool(call.params["lower"]),
        "transposed": bool(call.params["transpose_a"]),
        "unit_diagonal": bool(call.params["unit_diagonal"]),
    }
    if call.params["left_side"]:
        return call.emit("solve_triangular", a, b, **how)
    turned = [*range(b.type.rank - 2), b.type.rank - 1, b.type.rank - 2]
    how["transposed"] = not how["transposed"]
    found = call.emit("solve_triangular", a, call.transpose(b, turned), **how)
    return call.transpose(found, turned)


@converts("ragged_dot_general", "ragged_dot")
def _ragged_dot(call: Call) -> Value:
    """Convert a product of rows in groups with one matrix a group; others are gradients."""
    how = call.params.get("ragged_dot_dimension_numbers")
    if call.params.get("group_offset") is not None:
        raise UnsupportedError("a product of groups of which the first are left out,")
    columns = 1
    if how is not None:
        ((left,), (columns,)), batch = how.dot_dimension_numbers
        grouped = (tuple(how.lhs_ragged_dimensions), tuple(how.rhs_group_dimensions))
        if left != 1 or batch != ((), ()) or grouped != ((0,), (0,)):
            raise UnsupportedError("a product of groups other than of rows with matrices,")
    dtype = _computed_in(call)
    rows, matrices = (call.cast(call.at(position), dtype) for position in (0, 1))
    if columns == 2:
        matrices = call.transpose(matrices, (0, 2, 1))
    ends = call.emit("cumsum", call.at(2), axis=0)
    return call.cast(product_of_groups(call, rows, matrices, ends), call.result.dtype)
