"""Operators of a plan that are layers of networks: products, normalizations, convolutions."""

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from .shared.batch_norms import *  # noqa: F403
from .shared.batch_norms import Sizes
from .shared.elementwise import widened
from .shared.layers import *  # noqa: F403
from .shared.layers import _apart, _standardized, _standardized_gradient

Pairs = Sequence[Sequence[int]]

# Normalizations


@widened
def layer_norm(x: Array, gamma: Array, beta: Array, *, epsilon: float = 1e-5) -> Array:
    return _standardized(x, (-1,), epsilon)[0] * gamma + beta


@widened
def rms_norm(x: Array, gamma: Array, *, epsilon: float = 1e-5) -> Array:
    return _standardized(x, (-1,), epsilon, False)[0] * gamma


@widened
def row_norm_gradient(
    dy: Array, x: Array, gamma: Array, *, epsilon: float = 1e-5, centred: bool = True
) -> Array:
    y, deviation = _standardized(x, (-1,), epsilon, centred)
    return _standardized_gradient(dy * gamma, y, deviation, (-1,), centred)


@widened
def row_norm_gamma_gradient(
    dy: Array, x: Array, *, epsilon: float = 1e-5, centred: bool = True
) -> Array:
    product = dy * _standardized(x, (-1,), epsilon, centred)[0]
    return product.sum(tuple(range(x.ndim - 1)))


@widened
def group_norm(x: Array, gamma: Array, beta: Array, *, epsilon: float = 1e-5, size_g: int) -> Array:
    y, _ = _standardized(_apart(x, size_g), tuple(range(2, x.ndim + 1)), epsilon)
    behind = (-1, *(1,) * (x.ndim - 2))
    return y.reshape(x.shape) * gamma.reshape(behind) + beta.reshape(behind)


def moving_weights(
    *, shape: Sizes, dtype: str = "float32", factor: float = 1.0, start_d0: int = 0, whole_d0: int
) -> Array:
    """Return by how much each of several terms counts in a moving average, the last one by 1."""
    following = whole_d0 - 1 - (start_d0 + jnp.arange(shape[0]))
    weights = jnp.power(float(factor), following).astype(dtype)
    return jnp.broadcast_to(weights.reshape(-1, *(1,) * (len(shape) - 1)), tuple(shape))


# Softmax


def softmax(x: Array, *, axis: int | Sizes = -1) -> Array:
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    if len(axes) == 1:
        return jax.nn.softmax(x, axes[0])
    return jnp.exp(x - jax.nn.logsumexp(x, axes, keepdims=True))


@widened
def softmax_gradient(dy: Array, y: Array, *, axis: int | Sizes = -1) -> Array:
    return y * (dy - (dy * y).sum(axis, keepdims=True))


def log_softmax(x: Array, *, axis: int | Sizes = -1) -> Array:
    return x - jax.nn.logsumexp(x, axis, keepdims=True)


@widened
def log_softmax_gradient(dy: Array, y: Array, *, axis: int | Sizes = -1) -> Array:
    return dy - jnp.exp(y) * dy.sum(axis, keepdims=True)


# Convolutions: [n, channel, *space], with a padding before and after each dimension


def convolution(
    x: Array,
    weight: Array,
    *,
    stride: Sizes,
    padding: Pairs,
    dilation: Sizes,
    size_g: int = 1,
) -> Array:
    pads = [(before, after) for before, after in padding]
    return lax.conv_general_dilated(
        x, weight, tuple(stride), pads, rhs_dilation=tuple(dilation), feature_group_count=size_g
    )


def convolution_weight_gradient(
    x: Array,
    dy: Array,
    *,
    stride: Sizes,
    padding: Pairs,
    dilation: Sizes,
    shape: Sizes,
    size_g: int = 1,
) -> Array:
    convolve = partial(
        convolution, stride=stride, padding=padding, dilation=dilation, size_g=size_g
    )
    return _transposed(lambda weight: convolve(x, weight), dy, shape)


def transposed_convolution(
    dy: Array,
    weight: Array,
    *,
    stride: Sizes,
    padding: Pairs,
    dilation: Sizes,
    shape: Sizes,
    size_g: int = 1,
) -> Array:
    """Return the gradient of a convolution by its operand, which has the shape `shape`."""
    convolve = partial(
        convolution, stride=stride, padding=padding, dilation=dilation, size_g=size_g
    )
    return _transposed(lambda x: convolve(x, weight), dy, shape)


def _transposed(forward: Callable[[Array], Array], dy: Array, shape: Sizes) -> Array:
    """Return the gradient of a linear function by its operand, of a shape."""
    operand = jax.ShapeDtypeStruct(tuple(shape), dy.dtype)
    found: Array = jax.linear_transpose(forward, operand)(dy)[0]
    return found
