"""The updates of parameters: the next parameter and states from the gradient and those before.

A learning rate that follows the step is an operand after the number of the step. Under a dynamic
loss scale two scalars come last: the scale, by which the gradient is divided, and the number of
elements of all gradients that are not finite; if there are some, nothing changes.
"""

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .dynamic_tree import edges_of, tiled, values_of

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


def _updated(
    rule: Callable[..., Sequence[Array]],
    states: int,
    counts: bool,
    rate: float,
    tensors: Sequence[Array],
    others: int = 0,
) -> tuple[Array, ...]:
    """Run a rule in the widest type of its tensors; parameter and states keep their types.

    `others` are tensors behind the states that are none.
    """
    count = 2 + states + others
    own, scalars = list(tensors[:count]), list(tensors[count:])
    before = (own[0], *own[2 : 2 + states])
    exact = reduce(jnp.promote_types, (tensor.dtype for tensor in own))
    widened = [tensor.astype(exact) for tensor in own]
    steps = [scalars.pop(0).astype(exact)] if counts else []
    skipped: Any = False
    if len(scalars) > 1:
        *scalars, loss_scale, nonfinite = scalars
        widened[1] = own[1].astype(before[0].dtype).astype(exact) / loss_scale.astype(exact)
        skipped = nonfinite > 0
    own_rate = scalars[0].astype(exact) if scalars else rate
    after = rule(own_rate, *widened, *steps)
    return tuple(
        jnp.where(skipped, old, new.astype(old.dtype))
        for new, old in zip(after, before, strict=True)
    )


def sgd_update(*tensors: Array, learning_rate: float = 0.01, weight_decay: float = 0.0) -> Array:
    def rule(rate: Any, p: Array, g: Array) -> Sequence[Array]:
        return [p - rate * (g + weight_decay * p)]

    return _updated(rule, 0, False, learning_rate, tensors)[0]


def momentum_update(
    *tensors: Array,
    learning_rate: float = 0.01,
    momentum: float = 0.9,
    nesterov: bool = False,
    weight_decay: float = 0.0,
) -> tuple[Array, ...]:
    def rule(rate: Any, p: Array, g: Array, m: Array) -> Sequence[Array]:
        g = g + weight_decay * p
        m = momentum * m + g
        return p - rate * (g + momentum * m if nesterov else m), m

    return _updated(rule, 1, False, learning_rate, tensors)


def dampened_update(
    *tensors: Array,
    learning_rate: float = 0.01,
    momentum: float = 0.9,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
) -> tuple[Array, ...]:
    def rule(rate: Any, p: Array, g: Array, m: Array, step: Array) -> Sequence[Array]:
        g = g + weight_decay * p
        m = jnp.where(step == 1, g, momentum * m + (1 - dampening) * g)
        return p - rate * m, m

    return _updated(rule, 1, True, learning_rate, tensors)


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

    return _updated(rule, states, True, learning_rate, tensors)


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

    return _updated(rule, 4, True, learning_rate, tensors)


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


def muon_update(
    *tensors: Array,
    learning_rate: float = 0.001,
    momentum: float = 0.95,
    weight_decay: float = 0.1,
    ratio: float = 1.0,
) -> tuple[Array, ...]:
    def rule(rate: Any, p: Array, g: Array, m: Array, o: Array) -> Sequence[Array]:
        after = (1 - rate * weight_decay) * p - ratio * rate * o
        return after, momentum * m + (1 - momentum) * g

    return _updated(rule, 1, False, learning_rate, tensors, 1)


def adagrad_update(
    *tensors: Array,
    learning_rate: float = 0.001,
    weight_decay: float = 0.0,
    initial_accumulator: float = 0.1,
) -> tuple[Array, ...]:
    def rule(rate: Any, p: Array, g: Array, n: Array) -> Sequence[Array]:
        g = g + weight_decay * p
        n = n + jnp.square(g)
        return p - rate * g / jnp.sqrt(n), n

    return _updated(rule, 1, False, learning_rate, tensors)


def rmsprop_update(
    *tensors: Array,
    learning_rate: float = 0.1,
    decay: float = 0.9,
    momentum: float = 0.0,
    epsilon: float = 1e-10,
    weight_decay: float = 0.0,
    initial_square: float = 0.0,
) -> tuple[Array, ...]:
    def rule(rate: Any, p: Array, g: Array, v: Array, m: Array) -> Sequence[Array]:
        g = g + weight_decay * p
        v = decay * v + (1 - decay) * jnp.square(g)
        m = momentum * m + rate * g / jnp.sqrt(v + epsilon)
        return p - m, v, m

    return _updated(rule, 2, False, learning_rate, tensors)


def centered_update(
    *tensors: Array,
    learning_rate: float = 0.1,
    decay: float = 0.9,
    momentum: float = 0.0,
    epsilon: float = 1e-10,
    weight_decay: float = 0.0,
    initial_square: float = 0.0,
) -> tuple[Array, ...]:
    def rule(rate: Any, p: Array, g: Array, v: Array, m: Array, mean: Array) -> Sequence[Array]:
        g = g + weight_decay * p
        v = decay * v + (1 - decay) * jnp.square(g)
        mean = decay * mean + (1 - decay) * g
        variance = jnp.maximum(v - jnp.square(mean), 0)
        m = momentum * m + rate * g / jnp.sqrt(variance + epsilon)
        return p - m, v, m, mean

    return _updated(rule, 3, False, learning_rate, tensors)


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
