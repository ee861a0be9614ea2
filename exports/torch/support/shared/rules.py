"""The rules of optimizers, by functions that all systems have.

Each gives the next parameter and states from the gradient and those before; `stepping` has the
operands behind them.
"""

from collections.abc import Sequence
from typing import Any

from . import arrays
from .arrays import Array, xp
from .stepping import updated


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
