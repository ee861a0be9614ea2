"""Layers of networks, by functions that all systems have."""

from .arrays import Array, xp
from .batch_norms import Sizes
from .elementwise import widened

# Products


def matmul(a: Array, b: Array, *, transpose_a: bool = False, transpose_b: bool = False) -> Array:
    return xp.matmul(a.mT if transpose_a else a, b.mT if transpose_b else b)


def contract_leading(a: Array, b: Array) -> Array:
    return xp.matmul(a.reshape(-1, a.shape[-1]).T, b.reshape(-1, b.shape[-1]))


def einsum(*tensors: Array, equation: str = "") -> Array:
    return xp.einsum(equation, *tensors)


# Normalizations


def _standardized(
    x: Array, axes: Sizes, epsilon: float, centred: bool = True
) -> tuple[Array, Array]:
    if centred:
        x = x - x.mean(tuple(axes), keepdims=True)
    deviation = xp.sqrt(xp.square(x).mean(tuple(axes), keepdims=True) + epsilon)
    return x / deviation, deviation


def _standardized_gradient(
    dy: Array, y: Array, deviation: Array, axes: Sizes, centred: bool = True
) -> Array:
    dx = dy - y * (dy * y).mean(tuple(axes), keepdims=True)
    if centred:
        dx = dx - dy.mean(tuple(axes), keepdims=True)
    return dx / deviation


def _apart(x: Array, groups: int) -> Array:
    return x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])


@widened
def group_norm_gradient(
    dy: Array, x: Array, gamma: Array, *, epsilon: float = 1e-5, size_g: int
) -> tuple[Array, ...]:
    cotangent, axes = _apart(dy, size_g), tuple(range(2, x.ndim + 1))
    y, deviation = _standardized(_apart(x, size_g), axes, epsilon)
    scaled = cotangent * gamma.reshape(1, size_g, -1, *(1,) * (x.ndim - 2))
    dx = _standardized_gradient(scaled, y, deviation, axes)
    others = (0, *range(3, x.ndim + 1))
    return dx.reshape(x.shape), (cotangent * y).sum(others).ravel(), cotangent.sum(others).ravel()
