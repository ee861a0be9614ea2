"""The updates of parameters: the next parameter and states from the gradient and those before."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .dynamic_tree import edges_of, tiled, values_of
from .shared.rules import *  # noqa: F403
from .shared.stepping import updated

_FUNCTIONS: dict[str, Any] = {
    **{name: getattr(math, name) for name in ("ceil", "cos", "exp", "floor", "log", "sin")},
    **{"sqrt": math.sqrt, "trunc": math.trunc, "max": max, "min": min},
}
_WIDEST = jax.dtypes.canonicalize_dtype("float64")


def learning_rate(step: Array, *, rate: str | Sequence[float]) -> Array:
    """Return the learning rate of a step: of a formula over `step`, or one for each step."""
    if not isinstance(rate, str):
        return jnp.asarray(rate, _WIDEST)[jnp.minimum(step, len(rate) - 1)]

    def formula(number: Any) -> Any:  # which may compare and branch: Python computes it
        names = {"__builtins__": {}, **_FUNCTIONS}
        return np.asarray(eval(rate, names, {"step": float(number)}), _WIDEST)

    found: Array = jax.pure_callback(formula, jax.ShapeDtypeStruct((), _WIDEST), step)
    return found


def _corrected(beta: float, step: Array) -> Array:
    """Return ``1 - beta**step``, exact in narrow types, too."""
    return -jnp.expm1(step * math.log(beta)) if beta else jnp.ones_like(step)


def _adam(
    own_rate: Any,
    tensors: Sequence[Array],
    step: Array,
    betas: tuple[float, float],
    epsilon: float,
    decays: tuple[float, float],
    bias_correction: str,
    lazy: bool,
    nesterov: bool,
) -> list[Array]:
    """Return the next parameter and states; `decays` are apart, and in the gradient.

    States are the mean, the mean square, and perhaps the greatest one, whose root divides.
    """
    (p, g, m, v, *greatest), (beta1, beta2), (weight_decay, l2) = tensors, betas, decays
    before, idle = (p, m, v, *greatest), g == 0
    g = g + l2 * p if l2 else g
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * jnp.square(g)
    most = [jnp.maximum(old, v) for old in greatest]
    mean, square = beta1 * m + (1 - beta1) * g if nesterov else m, (v, *most)[-1]
    first, second = _corrected(beta1, step), _corrected(beta2, step)
    if bias_correction == "moments":
        change = mean / first / (jnp.sqrt(square / second) + epsilon)
    else:
        change = mean / (jnp.sqrt(square) + epsilon)
        change = change * (second**0.5 / first) if bias_correction == "rate" else change
    after = [p - own_rate * (change + weight_decay * p), m, v, *most]
    if not lazy:
        return after
    return [jnp.where(idle, old, new) for old, new in zip(before, after, strict=True)]


def adam_update(
    *tensors: Array,
    learning_rate: float = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: float = 0.0,
    l2: float = 0.0,
    bias_correction: str = "moments",
    lazy: bool = False,
    nesterov: bool = False,
) -> tuple[Array, ...]:
    """Update by Adam; a third state is the greatest mean of squares, whose root divides."""
    own = (beta1, beta2), epsilon, (weight_decay, l2), bias_correction, lazy, nesterov
    states = next(i for i, t in enumerate(tensors) if not jnp.issubdtype(t.dtype, jnp.floating)) - 2

    def rule(rate: Any, *operands: Array) -> Sequence[Array]:
        *own_tensors, step = operands
        return _adam(rate, own_tensors, step, *own)

    return updated(rule, states, True, learning_rate, tensors)


amsgrad_update = adam_update


def adam8bit_update(
    *tensors: Array,
    learning_rate: float = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: float = 0.0,
    l2: float = 0.0,
    bias_correction: str = "moments",
    lazy: bool = False,
    nesterov: bool = False,
    block: tuple[int, ...] = (16, 16),
) -> tuple[Array, ...]:
    """Adam whose means are stored in 8 bits, with the largest number of every block."""
    own = (beta1, beta2), epsilon, (weight_decay, l2), bias_correction, lazy, nesterov

    def rule(rate: Any, *operands: Array) -> Sequence[Array]:
        p, g, m, m_scale, v, v_scale, step = operands
        mean = _dequantized(m, m_scale, block, True)
        square = _dequantized(v, v_scale, block, False)
        after, mean, square = _adam(rate, (p, g, mean, square), step, *own)
        return after, *_quantized(mean, block, True), *_quantized(square, block, False)

    return updated(rule, 4, True, learning_rate, tensors)


def _spread(scale: Array, block: tuple[int, ...]) -> Array:
    for axis, side in enumerate(block, -len(block)):
        scale = jnp.repeat(scale, side, axis)
    return scale


def _dequantized(codes: Array, scale: Array, block: tuple[int, ...], signed: bool) -> Array:
    values = jnp.asarray(values_of(signed), scale.dtype)
    return values[codes.astype(jnp.int32)] * _spread(scale, block)


def _quantized(x: Array, block: tuple[int, ...], signed: bool) -> tuple[Array, Array]:
    """Return the positions of the nearest values, and the largest number of every block."""
    parts, sides = tiled(x.shape, block)
    scale = jnp.abs(x).reshape(parts).max(sides)
    share = x / _spread(jnp.where(scale > 0, scale, 1), block)
    return jnp.searchsorted(jnp.asarray(edges_of(signed), x.dtype), share), scale


def muon_direction(
    g: Array,
    m: Array,
    *scale: Array,
    momentum: float = 0.95,
    nesterov: bool = True,
    dtype: str = "bfloat16",
) -> Array:
    """Return the decaying mean of gradients, or one gradient ahead of it."""
    exact = jnp.promote_types(g.dtype, m.dtype)
    g = g.astype(exact) / scale[0].astype(exact) if scale else g.astype(exact)
    mean = momentum * m.astype(exact) + (1 - momentum) * g
    direction = momentum * mean + (1 - momentum) * g if nesterov else mean
    return direction.astype(dtype)


def orthogonalize(
    x: Array,
    *,
    coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315),
    epsilon: float = 1e-7,
    iterations: int = 5,
) -> Array:
    """Bring the singular values of matrices near 1 by iterations of Newton and Schulz.

    The sum with a product is rounded once.
    """
    (a, b, c), narrow = coefficients, x.dtype
    wide = jnp.promote_types(narrow, jnp.float32)

    def product(left: Array, right: Array) -> Array:
        return jnp.matmul(left, right, preferred_element_type=wide)

    is_tall = x.shape[-2] > x.shape[-1]
    x = x.mT if is_tall else x
    norm = jnp.sqrt(jnp.sum(jnp.square(x.astype(wide)), (-2, -1), keepdims=True)).astype(narrow)
    x = x / jnp.maximum(norm, epsilon)
    for _ in range(iterations):
        gram = product(x, x.mT).astype(narrow)
        change = (b * gram.astype(wide) + c * product(gram, gram)).astype(narrow)
        x = (a * x.astype(wide) + product(change, x)).astype(narrow)
    return x.mT if is_tall else x


def sum_squares(x: Array, *, dtype: str = "float32") -> Array:
    return jnp.sum(jnp.square(x.astype(dtype)))


def clip_by_norm(x: Array, total: Array, *, clip_norm: float = 1.0) -> Array:
    factor = clip_norm / jnp.maximum(jnp.sqrt(total), clip_norm)
    return (x * factor).astype(x.dtype)


def count_nonfinite(x: Array) -> Array:
    return jnp.sum(~jnp.isfinite(x))


def loss_scale_update(
    scale: Array, good: Array, nonfinite: Array, *, factor: float = 2.0, window: int = 2000
) -> tuple[Array, Array, Array]:
    """Return the next scale, the number of steps since it changed, and 1 for a step that counts."""
    is_finite, is_due = nonfinite == 0, good + 1 >= window
    lower = jnp.maximum(scale / factor, jnp.minimum(scale, 1))
    higher = jnp.where(scale * factor <= jnp.finfo(jnp.float32).max, scale * factor, scale)
    new = jnp.where(is_finite, jnp.where(is_due, higher, scale), lower)
    steps = jnp.where(is_finite & ~is_due, good + 1, 0)
    return new.astype(scale.dtype), steps.astype(good.dtype), is_finite.astype(good.dtype)
