"""Functions of `mint` that are those of `ops`, or a formula of them, a line each."""

from collections.abc import Callable
from typing import Any

from shardwright.mindspore.methods import calling
from shardwright.mindspore.ops import creation, functional
from shardwright.tensor import Tensor

Formula = Callable[..., Any]

# Whose arguments stand in the same order, whatever `ops` calls a dimension.
_SAME = """
acos acosh addbmm addcdiv addmm addmv all allclose any asin asinh atan atan2 atanh baddbmm
bmm broadcast_to cat ceil chunk clamp concat cosh cross cummax cummin cumprod cumsum diff
divide dot eq erf erfc erfinv exp2 expm1 flip float_power floor floor_divide fmod frac
full_like gcd ge greater greater_equal gt index_select inverse isclose isfinite isinf
isnan isneginf le lerp less less_equal log10 log1p log2 logaddexp logaddexp2 logical_and
logical_not logical_or logical_xor logsumexp lt mm mv nan_to_num nansum narrow ne neg
negative not_equal ones_like outer pow prod ravel reciprocal remainder repeat_interleave
roll round rsqrt sign sinc sinh softmax split square squeeze stack swapaxes t tan tile
trace tril triu trunc unbind unsqueeze var where xlogy zeros_like
"""


def _moments(name: str) -> Formula:
    return lambda input, dim=None, *, correction=1, keepdim=False: getattr(functional, name)(
        input, dim, correction, keepdim
    )


def _extremes(which: str) -> Formula:
    def extreme(input: Tensor, *arguments: Any, **named: Any) -> Any:
        given = arguments and isinstance(arguments[0], Tensor)
        if given or "other" in named:
            return getattr(functional, f"{which}imum")(input, *arguments, **named)
        return getattr(input, which)(*arguments, **named)

    return extreme


def _long(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return pair[0], pair[1].astype("int64")


FUNCTIONS: dict[str, Formula] = {name: calling(name) for name in _SAME.split()}
FUNCTIONS |= {name: _moments(name) for name in ("var", "std", "var_mean", "std_mean")}
FUNCTIONS |= {
    "amax": lambda input, dim=(), keepdim=False: functional.amax(input, dim, keepdim),
    "amin": lambda input, dim=(), keepdim=False: functional.amin(input, dim, keepdim),
    "arange": creation.arange,
    "argmax": lambda input, dim=None, keepdim=False: input.argmax(dim, keepdim),
    "argmin": lambda input, dim=None, keepdim=False: input.argmin(dim, keepdim).astype("int64"),
    "argsort": lambda input, dim=-1, descending=False, stable=False: functional.sort(
        input, dim, descending
    )[1].astype("int64"),
    "count_nonzero": lambda input, dim=None: functional.count_nonzero(input, dim, dtype="int64"),
    "eye": creation.eye,
    "flatten": lambda input, start_dim=0, end_dim=-1: functional.flatten(
        input, start_dim=start_dim, end_dim=end_dim
    ),
    "full": lambda size, fill_value, *, dtype=None: creation.full(size, fill_value, dtype=dtype),
    "gather": lambda input, dim, index: functional.gather_elements(input, dim, index),
    "linspace": creation.linspace,
    "max": _extremes("max"),
    "mean": lambda input, dim=None, keepdim=False, *, dtype=None: input.mean(
        dim, keepdim, dtype=dtype
    ),
    "meshgrid": lambda *tensors, indexing=None: functional.meshgrid(
        *tensors, indexing=indexing or "ij"
    ),
    "min": _extremes("min"),
    "norm": lambda input, p="fro", dim=None, keepdim=False, *, dtype=None: (
        functional.norm(input, 2 if p == "fro" else p, dim, keepdim, dtype=dtype)
        if dim is not None or p != "fro"
        else functional.norm(input, keepdim=keepdim, dtype=dtype)
    ),
    "ones": lambda size, *, dtype=None: creation.ones(size, dtype or "float32"),
    "sort": lambda input, *, dim=-1, descending=False, stable=False: _long(
        functional.sort(input, dim, descending)
    ),
    "sum": lambda input, dim=None, keepdim=False, *, dtype=None: input.sum(
        dim, keepdim, dtype=dtype
    ),
    "topk": lambda input, k, dim=-1, largest=True, sorted=True: _long(
        functional.topk(input, k, dim, largest, sorted)
    ),
    "zeros": lambda size, *, dtype=None: creation.zeros(size, dtype or "float32"),
}
