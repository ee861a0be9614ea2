"""The rules of optimizers, by functions that all systems have.

Each gives the next parameter and states from the gradient and those before; `stepping` has the
operands behind them.
"""

from collections.abc import Sequence
from typing import Any

from . import arrays
from .arrays import Array, xp
from .stepping import updated


def _adam_rule(
    rate: Any,
    tensors: Sequence[Array],
    step: Any,
    betas: tuple[float, float],
    epsilon: float,
    decays: tuple[float, float],
    bias_correction: str,
    lazy: bool,
    nesterov: bool,
) -> Sequence[Array]:
    """Return the next parameter and states of Adam; `decays` are apart, and in the gradient.

    States are the mean, the mean square, and perhaps the greatest one, whose root divides.
    """
    (p, g, m, v, *greatest), (beta1, beta2), (weight_decay, l2) = tensors, betas, decays
    before, idle = (p, m, v, *greatest), g == 0
    g = g + l2 * p if l2 else g
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * xp.square(g)
    most = [xp.maximum(old, v) for old in greatest]
    mean, square = beta1 * m + (1 - beta1) * g if nesterov else m, (v, *most)[-1]
    first, second = arrays.power_left(beta1, step), arrays.power_left(beta2, step)
    if bias_correction == "moments":
        change = mean / first / (xp.sqrt(square / second) + epsilon)
    else:
        change = mean / (xp.sqrt(square) + epsilon)
        change = change * (second**0.5 / first) if bias_correction == "rate" else change
    after = [p - rate * (change + weight_decay * p), m, v, *most]
    if not lazy:
        return after
    return [xp.where(idle, old, new) for old, new in zip(before, after, strict=True)]


def sgd_update(*tensors: Array, learning_rate: float = 0.01, weight_decay: float = 0.0) -> Array:
    def rule(rate: Any, p: Array, g: Array) -> Sequence[Array]:
        return [p - rate * (g + weight_decay * p)]

    return updated(rule, 0, False, learning_rate, tensors)[0]


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

    return updated(rule, 1, False, learning_rate, tensors)


def dampened_update(
    *tensors: Array,
    learning_rate: float = 0.01,
    momentum: float = 0.9,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
) -> tuple[Array, ...]:
    def rule(rate: Any, p: Array, g: Array, m: Array, step: Any) -> Sequence[Array]:
        g = g + weight_decay * p
        m = arrays.choose(step == 1, g, momentum * m + (1 - dampening) * g)
        return p - rate * m, m

    return updated(rule, 1, True, learning_rate, tensors)


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

    return updated(rule, 1, False, learning_rate, tensors, 1)


def adagrad_update(
    *tensors: Array,
    learning_rate: float = 0.001,
    weight_decay: float = 0.0,
    initial_accumulator: float = 0.1,
) -> tuple[Array, ...]:
    def rule(rate: Any, p: Array, g: Array, n: Array) -> Sequence[Array]:
        g = g + weight_decay * p
        n = n + xp.square(g)
        return p - rate * g / xp.sqrt(n), n

    return updated(rule, 1, False, learning_rate, tensors)


def _rmsprop(
    tensors: Sequence[Array],
    states: int,
    learning_rate: float,
    decay: float,
    momentum: float,
    epsilon: float,
    weight_decay: float,
) -> tuple[Array, ...]:
    """Run the rule of RMSProp; a third state is the mean gradient, whose square is subtracted."""

    def rule(rate: Any, p: Array, g: Array, v: Array, m: Array, *mean: Array) -> Sequence[Array]:
        g = g + weight_decay * p
        v = decay * v + (1 - decay) * xp.square(g)
        means = [decay * old + (1 - decay) * g for old in mean]
        variance = arrays.at_least(v - xp.square(means[0]), 0) if means else v
        m = momentum * m + rate * g / xp.sqrt(variance + epsilon)
        return p - m, v, m, *means

    return updated(rule, states, False, learning_rate, tensors)


def rmsprop_update(
    *tensors: Array,
    learning_rate: float = 0.1,
    decay: float = 0.9,
    momentum: float = 0.0,
    epsilon: float = 1e-10,
    weight_decay: float = 0.0,
    initial_square: float = 0.0,
) -> tuple[Array, ...]:
    return _rmsprop(tensors, 2, learning_rate, decay, momentum, epsilon, weight_decay)


def centered_update(
    *tensors: Array,
    learning_rate: float = 0.1,
    decay: float = 0.9,
    momentum: float = 0.0,
    epsilon: float = 1e-10,
    weight_decay: float = 0.0,
    initial_square: float = 0.0,
) -> tuple[Array, ...]:
    return _rmsprop(tensors, 3, learning_rate, decay, momentum, epsilon, weight_decay)


# What is read of gradients


def muon_direction(
    g: Array,
    m: Array,
    *scale: Array,
    momentum: float = 0.95,
    nesterov: bool = True,
    dtype: str = "bfloat16",
) -> Array:
    """Return the decaying mean of gradients, or one gradient ahead of it."""
    exact = xp.promote_types(g.dtype, m.dtype)
    g = arrays.as_type(g, exact)
    g = g / arrays.as_type(scale[0], exact) if scale else g
    mean = momentum * arrays.as_type(m, exact) + (1 - momentum) * g
    direction = momentum * mean + (1 - momentum) * g if nesterov else mean
    return arrays.as_type(direction, arrays.dtype_of(dtype))


def sum_squares(x: Array, *, dtype: str = "float32") -> Array:
    return xp.square(arrays.as_type(x, arrays.dtype_of(dtype))).sum()


def clip_by_norm(x: Array, total: Array, *, clip_norm: float = 1.0) -> Array:
    factor = clip_norm / arrays.at_least(xp.sqrt(total), clip_norm)
    return arrays.as_type(x * factor, x.dtype)


def count_nonfinite(x: Array) -> Array:
    return (~xp.isfinite(x)).sum()
