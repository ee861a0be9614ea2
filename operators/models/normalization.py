"""Normalization over rows and over groups of channels.

The statistics of a row or group need all its elements, so its dimensions stay whole.
"""

from typing import ClassVar

import numpy as np

from shardwright.operators.info import (
    Array,
    Emitter,
    Example,
    Gradients,
    Linearization,
    OperatorInfo,
    register,
)
from shardwright.operators.notation import resolve
from shardwright.operators.reduction.softmax import AlongAxis, AlongAxisGradient
from shardwright.operators.rule import Rule, ShardView

Axes = int | tuple[int, ...]


def _standardized(x: Array, axes: Axes, epsilon: float, centred: bool) -> tuple[Array, Array]:
    """Return `x` with mean zero, if `centred`, and unit mean square; and what it was divided by."""
    if centred:
        x = x - x.mean(axis=axes, keepdims=True)
    deviation = np.sqrt(np.square(x).mean(axis=axes, keepdims=True) + epsilon)
    return x / deviation, deviation


def _standardized_gradient(
    dy: Array, y: Array, deviation: Array, axes: Axes, centred: bool
) -> Array:
    dx = dy - y * (dy * y).mean(axis=axes, keepdims=True)
    if centred:
        dx = dx - dy.mean(axis=axes, keepdims=True)
    return dx / deviation


# Over rows


class RowNorm(OperatorInfo):
    """A normalization of the rows of the last dimension, then scaled by ``gamma``."""

    defaults: ClassVar = {"epsilon": 1e-5}
    flops_per_point = 8.0
    centred: ClassVar[bool]

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Recompute the statistics from the operand, the only tensor saved for backward."""
        (x, gamma), dy = at.operands[:2], at.cotangents[0]
        how = {"epsilon": self.attributes["epsilon"], "centred": self.centred}
        dx = build.emit("row_norm_gradient", dy, x, gamma, **how)
        gradients = [dx, build.emit("row_norm_gamma_gradient", dy, x, **how)]
        if len(at.operands) == 3:
            leading = tuple(range(dy.type.rank - 1))
            gradients.append(build.emit("reduce_sum", dy, axis=leading))
        return gradients


@register
class LayerNorm(RowNorm):
    """(x - mean) / sqrt(variance + ``epsilon``) gamma + beta, over the last dimension."""

    name = "layer_norm"
    of_reals = True
    notation = "... d^, d^, d^ -> ... d"
    centred = True
    examples = (Example(("f64[4, 2, 6]", "f64[6]", "f64[6]")), Example(("f64[6]",) * 3))

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Normalize, scale and shift."""
        x, gamma, beta = operands
        return _standardized(x, -1, self.attributes["epsilon"], True)[0] * gamma + beta


@register
class RMSNorm(RowNorm):
    """x / sqrt(mean square + ``epsilon``) gamma, over the last dimension."""

    name = "rms_norm"
    of_reals = True
    notation = "... d^, d^ -> ... d"
    centred = False
    linear = ((1,),)
    flops_per_point = 5.0
    examples = (Example(("f64[4, 2, 6]", "f64[6]")),)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Normalize and scale."""
        x, gamma = operands
        return _standardized(x, -1, self.attributes["epsilon"], False)[0] * gamma


class RowNormGradient(OperatorInfo):
    """A part of the gradient of a normalization of rows."""

    defaults: ClassVar = {"epsilon": 1e-5, "centred": True}
    linear: ClassVar[tuple[tuple[int, ...], ...]] = ((0,),)
    flops_per_point = 12.0

    def standardized(self, x: Array) -> tuple[Array, Array]:
        """Return the normalized rows and their deviation."""
        return _standardized(x, -1, self.attributes["epsilon"], self.attributes["centred"])


@register
class RowNormOperandGradient(RowNormGradient):
    """The gradient by the operand, from the cotangent, the operand and gamma."""

    name = "row_norm_gradient"
    linear = ((0,), (2,))
    notation = "... d^, ... d^, d^ -> ... d"
    examples = (
        Example(("f64[4, 2, 6]", "f64[4, 2, 6]", "f64[6]")),
        Example(("f64[4, 6]", "f64[4, 6]", "f64[6]"), {"centred": False}),
    )

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Remove the components along mean and deviation from the scaled cotangent."""
        dy, x, gamma = operands
        y, deviation = self.standardized(x)
        return _standardized_gradient(dy * gamma, y, deviation, -1, self.attributes["centred"])


@register
class RowNormGammaGradient(RowNormGradient):
    """The gradient by gamma, from the cotangent and the operand."""

    name = "row_norm_gamma_gradient"
    examples = (
        Example(("f64[4, 2, 6]", "f64[4, 2, 6]")),
        Example(("f64[4, 6]", "f64[4, 6]"), {"centred": False}),
    )

    def make_rule(self) -> Rule:
        """Contract the rows."""
        rows = " ".join(f"r{i}+" for i in range(self.operand_types[0].rank - 1))
        shapes = [operand.shape for operand in self.operand_types]
        return resolve(f"{rows} d^, {rows} d^ -> d", shapes)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Sum the cotangent times the normalized rows."""
        dy, x = operands
        product: Array = dy * self.standardized(x)[0]
        return product.sum(axis=tuple(range(x.ndim - 1)))


@register
class L2Normalize(AlongAxis):
    """x / sqrt(max(sum of squares, ``epsilon``)) along ``axis``."""

    name = "l2_normalize"
    of_reals = True
    defaults: ClassVar = {"axis": -1, "epsilon": 1e-12}
    examples = (Example(("f64[4, 6]",)), Example(("f64[4, 6]",), {"epsilon": 5.0}))

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Divide by the norm."""
        squares = np.square(operands[0]).sum(axis=self.axes, keepdims=True)
        return operands[0] / np.sqrt(np.maximum(squares, self.attributes["epsilon"]))

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Save only the operand for backward."""
        dy, x = at.cotangents[0], at.operands[0]
        return [build.emit("l2_normalize_gradient", dy, x, **self.attributes)]


@register
class L2NormalizeGradient(AlongAxisGradient):
    """The gradient of an l2 normalization, from the cotangent and the operand."""

    name = "l2_normalize_gradient"
    defaults: ClassVar = {"axis": -1, "epsilon": 1e-12}
    examples = (Example(("f64[4, 6]", "f64[4, 6]")),)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """(dy - y sum(dy y)) / norm; where epsilon took the place of the norm, dy / norm."""
        dy, x = operands
        epsilon = self.attributes["epsilon"]
        squares = np.square(x).sum(axis=self.axes, keepdims=True)
        norm = np.sqrt(np.maximum(squares, epsilon))
        y = x / norm
        along = (dy * y).sum(axis=self.axes, keepdims=True) * (squares > epsilon)
        return (dy - y * along) / norm


# Over groups of channels


class Grouped(OperatorInfo):
    """A normalization of ``groups`` groups of channels of each sample, ``[n, channel, ...]``."""

    defaults: ClassVar = {"groups": 1, "epsilon": 1e-5}
    flops_per_point = 8.0
    grouped_notation: ClassVar[str]

    def make_rule(self) -> Rule:
        """Keep groups whole, and contract the samples in results that lack them."""
        shapes = [operand.shape for operand in self.operand_types]
        groups, channels = self.attributes["groups"], shapes[0][1]
        behind = " ".join(f"w{i}^" for i in range(len(shapes[0]) - 2))
        notation = self.grouped_notation.replace("x", f"n+ (g c^) {behind}")
        return resolve(notation, shapes, {"g": groups, "c": channels // groups})

    def grouped(self, x: Array, view: ShardView) -> Array:
        """Return `x` with a dimension of groups: ``[n, group, channel, ...]``."""
        return x.reshape(x.shape[0], view.sizes["g"], view.sizes["c"], *x.shape[2:])

    def per_channel(self, gamma: Array, x: Array, view: ShardView) -> Array:
        """Return `gamma` in a shape that broadcasts to the grouped `x`."""
        return gamma.reshape(1, view.sizes["g"], view.sizes["c"], *(1,) * (x.ndim - 2))

    def standardized(self, x: Array, view: ShardView) -> tuple[Array, Array]:
        """Return the normalized groups and their deviation."""
        axes = tuple(range(2, x.ndim + 1))
        return _standardized(self.grouped(x, view), axes, self.attributes["epsilon"], True)


@register
class GroupNorm(Grouped):
    """Normalize groups of channels, then scale by gamma and shift by beta, one a channel.

    With one group a channel it is the normalization of instances.
    """

    name = "group_norm"
    of_reals = True
    grouped_notation = "x, (g c^), (g c^) -> x"
    examples = (
        Example(("f64[2, 8, 3]", "f64[8]", "f64[8]"), {"groups": 4}),
        Example(("f64[4, 2, 2, 3]", "f64[2]", "f64[2]"), {"groups": 2}),
    )

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Normalize, scale and shift."""
        x = operands[0]
        gamma, beta = (self.per_channel(p, x, view) for p in operands[1:])
        y: Array = self.standardized(x, view)[0] * gamma + beta
        return y.reshape(x.shape)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Recompute the statistics from the operand."""
        x, gamma, _ = at.operands
        return build.emit_all("group_norm_gradient", at.cotangents[0], x, gamma, **self.attributes)


@register
class GroupNormGradient(Grouped):
    """The gradients by operand, gamma and beta, from the cotangent, the operand and gamma."""

    name = "group_norm_gradient"
    grouped_notation = "x, x, (g c^) -> x, (g c), (g c)"
    linear = ((0,),)
    flops_per_point = 16.0
    examples = (Example(("f64[2, 8, 3]", "f64[2, 8, 3]", "f64[8]"), {"groups": 4}),)

    def kernel(self, view: ShardView, *operands: Array) -> tuple[Array, ...]:
        """All three share the statistics."""
        dy, x, gamma = operands
        cotangent = self.grouped(dy, view)
        y, deviation = self.standardized(x, view)
        axes = tuple(range(2, x.ndim + 1))
        scaled = cotangent * self.per_channel(gamma, x, view)
        dx = _standardized_gradient(scaled, y, deviation, axes, True)
        others = (0, *range(3, x.ndim + 1))
        dgamma, dbeta = (c.sum(axis=others).ravel() for c in (cotangent * y, cotangent))
        return dx.reshape(x.shape), dgamma, dbeta
