"""Functions of `ops` that are methods of tensors, as in MindSpore."""

import inspect
from collections.abc import Callable
from operator import index
from typing import Any

from shardwright.mindspore.forms import METHODS, PROPERTIES
from shardwright.mindspore.ops import functional
from shardwright.operators.info import operator_class
from shardwright.tensor import Tensor

_NAMES = [
    "abs",
    "absolute",
    "acos",
    "acosh",
    "add",
    "addbmm",
    "addcdiv",
    "addcmul",
    "addmm",
    "addmv",
    "addr",
    "all",
    "amax",
    "amin",
    "aminmax",
    "any",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "argsort",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "baddbmm",
    "bitwise_and",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "bmm",
    "broadcast_to",
    "ceil",
    "cholesky",
    "chunk",
    "clamp",
    "clip",
    "copysign",
    "cos",
    "cosh",
    "count_nonzero",
    "cross",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "deg2rad",
    "det",
    "diag",
    "diagonal",
    "diff",
    "div",
    "divide",
    "dot",
    "eq",
    "equal",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "expand",
    "expand_as",
    "expand_dims",
    "expm1",
    "flip",
    "fliplr",
    "flipud",
    "float_power",
    "floor",
    "floor_divide",
    "fmax",
    "fmin",
    "fmod",
    "frac",
    "gather_elements",
    "gather_nd",
    "gcd",
    "ge",
    "ger",
    "greater",
    "greater_equal",
    "gt",
    "hardshrink",
    "heaviside",
    "hypot",
    "index_add",
    "index_fill",
    "index_select",
    "inner",
    "inverse",
    "isclose",
    "isfinite",
    "isinf",
    "isnan",
    "isneginf",
    "isposinf",
    "ldexp",
    "le",
    "lerp",
    "less",
    "less_equal",
    "lgamma",
    "log",
    "log10",
    "log1p",
    "log2",
    "logaddexp",
    "logaddexp2",
    "logcumsumexp",
    "logdet",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "logit",
    "logsumexp",
    "lt",
    "masked_fill",
    "matmul",
    "maximum",
    "minimum",
    "mm",
    "moveaxis",
    "movedim",
    "msort",
    "mul",
    "multiply",
    "mv",
    "nan_to_num",
    "nanmean",
    "nansum",
    "narrow",
    "ne",
    "neg",
    "negative",
    "norm",
    "not_equal",
    "numel",
    "outer",
    "positive",
    "pow",
    "prod",
    "rad2deg",
    "ravel",
    "reciprocal",
    "remainder",
    "repeat_interleave",
    "roll",
    "rot90",
    "round",
    "rsqrt",
    "select_scatter",
    "sgn",
    "sigmoid",
    "sign",
    "signbit",
    "sin",
    "sinc",
    "sinh",
    "slice_scatter",
    "slogdet",
    "soft_shrink",
    "softmax",
    "sort",
    "split",
    "sqrt",
    "square",
    "std",
    "sub",
    "subtract",
    "svd",
    "swapdims",
    "t",
    "take",
    "tan",
    "tanh",
    "tensor_split",
    "tile",
    "topk",
    "trace",
    "tril",
    "triu",
    "true_divide",
    "trunc",
    "unbind",
    "unsqueeze",
    "var",
    "view_as",
    "where",
    "xdivy",
    "xlogy",
]
# What a dimension, and keeping it, are called by one function or another.
_SAME = ({"axis", "dim"}, {"keepdims", "keep_dims", "keepdim"})


def calling(name: str) -> Callable[..., Any]:
    """Return a function that calls one of `ops`, whatever it calls a dimension."""

    def method(self: Tensor, *arguments: Any, **named: Any) -> Any:
        function = getattr(functional, name)
        known = _arguments(function)
        renamed = {_known(given, known): value for given, value in named.items()}
        return function(self, *arguments, **renamed)

    method.__name__ = name
    method.__doc__ = f"Return `ops.{name}` of the tensor."
    return method


def _arguments(function: Callable[..., Any]) -> tuple[str, ...]:
    operator = getattr(function, "operator", None)
    if operator is not None:
        return tuple(operator_class(operator).defaults)
    return tuple(inspect.signature(function).parameters)


def _known(given: str, known: tuple[str, ...]) -> str:
    names = next((names for names in _SAME if given in names and given not in known), {given})
    return next((name for name in known if name in names), given)


def _where(self: Tensor, condition: Tensor, y: Any) -> Tensor:
    """Return elements of the tensor where a condition holds, of the other elsewhere."""
    made: Tensor = functional.where(condition, self, y)
    return made


def _index(self: Tensor) -> int:
    """Return a whole number, which arrays and lists take as a place."""
    return index(self.asnumpy()[()])


def add_methods() -> None:
    """Give tensors the methods that they do not have."""
    Tensor.where = _where  # type: ignore[attr-defined]
    Tensor.__index__ = _index  # type: ignore[attr-defined]
    methods: dict[str, Any] = {**{name: calling(name) for name in _NAMES}, **METHODS}
    methods |= {name: property(of) for name, of in PROPERTIES.items()}
    for name, method in methods.items():
        if not hasattr(Tensor, name):
            setattr(Tensor, name, method)
