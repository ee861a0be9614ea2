"""Operators with the arguments of PyTorch, as MindSpore's ``mint`` has them."""

from shardwright import ops as own
from shardwright.mindspore.mint import nn
from shardwright.mindspore.mint.table import FUNCTIONS
from shardwright.tensor import Tensor

abs = own.abs
add, sub, mul, div = own.add, own.sub, own.mul, own.div
cos, exp, log, sin, sqrt, tanh = own.cos, own.exp, own.log, own.sin, own.sqrt, own.tanh
matmul, maximum, minimum = own.matmul, own.maximum, own.minimum
sigmoid = own.sigmoid


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
