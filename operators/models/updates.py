"""The update rules of parameters, an operator each."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import TensorType
from shardwright.ir.values import POSITIVE
from shardwright.operators.info import Array, Example, register
from shardwright.operators.models.optimizer import Update
from shardwright.operators.models.update_loops import (
    are_compiled,
    step_of_adam,
    step_of_momentum,
    step_of_sgd,
)

_TENSOR = "f64[4, 6]"
_POSITIVE = (0, 1)
_STEP = (1, 9)
_OF_MOMENTS = (
    Example((*(_TENSOR,) * 4, "i64[]"), {"weight_decay": 0.1}, {3: _POSITIVE, 4: _STEP}),
    Example(
        (*(_TENSOR,) * 4, "i64[]", "f64[]", "i64[]"),
        {},
        {3: _POSITIVE, 4: _STEP, 5: (1, 9), 6: (0, 1)},
    ),
)


def _decayed(gradient: Array, parameter: Array, decay: Any) -> Array:
    """Return the gradient with a multiple of the parameter added."""
    return gradient + decay * parameter if decay else gradient


def _flat(tensors: Sequence[Array]) -> list[Array]:
    """Return contiguous tensors with one dimension."""
    return [tensor.reshape(-1) for tensor in tensors]


def _as_elements(tensor: Array, *scalars: float) -> tuple[Any, ...]:
    """Return scalars in the type of a tensor's elements."""
    return tuple(tensor.dtype.type(scalar) for scalar in scalars)


@register
class SGDUpdate(Update):
    """One step of stochastic gradient descent: p - ``learning_rate`` (g + ``weight_decay`` p)."""

    name = "sgd_update"
    notation = "..., ... -> ..."
    defaults: ClassVar = {"learning_rate": 0.01, "weight_decay": 0.0}
    linear = ((0, 1),)
    flops_per_point = 4.0
    states = 0
    examples = (
        Example((_TENSOR,) * 2, {"weight_decay": 0.1}),
        Example((*(_TENSOR,) * 2, "f64[]", "i64[]"), {}, {2: (1, 9), 3: (0, 1)}),
        Example((*(_TENSOR,) * 2, "f64[]"), {}, {2: (0, 1)}),
        Example((*(_TENSOR,) * 2, "f64[]", "f64[]", "i64[]"), {}, {3: (1, 9), 4: (0, 1)}),
    )

    def updated(self, rate: float, *operands: Array) -> Sequence[Array]:
        """Step against the gradient."""
        p, g = operands
        return [p - rate * _decayed(g, p, self.attributes["weight_decay"])]

    def write(self, rate: float, *operands: Array, room: Array | None = None) -> None:
        """Step against the gradient, in place."""
        p, g = operands
        decay = self.attributes["weight_decay"]
        if are_compiled(operands):
            step_of_sgd(*_flat(operands), *_as_elements(p, rate, decay))
        else:
            p -= np.multiply(_decayed(g, p, decay), rate, out=room)


@register
class MomentumUpdate(Update):
    """One step with momentum: m' = ``momentum`` m + g; p' = p - ``learning_rate`` m'.

    The step of Nesterov's kind is g + ``momentum`` m' in place of m'. ``weight_decay`` times the
    parameter is added to the gradient first.
    """

    name = "momentum_update"
    notation = "..., ..., ... -> ..., ..."
    defaults: ClassVar = {
        "learning_rate": 0.01,
        "momentum": 0.9,
        "nesterov": False,
        "weight_decay": 0.0,
    }
    linear = ((0, 1, 2),)
    flops_per_point = 8.0
    states = 1
    examples: ClassVar[tuple[Example, ...]] = (
        Example((_TENSOR,) * 3),
        Example((_TENSOR,) * 3, {"nesterov": True, "weight_decay": 0.1}),
        Example((*(_TENSOR,) * 3, "f64[]"), {}, {3: (0, 1)}),
    )

    def updated(self, rate: float, *operands: Array) -> Sequence[Array]:
        """Step against the decaying sum of the gradients."""
        p, g, m = operands
        momentum = self.attributes["momentum"]
        g = _decayed(g, p, self.attributes["weight_decay"])
        m = momentum * m + g
        return p - rate * (g + momentum * m if self.attributes["nesterov"] else m), m

    def write(self, rate: float, *operands: Array, room: Array | None = None) -> None:
        """Step against the decaying sum of the gradients, in place."""
        p, g, m = operands
        own = self.attributes
        momentum = own["momentum"]
        if are_compiled(operands):
            scalars = _as_elements(p, rate, momentum, own["weight_decay"])
            values = [*_flat(operands), *scalars, own["nesterov"]]
            step_of_momentum(*values)
            return
        g = _decayed(g, p, own["weight_decay"])
        m *= momentum
        m += g
        step = g + momentum * m if own["nesterov"] else m
        p -= np.multiply(step, rate, out=room)


@register
class AdamUpdate(Update):
    """One step of Adam (Kingma and Ba, 2015); the operand after the states is the step, from 1.

    ``weight_decay`` is subtracted from the parameter itself (Loshchilov and Hutter, 2019); ``l2``
    times the parameter is added to the gradient. ``bias_correction`` divides both ``moments`` by
    what they lack of an average; or multiplies the ``rate`` by sqrt(1 - beta2^t) / (1 - beta1^t),
    with ``epsilon`` added to the root as it is (the end of section 2 of the paper); or is ``none``.
    With ``nesterov`` the step is that of ``beta1`` m' + (1 - ``beta1``) g in place of the mean m'.
    With ``lazy``, an element whose gradient is zero keeps its value and its states.
    """

    name = "adam_update"
    notation = "..., ..., ..., ..., -> ..., ..., ..."
    defaults: ClassVar = {
        "learning_rate": 0.001,
        "beta1": 0.9,
        "beta2": 0.999,
        "epsilon": 1e-8,
        "weight_decay": 0.0,
        "l2": 0.0,
        "bias_correction": "moments",
        "lazy": False,
        "nesterov": False,
    }
    flops_per_point = 16.0
    states = 2
    counts_steps = True
    examples: ClassVar[tuple[Example, ...]] = (
        *_OF_MOMENTS,
        Example(
            (*(_TENSOR,) * 4, "i64[]", "f64[]"),
            {"l2": 0.1, "bias_correction": "rate", "lazy": True},
            {3: _POSITIVE, 4: _STEP, 5: (0, 1)},
        ),
        Example((*(_TENSOR,) * 4, "i64[]"), {"nesterov": True}, {3: _POSITIVE, 4: _STEP}),
    )

    def updated(self, rate: float, *operands: Array) -> Sequence[Array]:
        """Divide the mean of the gradients by the root of the mean of their squares.

        Of a third state, the greatest mean of squares, the root is divided by.
        """
        p, g, m, v, *greatest, step = operands
        own = self.attributes
        beta1, beta2 = own["beta1"], own["beta2"]
        decayed = _decayed(g, p, own["l2"])
        mean = beta1 * m + (1 - beta1) * decayed
        square = beta2 * v + (1 - beta2) * np.square(decayed)
        most = [np.maximum(old, square) for old in greatest]
        ahead = beta1 * mean + (1 - beta1) * decayed if own["nesterov"] else mean
        change = self._change(ahead, (square, *most)[-1], int(step)) + own["weight_decay"] * p
        after = p - rate * change, mean, square, *most
        if not own["lazy"]:
            return after
        before = (p, m, v, *greatest)
        return [np.where(g == 0, old, new) for old, new in zip(before, after, strict=True)]

    def write(self, rate: float, *operands: Array, room: Array | None = None) -> None:
        """Update both means and the parameter in place."""
        *tensors, step = operands
        if len(tensors) > 4 or self.attributes["nesterov"] or not are_compiled(tuple(tensors)):
            super().write(rate, *operands, room=room)
            return
        own, p = self.attributes, tensors[0]
        betas = own["beta1"], own["beta2"]
        values = [
            *_flat(tensors),
            *_as_elements(p, rate),
            _as_elements(p, *betas),
            _as_elements(p, *(1 - beta for beta in betas)),
            _as_elements(p, *self._corrections(int(step))),
            *_as_elements(p, own["epsilon"], own["l2"], own["weight_decay"]),
            own["lazy"],
        ]
        step_of_adam(*values)

    def _corrections(self, step: int) -> tuple[float, float, float]:
        """Return a factor and a divisor of the mean, and a divisor of the mean square."""
        kind = self.attributes["bias_correction"]
        first = 1 - self.attributes["beta1"] ** step
        second = 1 - self.attributes["beta2"] ** step
        if kind == "none":
            return 1.0, 1.0, 1.0
        return (second**0.5 / first, 1.0, 1.0) if kind == "rate" else (1.0, first, second)

    def _change(self, mean: Array, square: Array, step: int) -> Array:
        """Return the change at a learning rate of 1, without the decay of the parameter."""
        factor, first, second = self._corrections(step)
        # Neutral numbers are left out: each costs a pass over the memory, and no bit.
        scaled = mean / first if factor == 1 else factor * mean
        root = np.sqrt(square if second == 1 else square / second)
        return scaled / (root + self.attributes["epsilon"])


class _OfWholeTensors(Update):
    """An update that reads norms of a tensor, so it runs where the tensor is whole."""

    by_rows = False

    @classmethod
    def fitted(cls, layout: Layout, parameter: TensorType, mesh: Mesh) -> Layout:
        """Return the layout in which the tensor is whole."""
        return Layout(((),) * parameter.rank, stage=layout.stage)

    def make_notation(self) -> str:
        """Return the notation of whole tensors."""
        whole = " ".join(f"d{i}^" for i in range(self.operand_types[0].rank))
        step = ", " if self.counts_steps else ""
        tensors = ", ".join([whole] * (2 + self.states))
        return f"{tensors}{step} -> {', '.join([whole] * (1 + self.states))}"


@register
class LambUpdate(_OfWholeTensors):
    """One step of LAMB (You et al., 2020); the operand after the states is the step, from 1.

    The direction is r = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + ``epsilon``) +
    ``weight_decay`` p, of the means m and v of Adam. The parameter steps by ``learning_rate`` r
    norm(p) / norm(r), or without the ratio where a norm is zero. Norms are of the whole tensor, so
    it is updated where it is whole.
    """

    name = "lamb_update"
    defaults: ClassVar = {
        "learning_rate": 0.001,
        "beta1": 0.9,
        "beta2": 0.999,
        "epsilon": 1e-6,
        "weight_decay": 0.0,
    }
    flops_per_point = 22.0
    states = 2
    counts_steps = True
    examples = _OF_MOMENTS

    def updated(self, rate: float, *operands: Array) -> Sequence[Array]:
        """Step as far as the norm of the parameter says."""
        p, g, m, v, step = operands
        own = self.attributes
        beta1, beta2 = own["beta1"], own["beta2"]
        mean = beta1 * m + (1 - beta1) * g
        square = beta2 * v + (1 - beta2) * np.square(g)
        root = np.sqrt(square / (1 - beta2 ** int(step)))
        direction = mean / (1 - beta1 ** int(step)) / (root + own["epsilon"])
        direction = direction + own["weight_decay"] * p
        norms = np.sqrt(np.square(p).sum()), np.sqrt(np.square(direction).sum())
        ratio = norms[0] / norms[1] if norms[0] > 0 and norms[1] > 0 else 1.0
        return p - rate * ratio * direction, mean, square


@register
class LarsUpdate(_OfWholeTensors):
    """One step of LARS (You et al., 2017) with momentum.

    The gradient with its decay, g + ``weight_decay`` p, is multiplied by ``coefficient`` norm(p) /
    (norm(g) + ``weight_decay`` norm(p) + ``epsilon``); with ``clip`` the factor is divided by the
    learning rate, and at most 1. Without ``adapts`` the gradient is taken as it is, without decay.
    The rest is `momentum_update`. Norms are of the whole tensor, so it is updated where it is
    whole.
    """

    name = "lars_update"
    defaults: ClassVar = {
        "learning_rate": 0.01,
        "momentum": 0.9,
        "nesterov": False,
        "weight_decay": 0.0,
        "coefficient": 0.001,
        "epsilon": 1e-5,
        "clip": False,
        "adapts": True,
    }
    flops_per_point = 14.0
    states = 1
    examples: ClassVar[tuple[Example, ...]] = (
        Example((_TENSOR,) * 3, {"weight_decay": 0.1, "coefficient": 0.1}),
        Example((_TENSOR,) * 3, {"nesterov": True, "clip": True}),
        Example((*(_TENSOR,) * 3, "f64[]"), {"adapts": False}, {3: (0, 1)}),
    )

    @property
    def linear_sets(self) -> tuple[tuple[int, ...], ...]:
        """Those of `momentum_update` where it is one."""
        return () if self.is_guarded or self.attributes["adapts"] else ((0, 1, 2),)

    def make_notation(self) -> str:
        """Return the notation of whole tensors, or of elements where no norm is read."""
        return super().make_notation() if self.attributes["adapts"] else MomentumUpdate.notation

    def updated(self, rate: float, *operands: Array) -> Sequence[Array]:
        """Step with the gradient as long as the norm of the parameter says."""
        p, g, m = operands
        own = self.attributes
        if own["adapts"]:
            g = self._ratio(rate, p, g) * (g + own["weight_decay"] * p)
        m = own["momentum"] * m + g
        return p - rate * (g + own["momentum"] * m if own["nesterov"] else m), m

    def _ratio(self, rate: float, p: Array, g: Array) -> float:
        own = self.attributes
        norms = [float(np.sqrt(np.square(tensor).sum())) for tensor in (p, g)]
        ratio = own["coefficient"] * norms[0]
        ratio /= norms[1] + own["weight_decay"] * norms[0] + own["epsilon"]
        if not own["clip"]:
            return float(ratio)
        return 1.0 if ratio >= rate else float(ratio / rate)  # also at the rate 0


@register
class GradientUpdate(Update):
    """No step: the parameter stays, and its gradient is kept as a state, to be read."""

    name = "gradient_update"
    notation = "..., ..., ... -> ..., ..."
    defaults: ClassVar = {"learning_rate": 0.0}
    linear = ((0, 1, 2),)
    flops_per_point = 0.0
    states = 1
    examples = (Example((_TENSOR,) * 3),)

    def updated(self, rate: float, *operands: Array) -> Sequence[Array]:
        """Keep the gradient."""
        p, g, _ = operands
        return p, g


@register
class FTRLUpdate(Update):
    """One step of FTRL-Proximal (McMahan et al., 2013).

    With the sum n of squared gradients and its next value n' = n + g^2, and s(n) = n^``power``:
    z' = z + g - (s(n') - s(n)) / ``learning_rate`` p; p' = -(z' - sign(z') ``l1``) / (s(n') /
    ``learning_rate`` + 2 ``l2``) where abs(z') exceeds ``l1``, and 0 elsewhere. ``weight_decay``
    times the parameter is added to the gradient first. n begins with ``initial_accumulator``.
    """

    name = "ftrl_update"
    notation = "..., ..., ..., ... -> ..., ..., ..."
    defaults: ClassVar = {
        "learning_rate": 0.001,
        "l1": 0.0,
        "l2": 0.0,
        "power": 0.5,
        "weight_decay": 0.0,
        "initial_accumulator": 0.1,
    }
    flops_per_point = 20.0
    states = 2
    examples = (
        Example((_TENSOR,) * 4, {"l1": 0.1, "l2": 0.2}, {2: (0.1, 1)}),
        Example((*(_TENSOR,) * 4, "f64[]"), {"power": 0.3}, {2: (0.1, 1), 4: (0.1, 1)}),
    )

    def updated(self, rate: float, *operands: Array) -> Sequence[Array]:
        """Solve the proximal problem of every element.

        Raises
        ------
        OptionError
            If the rate of this step is 0.
        """
        POSITIVE.check("learning_rate of FTRL", rate)
        p, g, n, z = operands
        own = self.attributes
        g = _decayed(g, p, own["weight_decay"])
        total = n + np.square(g)
        root = total ** own["power"]
        z = z + g - (root - n ** own["power"]) / rate * p
        excess = np.sign(z) * own["l1"] - z
        solved = excess / (root / rate + 2 * own["l2"])
        return np.where(np.abs(z) > own["l1"], solved, np.zeros_like(p)), total, z


@register
class AdagradUpdate(Update):
    """One step of Adagrad (Duchi et al., 2011): n' = n + g^2; p - ``learning_rate`` g / sqrt(n').

    ``weight_decay`` times the parameter is added to the gradient first. n begins with
    ``initial_accumulator``.
    """

    name = "adagrad_update"
    notation = "..., ..., ... -> ..., ..."
    defaults: ClassVar = {
        "learning_rate": 0.001,
        "weight_decay": 0.0,
        "initial_accumulator": 0.1,
    }
    flops_per_point = 6.0
    states = 1
    examples = (
        Example((_TENSOR,) * 3, {"weight_decay": 0.1}, {2: (0.1, 1)}),
        Example((*(_TENSOR,) * 3, "f64[]"), {}, {2: (0.1, 1), 3: (0, 1)}),
    )

    def updated(self, rate: float, *operands: Array) -> Sequence[Array]:
        """Divide the gradient by the root of the sum of squares."""
        p, g, n = operands
        g = _decayed(g, p, self.attributes["weight_decay"])
        n = n + np.square(g)
        return p - rate * g / np.sqrt(n), n


@register
class RMSPropUpdate(Update):
    """One step of RMSProp (Tieleman and Hinton, 2012).

    v' = ``decay`` v + (1 - ``decay``) g^2; m' = ``momentum`` m + ``learning_rate`` g / sqrt(v' +
    ``epsilon``); p' = p - m'. ``weight_decay`` times the parameter is added to the gradient first.
    v begins with ``initial_square``.
    """

    name = "rmsprop_update"
    notation = "..., ..., ..., ... -> ..., ..., ..."
    defaults: ClassVar = {
        "learning_rate": 0.1,
        "decay": 0.9,
        "momentum": 0.0,
        "epsilon": 1e-10,
        "weight_decay": 0.0,
        "initial_square": 0.0,
    }
    flops_per_point = 12.0
    states = 2
    examples = (
        Example((_TENSOR,) * 4, {"momentum": 0.5, "weight_decay": 0.1}, {2: _POSITIVE}),
        Example((*(_TENSOR,) * 4, "f64[]"), {}, {2: _POSITIVE, 4: (0, 1)}),
    )

    def updated(self, rate: float, *operands: Array) -> Sequence[Array]:
        """Divide the gradient by the root of the mean of squares."""
        p, g, v, m = operands
        own = self.attributes
        g = _decayed(g, p, own["weight_decay"])
        v = own["decay"] * v + (1 - own["decay"]) * np.square(g)
        m = own["momentum"] * m + rate * g / np.sqrt(v + own["epsilon"])
        return p - m, v, m
