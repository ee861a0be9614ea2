"""Reductions, scans, and the order of elements."""

from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.torch.aten import converts
from shardwright.frontends.torch.aten_call import Call
from shardwright.frontends.torch.converters.elementwise import truth
from shardwright.ir.graph import Value
from shardwright.operators.models.loss import emit_log_sum

Axes = int | list[int] | None


def axes_of(x: Value, dim: Axes) -> tuple[int, ...]:
    """Return dimensions counted from the front; all of them where none are given."""
    if dim is None or dim == []:
        return tuple(range(x.type.rank))
    return tuple(d % x.type.rank for d in ([dim] if isinstance(dim, int) else dim))


def _reduced(call: Call, operator: str, x: Value, dim: Axes, keepdim: bool) -> Value:
    if not x.type.rank:
        return x
    return call.emit(operator, x, axis=axes_of(x, dim), keep_dims=keepdim)


@converts("aten.sum")
def _sum(call: Call, x: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    return _reduced(call, "reduce_sum", call.cast(x, call.result.dtype), dim, keepdim)


@converts("aten.mean")
def _mean(call: Call, x: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    return _reduced(call, "reduce_mean", call.cast(x, call.result.dtype), dim, keepdim)


@converts("aten.prod")
def _prod(call: Call, x: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    return _reduced(call, "reduce_prod", call.cast(x, call.result.dtype), dim, keepdim)


@converts("aten.any")
def _any(call: Call, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    return _reduced(call, "reduce_any", truth(call, x), dim, keepdim)


@converts("aten.all")
def _all(call: Call, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    return _reduced(call, "reduce_all", truth(call, x), dim, keepdim)


@converts("aten.amax")
def _amax(call: Call, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    return _reduced(call, "reduce_max", x, dim, keepdim)


@converts("aten.amin")
def _amin(call: Call, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    return _reduced(call, "reduce_min", x, dim, keepdim)


@converts("aten.max", "aten.min")
def _extreme(
    call: Call, x: Value, dim: int | None = None, keepdim: bool = False, other: Value | None = None
) -> Any:
    kind = call.operator.split(".")[1]
    if other is not None:
        operands = (call.cast(one, call.result.dtype) for one in (x, other))
        return call.emit(f"{kind}imum", *operands, halves=True, both=True)
    if dim is None:
        if not x.type.is_float or not x.type.rank:
            return _reduced(call, f"reduce_{kind}", x, None, False)
        return _shared(call, call.emit(f"reduce_{kind}", x, differentiable=False), x)
    axis = dim % x.type.rank
    place = call.emit(f"arg{kind}", x, axis=axis, keep_dims=True)
    value = call.emit("gather_elements", x, place, axis=axis)
    shapes = [result.shape for result in call.results]
    return [call.reshape(value, shapes[0]), call.reshape(place, shapes[-1])]


@converts("aten.argmax", "aten.argmin")
def _position(call: Call, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    if dim is None:
        x, dim = call.reshape(x, (x.type.elements,)), 0
    operator = call.operator.split(".")[1]
    axis = dim % x.type.rank
    found = call.emit(operator, x, axis=axis, keep_dims=keepdim)
    return call.reshape(call.cast(found, "int64"), call.result.shape)


@converts("aten.var_mean", "aten.std_mean")
def _var_mean(
    call: Call,
    x: Value,
    dim: Any = None,
    unbiased: bool = True,
    correction: Any = None,
    keepdim: bool = False,
) -> list[Value]:
    mean = call.emit("reduce_mean", x, axis=axes_of(x, dim), keep_dims=keepdim)
    return [_var(call, x, dim, unbiased, correction, keepdim), mean]


@converts("aten.var", "aten.std")
def _var(
    call: Call,
    x: Value,
    dim: Any = None,
    unbiased: bool = True,
    correction: Any = None,
    keepdim: bool = False,
) -> Value:
    axes = axes_of(x, dim)
    count = int(np.prod([x.type.shape[a] for a in axes]))
    less = (1 if unbiased else 0) if correction is None else float(correction)
    mean = call.emit("reduce_mean", x, axis=axes, keep_dims=True)
    distance = call.emit("square", call.emit("sub", x, mean))
    total = call.emit("reduce_sum", distance, axis=axes, keep_dims=keepdim)
    variance = call.scaled(total, 1 / (count - less))
    return root(call, variance) if ".std" in call.operator else variance


def root(call: Call, total: Value) -> Value:
    """Return a square root whose gradient is zero where it is zero, as that of a norm."""
    return _but_at_zero(call, total, 0, lambda x: call.emit("sqrt", x))


def _but_at_zero(call: Call, x: Value, value: float, function: Callable[[Value], Value]) -> Value:
    """Return a function of elements; of zero it is a value, and its gradient is zero."""
    kind = x.type.dtype
    is_zero = call.emit("equal", x, call.fill(0, kind))
    found = function(call.emit("where", is_zero, call.fill(1, kind), x))
    return call.emit("where", is_zero, call.fill(value, kind), found)


@converts("aten.linalg_vector_norm", "aten.norm")
def _norm(
    call: Call,
    x: Value,
    ord: Any = 2,
    p: Any = None,
    dim: Any = None,
    keepdim: bool = False,
    dtype: Any = None,
) -> Value:
    order = float(ord if p is None else p)
    return norm(call, call.cast(x, call.result.dtype), order, dim, keepdim)


def norm(call: Call, x: Value, order: float, dim: Axes, keepdim: bool = False) -> Value:
    """Return the norm of an order along dimensions."""
    if order == 2:
        total = _reduced(call, "reduce_sum", call.emit("square", x), dim, keepdim)
        return root(call, total)
    size = call.emit("abs", x)
    if order == 1:
        return _reduced(call, "reduce_sum", size, dim, keepdim)
    if order in (inf, -inf):
        return _reduced(call, "reduce_max" if order > 0 else "reduce_min", size, dim, keepdim)
    if order == 0:
        some = call.emit("not_equal", x, call.fill(0, x.type.dtype))
        return _reduced(call, "reduce_sum", call.cast(some, x.type.dtype), dim, keepdim)
    raised = _power(call, size, order)
    return _power(call, _reduced(call, "reduce_sum", raised, dim, keepdim), 1 / order)


def _power(call: Call, size: Value, exponent: float) -> Value:
    """Return sizes to a power, with a gradient of zero where they are zero."""
    at_zero = 0.0 if exponent > 0 else inf
    return _but_at_zero(call, size, at_zero, lambda x: call.emit("pow", x, exponent=exponent))


@converts("aten._cdist_forward")
def _distances(call: Call, x1: Value, x2: Value, p: float, compute_mode: Any = None) -> Value:
    """Return the distances of all pairs of rows."""
    shapes = [value.type.shape for value in (x1, x2)]
    first = call.reshape(x1, (*shapes[0][:-1], 1, shapes[0][-1]))
    second = call.reshape(x2, (*shapes[1][:-2], 1, *shapes[1][-2:]))
    apart = call.emit("sub", first, second)
    is_missing = call.emit("is_nan", apart)
    if p == 0:  # a norm counts what is no number, a distance is none
        found = call.emit("not_equal", apart, call.fill(0, apart.type.dtype))
        found = call.cast(found, apart.type.dtype)
        found = call.emit("where", is_missing, call.emit("stop_gradient", apart), found)
        return call.emit("reduce_sum", found, axis=-1)
    if p != inf:
        return norm(call, apart, float(p), -1)
    # Coordinates that are no numbers are left out; of those that are equally far apart each has
    # the whole gradient, where those of a norm share it.
    size = call.emit("abs", apart)
    known = call.emit("where", is_missing, call.fill(0, size.type.dtype), size)
    how: dict[str, Any] = {"axis": -1, "keep_dims": True, "differentiable": False}
    found = call.emit("reduce_max", known, **how)
    total = call.emit("mask", size, call.emit("equal", size, found))
    total = call.emit("reduce_sum", total, axis=-1)
    return call.emit("with_gradient_of", call.reshape(found, total.type.shape), total)


@converts("aten._pdist_forward")
def _distances_of_pairs(call: Call, x: Value, p: float = 2) -> Value:
    """Return the distances of every two rows, the first before the second."""
    pairs = (call.taken(x, places.tolist(), 0) for places in np.triu_indices(x.type.shape[0], 1))
    rows = [call.reshape(rows, (rows.type.shape[0], 1, x.type.shape[1])) for rows in pairs]
    return call.reshape(_distances(call, rows[0], rows[1], p), call.result.shape)


@converts("aten._euclidean_dist")
def _many_distances(call: Call, x1: Value, x2: Value) -> Value:
    """Return the distances of all pairs of many rows, by products; PyTorch does from 26 on."""
    first, second = (
        call.emit("reduce_sum", call.emit("square", x), axis=-1, keep_dims=True) for x in (x1, x2)
    )
    rank = x2.type.rank
    second = call.transpose(second, (*range(rank - 2), rank - 1, rank - 2))
    product = call.emit("matmul", x1, x2, transpose_b=True)
    total = call.emit("add", call.emit("add", first, second), call.scaled(product, -2))
    return root(call, call.emit("relu", total))


@converts("aten.logsumexp")
def _logsumexp(call: Call, x: Value, dim: Any, keepdim: bool = False) -> Value:
    axes = axes_of(x, dim)
    if x.type.is_float and axes == (x.type.rank - 1,):
        return call.reshape(emit_log_sum(call.build, x), call.result.shape)
    peak = call.emit("stop_gradient", call.emit("reduce_max", x, axis=axes, keep_dims=True))
    is_finite = call.emit("is_finite", peak)
    peak = call.emit("where", is_finite, peak, call.fill(0, x.type.dtype))
    total = call.emit("exp", call.emit("sub", x, peak))
    logarithm = call.emit("log", call.emit("reduce_sum", total, axis=axes, keep_dims=True))
    return call.reshape(call.emit("add", logarithm, peak), call.result.shape)


@converts("aten.softmax", "aten._softmax", "aten.log_softmax", "aten._log_softmax")
def _softmax(
    call: Call, x: Value, dim: int, dtype: Any = None, half_to_float: bool = False
) -> Value:
    operator = "log_softmax" if "log" in call.operator else "softmax"
    x = call.cast(x, call.result.dtype)
    return call.emit(operator, x, axis=dim % x.type.rank)


@converts("aten._safe_softmax")
def _safe_softmax(call: Call, x: Value, dim: int, dtype: Any = None) -> Value:
    """Return a softmax that is zero where all elements are minus infinity."""
    x, axis = call.cast(x, call.result.dtype), dim % x.type.rank
    largest = call.emit("reduce_max", x, axis=axis, keep_dims=True, differentiable=False)
    is_empty = call.emit("equal", largest, call.fill(-inf, x.type.dtype))
    zero = call.fill(0, x.type.dtype)
    found = call.emit("softmax", call.emit("where", is_empty, zero, x), axis=axis)
    return call.emit("where", is_empty, zero, found)


@converts("aten.cumsum", "aten.cumprod")
def _scan(call: Call, x: Value, dim: int, dtype: Any = None) -> Value:
    x = call.cast(x, call.result.dtype)
    return call.emit(call.operator.split(".")[1], x, axis=dim % x.type.rank)


@converts("aten.logcumsumexp")
def _running_logarithm(call: Call, x: Value, dim: int) -> Value:
    if not x.type.rank:
        return x
    return call.emit("cumlogsumexp", x, axis=dim % x.type.rank)


@converts("aten.cummax", "aten.cummin")
def _running(call: Call, x: Value, dim: int) -> list[Value | None]:
    return list(call.emit_all(call.operator.split(".")[1], x, axis=dim % x.type.rank))


@converts("aten.median", "aten.kthvalue")
def _ranked(
    call: Call, x: Value, k: int | None = None, dim: int | None = None, keepdim: bool = False
) -> Any:
    if dim is None and k is None:
        return _middle(call, call.reshape(x, (x.type.elements,)))
    axis = (-1 if dim is None else dim) % x.type.rank
    place = (x.type.shape[axis] - 1) // 2 if k is None else k - 1
    parts = call.emit_all("sort", x, axis=axis)
    value, index = (call.part(part, axis, place, 1) for part in parts)
    if k is None and x.type.is_float:  # the first that is not a number, if there is one
        missing = call.cast(call.emit("is_nan", x), "int32")
        first = call.cast(call.emit("argmax", missing, axis=axis, keep_dims=True), "int64")
        last = call.part(parts[0], axis, x.type.shape[axis] - 1, 1)
        index = call.emit("where", call.emit("is_nan", last), first, call.cast(index, "int64"))
        value = call.emit("gather_elements", x, index, axis=axis)
    shape = call.result.shape
    return [call.reshape(value, shape), call.reshape(call.cast(index, "int64"), shape)]


@converts("aten.nanmedian")
def _ranked_numbers(call: Call, x: Value, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return lower medians of what are numbers; NaN where there are none."""
    if dim is None:
        flat = call.reshape(x, (x.type.elements,))
        value = _median_of_numbers(call, flat, 0)[0]
        if not x.type.is_float:
            return call.reshape(value, ())
        return _shared(call, value, flat, call.reshape(call.emit("is_nan", value), ()))
    found = _median_of_numbers(call, x, dim % x.type.rank)
    return [call.reshape(one, call.result.shape) for one in found]


def _median_of_numbers(call: Call, x: Value, axis: int) -> tuple[Value, Value]:
    """Return medians and their places; what is no number is sorted last."""
    values, order = call.emit_all("sort", x, axis=axis)
    order = call.cast(order, "int64")
    if not x.type.is_float:
        place = (x.type.shape[axis] - 1) // 2
        return call.part(values, axis, place, 1), call.part(order, axis, place, 1)
    known = call.cast(call.emit("logical_not", call.emit("is_nan", x)), "int64")
    count = call.emit("reduce_sum", known, axis=axis, keep_dims=True)
    last = call.emit("maximum", call.shifted(count, -1), call.fill(0, "int64"))
    middle = call.emit("floor_div", last, call.fill(2, "int64"))
    index = call.emit("gather_elements", order, middle, axis=axis)
    return call.emit("gather_elements", x, index, axis=axis), index


@converts("aten.mode")
def _most_frequent(call: Call, x: Value, dim: int = -1, keepdim: bool = False) -> list[Value]:
    """Return the most frequent elements, the least of several, and where they stand last."""
    axis, last = dim % x.type.rank, x.type.rank - 1
    order = [d for d in range(x.type.rank) if d != axis] + [axis]
    rows = call.transpose(x, order)
    shape = rows.type.shape
    kept = call.emit("stop_gradient", rows)
    pairs = (call.reshape(kept, (*shape[:-1], *ends)) for ends in ((-1, 1), (1, -1)))
    same = call.cast(call.emit("equal", *pairs), "int64")
    count = call.emit("reduce_sum", same, axis=last + 1)
    most = call.emit("reduce_max", count, axis=last, keep_dims=True)
    often = call.emit("equal", count, most)
    # The places of sorted elements count up with them: the least of the most frequent is first.
    sorted_places = call.cast(call.emit_all("sort", kept, axis=last)[1], "int64")
    chosen = call.emit("gather_elements", call.cast(often, "int64"), sorted_places, axis=last)
    first = call.cast(call.emit("argmax", chosen, axis=last, keep_dims=True), "int64")
    repeated = call.emit("gather_elements", sorted_places, first, axis=last)
    value = call.emit("gather_elements", kept, repeated, axis=last)
    places = call.like(np.arange(shape[-1]), first)
    places = call.emit("where", call.emit("equal", kept, value), places, call.fill(-1, "int64"))
    index = call.emit("reduce_max", places, axis=last, keep_dims=True)
    found = call.emit("gather_elements", rows, index, axis=last)
    return [call.reshape(one, call.result.shape) for one in (found, index)]


def _middle(call: Call, x: Value) -> Value:
    """Return the lower median of a vector; elements that are equal to it share its gradient."""
    order = call.emit_all("sort", x, axis=0)[0]
    value = call.part(order, 0, (x.type.elements - 1) // 2, 1)
    if not x.type.is_float:
        return call.reshape(value, ())
    last = call.part(order, 0, x.type.elements - 1, 1)  # numbers come before others
    return _shared(call, call.emit("where", call.emit("is_nan", last), last, value), x)


def _shared(call: Call, value: Value, x: Value, is_missing: Value | None = None) -> Value:
    """Return an element of a vector whose gradient is shared by all that are equal to it.

    It is no number if another one is none, or where it `is_missing`.
    """
    value = call.reshape(call.emit("stop_gradient", value), ())
    also = call.emit("is_nan", x)
    also = also if is_missing is None else call.emit("logical_and", also, is_missing)
    is_equal = call.emit("logical_or", call.emit("equal", x, value), also)
    count = call.emit("reduce_sum", call.cast(is_equal, x.type.dtype))
    total = call.emit("reduce_sum", call.emit("mask", x, is_equal))
    return call.emit("with_gradient_of", value, call.emit("div", total, count))


@converts("aten.topk")
def _topk(
    call: Call, x: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> list[Value]:
    axis = dim % x.type.rank
    values, places = call.emit_all("top_k", x, k=k, axis=axis, largest=largest)
    return [values, call.cast(places, "int64")]


@converts("aten.sort")
def _sort(
    call: Call, x: Value, dim: int = -1, descending: bool = False, stable: Any = None
) -> list[Value]:
    axis = dim % x.type.rank
    values, places = call.emit_all("sort", x, axis=axis, descending=descending)
    return [values, call.cast(places, "int64")]


@converts("aten.diff")
def _diff(
    call: Call,
    x: Value,
    n: int = 1,
    dim: int = -1,
    prepend: Value | None = None,
    append: Value | None = None,
) -> Value:
    axis = dim % x.type.rank
    parts = [
        call.cast(part, call.result.dtype) for part in (prepend, x, append) if part is not None
    ]
    if len(parts) > 1 and n:
        x = call.emit("concat", *parts, axis=axis)
    for _ in range(n):
        size = x.type.shape[axis] - 1
        x = call.emit("sub", call.part(x, axis, 1, size), call.part(x, axis, 0, size))
    return x


@converts("aten.histc")
def _histc(
    call: Call,
    x: Value,
    bins: int = 100,
    min: float = 0,
    max: float = 0,
) -> Value:
    if min == max:
        raise UnsupportedError("a histogram between bounds that depend on data")
    flat = call.reshape(x, (x.type.elements,))
    if not flat.type.is_float:
        flat = call.cast(flat, "float64")
    kind = flat.type.dtype
    scaled = call.scaled(call.shifted(flat, -min), bins)
    place = call.emit("floor", call.emit("div", scaled, call.fill(max - min, kind)))
    # The last bin has its upper bound, too; what is outside belongs to none.
    place = call.emit("minimum", place, call.fill(bins - 1, kind))
    is_low = call.emit("less", flat, call.fill(min, kind))
    is_high = call.emit("greater", flat, call.fill(max, kind))
    outside = call.emit("logical_or", is_low, is_high)
    place = call.emit("where", outside, call.fill(-1, kind), place)
    ones = call.emit("one_hot", call.cast(place, "int64"), depth=bins, dtype=call.result.dtype)
    return call.emit("reduce_sum", ones, axis=(0,))
