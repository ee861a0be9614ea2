"""Operators of a plan whose elements depend on all others up to them, and products of elements."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .shared.elementwise import widened

Axis = int | Sequence[int] | None


def _by_autograd(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """Return the gradient of a function, by PyTorch, from its operand."""

    @widened
    def gradient(dy: Tensor, x: Tensor, **attributes: Any) -> Tensor:
        with torch.enable_grad():
            own = x.detach().requires_grad_()
            found = function(own, **attributes)
        return torch.autograd.grad(found, own, dy)[0]

    return gradient


def cumsum(x: Tensor, *, axis: int = -1, exclusive: bool = False, reverse: bool = False) -> Tensor:
    if reverse:
        x = x.flip(axis)
    if exclusive:  # without a difference, which would be no number where there is an infinite one
        nothing = x.new_zeros(()).expand_as(x.narrow(axis, 0, 1))
        x = torch.cat([nothing, x.narrow(axis, 0, x.shape[axis] - 1)], axis)
    total = x.cumsum(axis, dtype=x.dtype)
    return total.flip(axis) if reverse else total


def cumprod(x: Tensor, *, axis: int = -1) -> Tensor:
    return x.cumprod(axis, dtype=x.dtype)


@widened
def cumprod_gradient(dy: Tensor, x: Tensor, *, axis: int = -1) -> Tensor:
    return _product_gradient(dy, x, axis=axis)


@widened
def cumlogsumexp(x: Tensor, *, axis: int = -1) -> Tensor:
    return x.logcumsumexp(axis)


@widened
def cumlogsumexp_gradient(dy: Tensor, x: Tensor, *, axis: int = -1) -> Tensor:
    return _logarithm_gradient(dy, x, axis=axis)


_product_gradient, _logarithm_gradient = _by_autograd(cumprod), _by_autograd(cumlogsumexp)


def cummax(x: Tensor, *, axis: int = -1) -> tuple[Tensor, ...]:
    return tuple(torch.cummax(x, axis))


def cummin(x: Tensor, *, axis: int = -1) -> tuple[Tensor, ...]:
    return tuple(torch.cummin(x, axis))


def reduce_prod(x: Tensor, *, axis: Axis = None, keep_dims: bool = False) -> Tensor:
    axes = range(x.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
    for a in sorted({a % x.ndim for a in axes}, reverse=True):
        x = x.prod(a, keepdim=keep_dims, dtype=x.dtype)
    return x


@widened
def reduce_prod_gradient(
    dy: Tensor, x: Tensor, *, axis: Axis = None, keep_dims: bool = False
) -> Tensor:
    return _all_gradient(dy, x, axis=axis, keep_dims=keep_dims)


_all_gradient = _by_autograd(reduce_prod)
