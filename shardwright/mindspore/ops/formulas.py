"""Functions of MindSpore that are a formula of ours, a line each: names, arguments and defaults.

Each is a function of `ops`, and those whose first argument is a tensor are methods of tensors.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from shardwright import ops as own
from shardwright.ir.values import wrong_value
from shardwright.mindspore.ops import adapted, arrays, functions
from shardwright.mindspore.ops.functions import real
from shardwright.tensor import Tensor, apply, apply_all

Formula = Callable[..., Any]

# Names of functions that are others of `ops`.
SAME = {
    "absolute": "abs",
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctan2": "atan2",
    "arctanh": "atanh",
    "bitwise_left_shift": "left_shift",
    "bitwise_right_shift": "right_shift",
    "cat": "concat",
    "clamp": "clip",
    "clip_by_value": "clip",
    "divide": "div",
    "eq": "equal",
    "floor_divide": "floor_div",
    "ge": "greater_equal",
    "gt": "greater",
    "le": "less_equal",
    "logcumsumexp": "cumlogsumexp",
    "lt": "less",
    "matrix_exp": "matrix_exponential",
    "moveaxis": "movedim",
    "multiply": "mul",
    "ne": "not_equal",
    "negative": "neg",
    "pinv": "pseudo_inverse",
    "sgn": "sign",
    "soft_shrink": "softshrink",
    "subtract": "sub",
    "swapdims": "swapaxes",
    "true_divide": "div",
    "unsqueeze": "expand_dims",
    "unstack": "unbind",
}


def _is(operator: str, x: Tensor, y: Any = None) -> Tensor:
    return apply(operator, x) if y is None else apply(operator, x, y)


def _without_nan(which: str, x: Tensor, y: Tensor) -> Tensor:
    """Return an extremum of two elements, of which one may be no number."""
    first = apply("where", _is("is_nan", x), y, x)
    return apply(which, first, apply("where", _is("is_nan", y), x, y))


def _log_of_sum(x: Tensor, y: Tensor, base: float) -> Tensor:
    """Return the logarithm of the sum of two powers of a base."""
    scale = math.log(base)
    apart = apply("abs", x - y) * -scale
    return apply("maximum", x, y) + apply("log1p", apply("exp", apart)) * (1 / scale)


def _sinc(x: Tensor) -> Tensor:
    at = real(x) * math.pi
    safe = apply("where", at == 0, apply("ones_like", at), at)
    return apply("where", at == 0, apply("ones_like", at), apply("sin", safe) / safe)


def _logit(input: Tensor, eps: float | None = None) -> Tensor:
    x = real(input)
    x = x if eps is None else functions.clip(x, eps, 1 - eps)
    return apply("log", x / (1.0 - x))


def _replaced(
    input: Tensor,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Tensor:
    made: Tensor = own.NanToNum(0.0 if nan is None else nan, posinf, neginf)(input)
    return made


def _whole(x: Tensor) -> Tensor:
    return x if x.dtype == "bool" else x != 0


POINTWISE: dict[str, Formula] = {
    "addcdiv": lambda input, tensor1, tensor2, value=1: input + tensor1 / tensor2 * value,
    "addcmul": lambda input, tensor1, tensor2, value=1: input + tensor1 * tensor2 * value,
    "celu": lambda x, alpha=1.0: (
        apply("relu", x) + functions.minimum(apply("expm1", x * (1 / alpha)) * alpha, 0.0)
    ),
    "copysign": lambda x, other: apply(
        "where", other < 0, -apply("abs", real(x)), apply("abs", real(x))
    ),
    "deg2rad": lambda x: real(x) * (math.pi / 180),
    "exp2": lambda input: apply("exp", real(input) * math.log(2)),
    "float_power": lambda input, exponent: functions.pow(
        input.astype("float64"),
        exponent.astype("float64") if isinstance(exponent, Tensor) else exponent,
    ),
    "fmax": lambda input, other: _without_nan("maximum", input, other),
    "fmod": lambda input, other: adapted.Mod()(input, other),
    "fmin": lambda input, other: _without_nan("minimum", input, other),
    "frac": lambda x: x - apply("trunc", x),
    "glu": lambda x, axis=-1: (lambda parts: parts[0] * apply("sigmoid", parts[1]))(
        apply_all("split", x, axis=axis, parts=2)
    ),
    "hardshrink": lambda input, lambd=0.5: apply("hard_shrink", input, bound=lambd),
    "hardtanh": lambda input, min_val=-1.0, max_val=1.0: functions.clip(input, min_val, max_val),
    "heaviside": lambda input, values: apply(
        "where", input == 0, values, (input > 0).astype(input.dtype)
    ),
    "hypot": lambda input, other: own.Hypot()(input, other),
    "isneginf": lambda input: apply("logical_and", _is("is_inf", input), input < 0),
    "isposinf": lambda input: apply("logical_and", _is("is_inf", input), input > 0),
    "ldexp": lambda x, other: real(x) * apply("exp", real(other) * math.log(2)),
    "lerp": lambda input, end, weight: input + (end - input) * weight,
    "log10": lambda input: apply("log", real(input)) * (1 / math.log(10)),
    "log2": lambda input: apply("log", real(input)) * (1 / math.log(2)),
    "logaddexp": lambda input, other: _log_of_sum(input, other, math.e),
    "logaddexp2": lambda input, other: _log_of_sum(input, other, 2.0),
    "logit": _logit,
    "logsigmoid": lambda x: -apply("softplus", -x),
    "masked_fill": lambda input_x, mask, value: apply(
        "where", mask, _filled(value, input_x), input_x
    ),
    "nan_to_num": _replaced,
    "positive": lambda input: input,
    "rad2deg": lambda x: real(x) * (180 / math.pi),
    "remainder": lambda input, other: functions.beside_each("mod", input, other),
    "signbit": lambda input: input < 0,
    "sinc": _sinc,
    "softmin": lambda x, axis=-1, *, dtype=None: functions.softmax(-x, axis, dtype=dtype),
    "softshrink": lambda input, lambd=0.5: apply("soft_shrink", input, bound=lambd),
    "tanhshrink": lambda input: input - apply("tanh", input),
    "threshold": lambda input, thr, value: apply(
        "where", input > thr, input, _filled(value, input)
    ),
    "xdivy": lambda x, y: own.Xdivy()(x, y),
    "xlogy": lambda input, other: own.Xlogy()(input, other),
}


def _filled(value: Any, like: Tensor) -> Tensor:
    if isinstance(value, Tensor):
        return value.astype(like.dtype)
    return apply("fill", shape=(), value=float(value), dtype=like.dtype)


# Reductions


def _reduced(operator: str) -> Formula:
    return lambda input, axis=None, keepdims=False: apply(
        operator, input, axis=_axes(axis), keep_dims=keepdims
    )


def _axes(axis: Any) -> Any:
    """Return dimensions as an operator takes them: of no one that is named it reduces all."""
    return axis if axis is None or isinstance(axis, int) else tuple(axis) or None


def _counted(input: Tensor, axis: Any) -> int:
    axes = range(input.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
    return math.prod(input.shape[d] for d in axes)


def _moments(x: Tensor, axis: Any, ddof: int | bool, keep: bool) -> tuple[Tensor, Tensor]:
    """Return the variance and the mean of elements."""
    axes, count = _axes(axis), _counted(x, _axes(axis))
    mean = x.mean(axes, True)
    squares = apply("square", x - mean).sum(axes, keep)
    left = x.mean(axes, keep)
    return squares / (count - int(ddof)), left


def _root(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return apply("sqrt", pair[0]), pair[1]


def _log_sum_exp(input: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    most = apply("stop_gradient", apply("reduce_max", input, axis=_axes(dim), keep_dims=True))
    safe = apply("where", apply("is_inf", most), apply("zeros_like", most), most)
    sums = apply("exp", input - safe).sum(_axes(dim), True)
    found = apply("log", sums) + safe
    return found if keepdim else apply("squeeze", found, axis=_reduced_axes(input, dim))


def _reduced_axes(x: Tensor, axis: Any) -> tuple[int, ...]:
    axes = range(x.ndim) if _axes(axis) is None else (axis,) if isinstance(axis, int) else axis
    return tuple(d % x.ndim for d in axes)


def _norm(
    A: Tensor,  # noqa: N803  # MindSpore's name
    ord: float | str | None = None,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: str | None = None,
) -> Tensor:
    x = A if dtype is None else A.astype(dtype)
    several = isinstance(dim, tuple | list) and len(dim) > 1
    if (several or (dim is None and x.ndim > 1)) and ord not in (None, "fro"):
        raise wrong_value("ord", ord, "None, for several dimensions")
    axes, order = _axes(dim), 2 if ord in (None, "fro") else ord
    size = apply("abs", x)
    if order in (math.inf, -math.inf):
        which = "reduce_max" if order == math.inf else "reduce_min"
        return apply(which, size, axis=axes, keep_dims=keepdim)
    if order == 0:
        return (x != 0).astype(x.dtype).sum(axes, keepdim)
    if order == 2:
        return apply("sqrt", apply("square", x).sum(axes, keepdim))
    assert isinstance(order, int | float)
    sums = (size if order == 1 else size**order).sum(axes, keepdim)
    return sums if order == 1 else sums ** (1 / order)


REDUCTIONS: dict[str, Formula] = {
    "all": lambda input, axis=None, keep_dims=False: apply(
        "reduce_all", _whole(input), axis=_axes(axis), keep_dims=keep_dims
    ),
    "amax": _reduced("reduce_max"),
    "amin": _reduced("reduce_min"),
    "aminmax": lambda input, *, axis=0, keepdims=False: (
        _reduced("reduce_min")(input, axis, keepdims),
        _reduced("reduce_max")(input, axis, keepdims),
    ),
    "any": lambda input, axis=None, keep_dims=False: apply(
        "reduce_any", _whole(input), axis=_axes(axis), keep_dims=keep_dims
    ),
    "count_nonzero": lambda x, axis=(), keep_dims=False, dtype="int32": (
        (x != 0).astype("int32").sum(_axes(axis), keep_dims).astype(dtype)
    ),
    "logsumexp": _log_sum_exp,
    "mean": lambda x, axis=None, keep_dims=False: x.mean(_axes(axis), keep_dims),
    "nanmean": lambda input, axis=None, keepdims=False, *, dtype=None: (
        _numbers(input, dtype).sum(_axes(axis), keepdims)
        / apply("logical_not", apply("is_nan", input))
        .astype(dtype or input.dtype)
        .sum(_axes(axis), keepdims)
    ),
    "nansum": lambda input, axis=None, keepdims=False, *, dtype=None: _numbers(input, dtype).sum(
        _axes(axis), keepdims
    ),
    "norm": _norm,
    "std": lambda input, axis=None, ddof=0, keepdims=False: _root(
        _moments(input, axis, ddof, keepdims)
    )[0],
    "std_mean": lambda input, axis=None, ddof=0, keepdims=False: _root(
        _moments(input, axis, ddof, keepdims)
    ),
    "sum": lambda input, dim=None, keepdim=False, *, dtype=None: input.sum(
        _axes(dim), keepdim, dtype=dtype
    ),
    "var": lambda input, axis=None, ddof=0, keepdims=False: _moments(input, axis, ddof, keepdims)[
        0
    ],
    "var_mean": lambda input, axis=None, ddof=0, keepdims=False: _moments(
        input, axis, ddof, keepdims
    ),
}


def _numbers(x: Tensor, dtype: str | None) -> Tensor:
    kept = apply("mask", x, apply("logical_not", apply("is_nan", x)))
    return kept if dtype is None else kept.astype(dtype)


# Products


def _weighted(x: Tensor, beta: float, product: Tensor, alpha: float) -> Tensor:
    """Return a sum of a tensor and a product, each with a factor that is often 1."""
    return (x if beta == 1 else x * beta) + (product if alpha == 1 else product * alpha)


def _kron(input: Tensor, other: Tensor) -> Tensor:
    rank = max(input.ndim, other.ndim)
    a, b = ((1,) * (rank - x.ndim) + x.shape for x in (input, other))
    apart = input.reshape(tuple(n for size in a for n in (size, 1)))
    between = other.reshape(tuple(n for size in b for n in (1, size)))
    return (apart * between).reshape(tuple(m * n for m, n in zip(a, b, strict=True)))


def _cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    axis = next(d for d, size in enumerate(input.shape) if size == 3) if dim is None else dim

    def turned(x: Tensor, by: int) -> Tensor:
        return apply("gather", x, Tensor(np.roll(np.arange(3), by), "int32"), axis=axis)

    return turned(input, -1) * turned(other, -2) - turned(input, -2) * turned(other, -1)


def _diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    first, second = dim1 % input.ndim, dim2 % input.ndim
    rest = [d for d in range(input.ndim) if d not in (first, second)]
    rows, columns = input.shape[first], input.shape[second]
    row, column = max(-offset, 0), max(offset, 0)
    count = max(min(rows - row, columns - column), 0)
    flat = input.transpose(*rest, first, second).reshape(
        (*(input.shape[d] for d in rest), rows * columns)
    )
    places = (row + np.arange(count)) * columns + column + np.arange(count)
    return apply("gather", flat, Tensor(places, "int32"), axis=len(rest))


def _signed_logarithm(input: Tensor) -> tuple[Tensor, Tensor]:
    found = apply("determinant", input)
    return apply("sign", apply("stop_gradient", found)), apply("log", apply("abs", found))


PRODUCTS: dict[str, Formula] = {
    "addbmm": lambda input, batch1, batch2, *, beta=1, alpha=1: _weighted(
        input, beta, apply("matmul", batch1, batch2).sum(0), alpha
    ),
    "addmm": lambda input, mat1, mat2, *, beta=1, alpha=1: _weighted(
        input, beta, apply("matmul", mat1, mat2), alpha
    ),
    "addmv": lambda input, mat, vec, *, beta=1, alpha=1: _weighted(
        input, beta, functions.matmul(mat, vec), alpha
    ),
    "addr": lambda x, vec1, vec2, *, beta=1, alpha=1: _weighted(
        x, beta, functions.outer(vec1, vec2), alpha
    ),
    "baddbmm": lambda input, batch1, batch2, beta=1, alpha=1: _weighted(
        input, beta, apply("matmul", batch1, batch2), alpha
    ),
    "bmm": lambda input_x, mat2: apply("matmul", input_x, mat2),
    "cross": _cross,
    "dense": lambda input, weight, bias=None: (
        lambda product: product if bias is None else product + bias
    )(functions.matmul(input, weight.swapaxes(0, 1) if weight.ndim > 1 else weight)),
    "det": lambda input: apply("determinant", input),
    "diag": lambda input: arrays.Diag()(input),
    "diagonal": _diagonal,
    "dot": lambda input, other: functions.tensor_dot(
        input, other, ((input.ndim - 1,), (max(other.ndim - 2, 0),))
    ),
    "ger": functions.outer,
    "inner": lambda input, other: (
        functions.tensor_dot(input, other, ((input.ndim - 1,), (other.ndim - 1,)))
        if input.ndim and other.ndim
        else input * other
    ),
    "kron": _kron,
    "logdet": lambda input: apply("log", apply("determinant", input)),
    "mm": lambda input, mat2: apply("matmul", input, mat2),
    "mv": lambda mat, vec: functions.matmul(mat, vec),
    "slogdet": _signed_logarithm,
    "trace": lambda input: _diagonal(input).sum(),
}

FORMULAS: dict[str, Formula] = POINTWISE | REDUCTIONS | PRODUCTS
