"""Operators with the arguments of PyTorch, as MindSpore's ``mint`` has them."""

from typing import Any

from shardwright import ops as own
from shardwright.mindspore.mint import nn
from shardwright.mindspore.mint.table import FUNCTIONS
from shardwright.tensor import Tensor

Dim = int | tuple[int, ...] | None

abs = own.abs
add, sub, mul, div = own.add, own.sub, own.mul, own.div
cos, exp, log, sin, sqrt, tanh = own.cos, own.exp, own.log, own.sin, own.sqrt, own.tanh
matmul, maximum, minimum = own.matmul, own.maximum, own.minimum
sigmoid = own.sigmoid


def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Return the tensor with some dimensions in a row as one."""
    first, last = (d % max(1, input.ndim) for d in (start_dim, end_dim))
    if not input.ndim:
        return input.reshape((1,))
    size = 1
    for n in input.shape[first : last + 1]:
        size *= n
    return input.reshape((*input.shape[:first], size, *input.shape[last + 1 :]))


def _reduced(operator: Any, x: Tensor, dim: Dim, keepdim: bool, dtype: str | None) -> Tensor:
    axes = tuple(range(x.ndim)) if dim is None else dim
    made: Tensor = operator(keep_dims=keepdim)(x if dtype is None else x.astype(dtype), axes)
    return made


def sum(
    input: Tensor,
    dim: Dim = None,
    keepdim: bool = False,
    *,
    dtype: str | None = None,
) -> Tensor:
    """Return the sum over some dimensions, by default over all."""
    return _reduced(own.ReduceSum, input, dim, keepdim, dtype)


def mean(
    input: Tensor,
    dim: Dim = None,
    keepdim: bool = False,
    *,
    dtype: str | None = None,
) -> Tensor:
    """Return the mean over some dimensions, by default over all."""
    return _reduced(own.ReduceMean, input, dim, keepdim, dtype)


def reshape(input: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the elements in another shape."""
    return input.reshape(tuple(shape))


def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """Swap two dimensions."""
    return input.swapaxes(dim0, dim1)


def permute(input: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Put the dimensions in another order."""
    return input.transpose(*(d % input.ndim for d in dims))


globals().update({name: item for name, item in FUNCTIONS.items() if name not in globals()})

__all__ = [
    "abs",
    "add",
    "cos",
    "div",
    "exp",
    "flatten",
    "log",
    "matmul",
    "maximum",
    "mean",
    "minimum",
    "mul",
    "nn",
    "permute",
    "reshape",
    "sigmoid",
    "sin",
    "sqrt",
    "sub",
    "sum",
    "tanh",
    "transpose",
]
__all__ += sorted(set(FUNCTIONS) - set(__all__))
