"""Operators of a plan that are layers of networks: products, normalizations, convolutions."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from .pointwise import _device
from .shared.batch_norms import *  # noqa: F403
from .shared.batch_norms import Sizes
from .shared.elementwise import widened
from .shared.layers import *  # noqa: F403

Pairs = Sequence[Sequence[int]]

# Normalizations


def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    return functional.layer_norm(x, (x.shape[-1],), gamma, beta, epsilon)


def rms_norm(x: Tensor, gamma: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    return functional.rms_norm(x, (x.shape[-1],), gamma, epsilon)


def row_norm_gradient(
    dy: Tensor, x: Tensor, gamma: Tensor, *, epsilon: float = 1e-5, centred: bool = True
) -> Tensor:
    with torch.enable_grad():
        own = x.detach().requires_grad_()
        y = _row_norm(own, gamma, epsilon, centred)
    return torch.autograd.grad(y, own, dy)[0]


def row_norm_gamma_gradient(
    dy: Tensor, x: Tensor, *, epsilon: float = 1e-5, centred: bool = True
) -> Tensor:
    with torch.enable_grad():
        gamma = torch.ones_like(x[(0,) * (x.ndim - 1)]).requires_grad_()
        y = _row_norm(x, gamma, epsilon, centred)
    return torch.autograd.grad(y, gamma, dy)[0]


def _row_norm(x: Tensor, gamma: Tensor, epsilon: float, centred: bool) -> Tensor:
    if centred:
        return functional.layer_norm(x, gamma.shape, gamma, None, epsilon)
    return functional.rms_norm(x, gamma.shape, gamma, epsilon)


def group_norm(
    x: Tensor, gamma: Tensor, beta: Tensor, *, epsilon: float = 1e-5, size_g: int
) -> Tensor:
    return functional.group_norm(x, size_g, gamma, beta, epsilon)


def moving_weights(
    *, shape: Sizes, dtype: str = "float32", factor: float = 1.0, start_d0: int = 0, whole_d0: int
) -> Tensor:
    """Return by how much each of several terms counts in a moving average, the last one by 1."""
    places = torch.arange(start_d0, start_d0 + shape[0], dtype=torch.float64, device=_device())
    following = whole_d0 - 1 - places
    weights = (factor**following).to(getattr(torch, dtype))
    return weights.reshape(-1, *(1,) * (len(shape) - 1)).expand(tuple(shape))


# Softmax


def softmax(x: Tensor, *, axis: int | Sizes = -1) -> Tensor:
    axes = _axes(axis)
    if len(axes) == 1:
        return functional.softmax(x, axes[0])
    return torch.exp(x - torch.logsumexp(x, axes, keepdim=True))


def softmax_gradient(dy: Tensor, y: Tensor, *, axis: int | Sizes = -1) -> Tensor:
    axes = _axes(axis)
    if len(axes) == 1:
        return torch.ops.aten._softmax_backward_data(dy, y, axes[0], y.dtype)
    return _softmax_gradient(dy, y, axis=axes)


@widened
def _softmax_gradient(dy: Tensor, y: Tensor, *, axis: Sizes) -> Tensor:
    return y * (dy - (dy * y).sum(axis, keepdim=True))


def log_softmax(x: Tensor, *, axis: int | Sizes = -1) -> Tensor:
    axes = _axes(axis)
    if len(axes) == 1:
        return functional.log_softmax(x, axes[0])
    return x - torch.logsumexp(x, axes, keepdim=True)


def log_softmax_gradient(dy: Tensor, y: Tensor, *, axis: int | Sizes = -1) -> Tensor:
    axes = _axes(axis)
    if len(axes) == 1:
        return torch.ops.aten._log_softmax_backward_data(dy, y, axes[0], y.dtype)
    return _log_softmax_gradient(dy, y, axis=axes)


@widened
def _log_softmax_gradient(dy: Tensor, y: Tensor, *, axis: Sizes) -> Tensor:
    return dy - torch.exp(y) * dy.sum(axis, keepdim=True)


def _axes(axis: int | Sizes) -> tuple[int, ...]:
    return (axis,) if isinstance(axis, int) else tuple(axis)


# Convolutions: [n, channel, *space], with a padding before and after each dimension


def _padded(x: Tensor, padding: Pairs) -> Tensor:
    return functional.pad(x, [n for pair in reversed(padding) for n in pair])


def convolution(
    x: Tensor,
    weight: Tensor,
    *,
    stride: Sizes,
    padding: Pairs,
    dilation: Sizes,
    size_g: int = 1,
) -> Tensor:
    function = (functional.conv1d, functional.conv2d, functional.conv3d)[x.ndim - 3]
    return function(_padded(x, padding), weight, None, tuple(stride), 0, tuple(dilation), size_g)


def convolution_weight_gradient(
    x: Tensor,
    dy: Tensor,
    *,
    stride: Sizes,
    padding: Pairs,
    dilation: Sizes,
    shape: Sizes,
    size_g: int = 1,
) -> Tensor:
    padded = _padded(x, padding)
    weight = x.new_empty(tuple(shape))
    return _backward(dy, padded, weight, stride, dilation, size_g, 1)


def transposed_convolution(
    dy: Tensor,
    weight: Tensor,
    *,
    stride: Sizes,
    padding: Pairs,
    dilation: Sizes,
    shape: Sizes,
    size_g: int = 1,
) -> Tensor:
    """Return the gradient of a convolution by its operand, which has the shape `shape`."""
    space = [n + a + b for n, (a, b) in zip(shape[2:], padding, strict=True)]
    padded = dy.new_empty(*shape[:2], *space)
    found = _backward(dy, padded, weight, stride, dilation, size_g, 0)
    for d, (n, (before, _)) in enumerate(zip(shape[2:], padding, strict=True)):
        found = found.narrow(d + 2, before, n)
    return found


def _backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Sizes,
    dilation: Sizes,
    groups: int,
    which: int,
) -> Tensor:
    wanted = [i == which for i in range(3)]
    none = [0] * (x.ndim - 2)
    found = torch.ops.aten.convolution_backward(
        dy, x, weight, None, list(stride), none, list(dilation), False, none, groups, wanted
    )
    return found[which]
