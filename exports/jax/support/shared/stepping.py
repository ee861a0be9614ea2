"""How a rule of an optimizer runs: the types of its tensors, its rate, and steps that are skipped.

A learning rate that follows the step is an operand after the number of the step. Under a dynamic
loss scale two scalars come last: the scale, by which the gradient is divided, and the number of
elements of all gradients that are not finite; if there are some, nothing changes.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import jax.numpy as jnp
from jax import Array


def updated(
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
