"""Update rules that differ from those of `updates` by a state, or in the first step."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from shardwright.operators.info import Array, Example, register
from shardwright.operators.models.updates import AdamUpdate, MomentumUpdate, RMSPropUpdate

_TENSOR = "f64[4, 6]"
_POSITIVE, _STEP = (0, 1), (1, 9)


@register
class AMSGradUpdate(AdamUpdate):
    """One step of AMSGrad (Reddi et al., 2018): `adam_update` by the greatest mean of squares."""

    name = "amsgrad_update"
    notation = "..., ..., ..., ..., ..., -> ..., ..., ..., ..."
    flops_per_point = 17.0
    states = 3
    examples = (
        Example((*(_TENSOR,) * 5, "i64[]"), {}, {3: _POSITIVE, 4: _POSITIVE, 5: _STEP}),
        Example(
            (*(_TENSOR,) * 5, "i64[]", "f64[]"),
            {"l2": 0.1, "bias_correction": "rate"},
            {3: _POSITIVE, 4: _POSITIVE, 5: _STEP, 6: (0, 1)},
        ),
    )


@register
class DampenedUpdate(MomentumUpdate):
    """`momentum_update` by the gradient times 1 - ``dampening``, but for that of the first step.

    The operand after the state is the number of the step, from 1.
    """

    name = "dampened_update"
    notation = "..., ..., ..., -> ..., ..."
    defaults: ClassVar = {
        "learning_rate": 0.01,
        "momentum": 0.9,
        "dampening": 0.0,
        "weight_decay": 0.0,
    }
    counts_steps = True
    examples: ClassVar[tuple[Example, ...]] = (
        Example((*(_TENSOR,) * 3, "i64[]"), {"dampening": 0.3, "weight_decay": 0.1}, {3: _STEP}),
        Example((*(_TENSOR,) * 3, "i64[]", "f64[]"), {}, {3: _STEP, 4: (0, 1)}),
    )

    def updated(self, rate: float, *operands: Array) -> Sequence[Array]:
        """Step against the decaying sum of the gradients."""
        p, g, m, step = operands
        own = self.attributes
        g = g + own["weight_decay"] * p
        m = g if step == 1 else own["momentum"] * m + (1 - own["dampening"]) * g
        return p - rate * m, m

    def write(self, rate: float, *operands: Array, room: Array | None = None) -> None:
        """Step in place."""
        super(MomentumUpdate, self).write(rate, *operands, room=room)


@register
class CenteredRMSPropUpdate(RMSPropUpdate):
    """`rmsprop_update` by the variance: the mean of squares less the square of the mean.

    The third state is the mean of gradients, which decays as that of squares does.
    """

    name = "centered_update"
    notation = "..., ..., ..., ..., ... -> ..., ..., ..., ..."
    flops_per_point = 16.0
    states = 3
    examples = (
        Example((_TENSOR,) * 5, {"momentum": 0.5, "weight_decay": 0.1}, {2: (2, 3), 4: _POSITIVE}),
        Example((*(_TENSOR,) * 5, "f64[]"), {}, {2: (2, 3), 4: _POSITIVE, 5: (0, 1)}),
    )

    def updated(self, rate: float, *operands: Array) -> Sequence[Array]:
        """Divide the gradient by the standard deviation."""
        p, g, v, m, mean = operands
        own = self.attributes
        g = g + own["weight_decay"] * p
        v = own["decay"] * v + (1 - own["decay"]) * np.square(g)
        mean = own["decay"] * mean + (1 - own["decay"]) * g
        variance = np.maximum(v - np.square(mean), 0)  # which rounding may leave below zero
        m = own["momentum"] * m + rate * g / np.sqrt(variance + own["epsilon"])
        return p - m, v, m, mean
