"""Update rules as one loop over the elements, which numba compiles where it is installed.

numpy makes a pass over the memory for every operation of a rule: four for momentum, some twenty for
Adam. The loops make one. They round after every operation, in the order of the formulas in
`updates`, so their results have the same bits.

Scalars have the type of the elements: numpy, too, rounds them to it before it computes.
"""

from typing import Any

import numpy as np

from shardwright.ir.optional import compiled_at_first_call, is_installed
from shardwright.operators.info import Array

COMPILED = is_installed("numba")
"""Whether the loops are compiled; uncompiled they are too slow to call."""

_LEAST_ELEMENTS = 2**16  # below that the calls of numpy are as fast as the loop's
_compiled = compiled_at_first_call(need="a compiled update of parameters")


def are_compiled(tensors: tuple[Array, ...]) -> bool:
    """Return whether the loops are faster for these tensors: large, and contiguous."""
    return (
        COMPILED
        and tensors[0].size >= _LEAST_ELEMENTS
        and all(tensor.flags.c_contiguous for tensor in tensors)
    )


@_compiled
def step_of_sgd(p: Any, g: Any, rate: Any, decay: Any) -> None:
    """Subtract ``rate`` times the gradient, to which ``decay`` times the parameter is added."""
    for i in range(len(p)):
        x = g[i]
        if decay != 0:
            x += decay * p[i]
        p[i] -= x * rate


@_compiled
def step_of_momentum(
    p: Any, g: Any, m: Any, rate: Any, momentum: Any, decay: Any, nesterov: Any
) -> None:
    """Update the decaying sum ``m`` of gradients, and the parameter by it."""
    for i in range(len(p)):
        x = g[i]
        if decay != 0:
            x += decay * p[i]
        m[i] = m[i] * momentum + x
        step = x + momentum * m[i] if nesterov else m[i]
        p[i] -= step * rate


@_compiled
def step_of_adam(
    p: Any,
    g: Any,
    m: Any,
    v: Any,
    rate: Any,
    betas: Any,
    rests: Any,
    corrections: Any,
    epsilon: Any,
    l2: Any,
    decay: Any,
    lazy: Any,
) -> None:
    """Update both means and the parameter.

    ``rests`` are 1 less the betas; ``corrections`` are a factor and a divisor of the mean, and a
    divisor of the mean square.
    """
    beta1, beta2 = betas
    rest1, rest2 = rests
    factor, first, second = corrections
    for i in range(len(p)):
        if lazy and g[i] == 0:
            continue
        x = g[i]
        if l2 != 0:
            x += l2 * p[i]
        m[i] = beta1 * m[i] + rest1 * x
        v[i] = beta2 * v[i] + rest2 * (x * x)
        change = factor * m[i] / first / (np.sqrt(v[i] / second) + epsilon) + decay * p[i]
        p[i] -= rate * change
