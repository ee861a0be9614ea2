"""The updates of parameters: the next parameter and states from the gradient and those before."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .shared.eight_bits import *  # noqa: F403
from .shared.rules import *  # noqa: F403
from .shared.rules import _adam_rule
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
        return _adam_rule(rate, own_tensors, step, *own)

    return updated(rule, states, True, learning_rate, tensors)


amsgrad_update = adam_update


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
