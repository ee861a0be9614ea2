"""How a rule of an optimizer runs: the types of its tensors, its rate, and steps that are skipped.

A learning rate that follows the step is an operand after the number of the step. Under a dynamic
loss scale two scalars come last: the scale, by which the gradient is divided, and the number of
elements of all gradients that are not finite; if there are some, nothing changes.
"""

from collections.abc import Callable, Sequence
from functools import reduce

import torch
from torch import Tensor


def updated(
    rule: Callable[..., Sequence[Tensor]],
    states: int,
    counts: bool,
    rate: float,
    tensors: Sequence[Tensor],
    others: int = 0,
) -> tuple[Tensor, ...]:
    """Run a rule in the widest type of its tensors; parameter and states keep their types.

    `others` are tensors behind the states that are none.
    """
    count = 2 + states + others
    own, scalars = list(tensors[:count]), list(tensors[count:])
    before = (own[0], *own[2 : 2 + states])
    step = scalars.pop(0) if counts else None
    if len(scalars) > 1:
        *scalars, loss_scale, nonfinite = scalars
        if nonfinite > 0:
            return before
        own[1] = own[1].to(before[0].dtype) / loss_scale
    if scalars:
        rate = float(scalars.pop())
    exact = reduce(torch.promote_types, (tensor.dtype for tensor in own))
    widened = [tensor.to(exact) for tensor in own]
    after = rule(rate, *widened) if step is None else rule(rate, *widened, int(step))
    return tuple(new.to(old.dtype) for new, old in zip(after, before, strict=True))
