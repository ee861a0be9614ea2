"""Normalization: over rows, over groups of channels, and over a batch that may be split.

The statistics of a row or group need all its elements, so its dimensions stay whole. The statistics
of a batch are sums over a dimension that may be split: each is an operator, whose partial result is
reduced before `batch_normalize` reads it; `emit_batch_norm` composes them.
"""

from math import prod
from typing import ClassVar

import numpy as np

from shardwright.ir.errors import IRError
from shardwright.ir.graph import Value
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


# Over a batch


class Channelwise(OperatorInfo):
    """An operator on tensors ``[n, channel, ...]`` and on vectors of channels.

    In `channel_notation` ``x`` stands for the dimensions of such a tensor; all but the channel
    are contracted in results that lack them.
    """

    channel_notation: ClassVar[str]
    flops_per_point = 2.0

    def make_rule(self) -> Rule:
        """Contract all but the channels."""
        shapes = [operand.shape for operand in self.operand_types]
        behind = " ".join(f"w{i}+" for i in range(len(shapes[0]) - 2))
        return resolve(self.channel_notation.replace("x", f"n+ c {behind}"), shapes)

    @property
    def others(self) -> tuple[int, ...]:
        """The dimensions that are not the channel."""
        return (0, *range(2, self.operand_types[0].rank))

    @property
    def count(self) -> int:
        """Elements of the whole tensor in each channel."""
        return prod(self.operand_types[0].shape[d] for d in self.others)

    def per_channel(self, *vectors: Array) -> tuple[Array, ...]:
        """Return vectors in a shape that broadcasts to the tensor."""
        behind = (1,) * (self.operand_types[0].rank - 2)
        return tuple(v.reshape(-1, *behind) for v in vectors)


@register
class ChannelMean(Channelwise):
    """The mean of each channel over the whole batch."""

    name = "channel_mean"
    channel_notation = "x -> c"
    linear = ((0,),)
    flops_per_point = 1.0
    examples = (Example(("f64[4, 2, 3, 2]",)), Example(("f64[4, 2]",)))

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Sum the local part, and divide by the global count."""
        return operands[0].sum(axis=self.others) / self.count

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Spread the cotangent."""
        x = at.operands[0]
        share = build.emit("scale", at.cotangents[0], factor=1.0 / self.count)
        return [build.emit("spread", share, like=x, shape=x.type.shape, axis=self.others)]


@register
class ChannelVariance(Channelwise):
    """The variance of each channel over the whole batch, from the tensor and its means.

    No gradient goes to the means: the derivative by them is zero where they are the means.
    """

    name = "channel_variance"
    channel_notation = "x, c -> c"
    flops_per_point = 3.0
    examples = (
        Example(("f64[4, 2, 3, 2]", "f64[2]"), constants=(1,)),
        Example(("f64[4, 2]", "f64[2]"), constants=(1,)),
    )

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Sum the squares of the local part, and divide by the global count."""
        (mean,) = self.per_channel(operands[1])
        return np.square(operands[0] - mean).sum(axis=self.others) / self.count

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Twice the distance from the mean."""
        x, mean = at.operands
        return [build.emit("channel_variance_gradient", at.cotangents[0], x, mean), None]


@register
class ChannelVarianceGradient(OperatorInfo):
    """The gradient of a variance by the tensor: from the cotangent, the tensor and the means."""

    name = "channel_variance_gradient"
    linear = ((0,),)
    flops_per_point = 3.0
    examples = (
        Example(("f64[2]", "f64[4, 2, 3, 2]", "f64[2]")),
        Example(("f64[2]", "f64[4, 2]", "f64[2]")),
    )

    def make_rule(self) -> Rule:
        """Return an elementwise rule."""
        shapes = [operand.shape for operand in self.operand_types]
        x = "n c " + " ".join(f"w{i}" for i in range(len(shapes[1]) - 2))
        return resolve(f"c, {x}, c -> {x}", shapes)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """2 (x - mean) dy / count."""
        dy, x, mean = operands
        shape = self.operand_types[1].shape
        behind = (1,) * (len(shape) - 2)
        share = dy.reshape(-1, *behind) * (2.0 * shape[1] / prod(shape))
        return (x - mean.reshape(-1, *behind)) * share


@register
class BatchNormalize(Channelwise):
    """(x - mean) / sqrt(variance + ``epsilon``) gamma + beta, with the statistics as operands.

    With the statistics of training it is the normalization of inference.
    """

    name = "batch_normalize"
    channel_notation = "x, c, c, c, c -> x"
    defaults: ClassVar = {"epsilon": 1e-5}
    flops_per_point = 4.0
    examples = (
        Example(("f64[4, 2, 3, 2]", *("f64[2]",) * 4), ranges={2: (0.5, 2.0)}),
        Example(("f64[4, 2]", *("f64[2]",) * 4), ranges={2: (0.5, 2.0)}),
    )

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Normalize, scale and shift."""
        x = operands[0]
        mean, variance, gamma, beta = self.per_channel(*operands[1:])
        return (x - mean) * (gamma / np.sqrt(variance + self.attributes["epsilon"])) + beta

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """All five share their sums over the batch."""
        return build.emit_all(
            "batch_normalize_gradient", at.cotangents[0], *at.operands[:4], **self.attributes
        )


@register
class BatchNormalizeGradient(Channelwise):
    """The gradients of `batch_normalize`; of the cotangent and all its operands but beta."""

    name = "batch_normalize_gradient"
    channel_notation = "x, x, c, c, c -> x, c, c, c, c"
    defaults: ClassVar = {"epsilon": 1e-5}
    linear = ((0,),)
    flops_per_point = 8.0
    examples = (
        Example(("f64[4, 2, 3, 2]", "f64[4, 2, 3, 2]", *("f64[2]",) * 3), ranges={3: (0.5, 2.0)}),
    )

    def kernel(self, view: ShardView, *operands: Array) -> tuple[Array, ...]:
        """Sum the cotangent, and the cotangent times the normalized tensor."""
        dy, x, mean, variance, gamma = operands
        inverse = 1 / np.sqrt(variance + self.attributes["epsilon"])
        slope = gamma * inverse
        slopes, means, inverses = self.per_channel(slope, mean, inverse)
        dbeta = dy.sum(axis=self.others)
        dgamma = (dy * (x - means) * inverses).sum(axis=self.others)
        return dy * slopes, -slope * dbeta, -0.5 * slope * inverse * dgamma, dgamma, dbeta


def emit_batch_norm(
    build: Emitter,
    x: Value,
    gamma: Value,
    beta: Value,
    epsilon: float = 1e-5,
    parts: int = 1,
) -> tuple[Value, Value, Value]:
    """Emit the normalization of each channel over a batch ``[n, channel, ...]``.

    Parameters
    ----------
    build : Emitter
        The builder.
    x, gamma, beta : Value
        The batch, and for each channel the scale and the shift.
    epsilon : float
        Term added to the variance.
    parts : int
        Number of equal parts of the batch, each with its own statistics. Ranks that hold whole
        parts send nothing.

    Returns
    -------
    tuple of Value
        The normalized tensor, and the means and variances, for moving averages; over the parts they
        are averaged.

    Raises
    ------
    IRError
        If the parts are not equal.
    """
    if parts > 1:
        return _emit_norm_of_parts(build, x, gamma, beta, epsilon, parts)
    mean = build.emit("channel_mean", x)
    variance = build.emit("channel_variance", x, build.emit("stop_gradient", mean))
    y = build.emit("batch_normalize", x, mean, variance, gamma, beta, epsilon=epsilon)
    return y, mean, variance


def _emit_norm_of_parts(
    build: Emitter, x: Value, gamma: Value, beta: Value, epsilon: float, parts: int
) -> tuple[Value, Value, Value]:
    """Normalize with the channels of each part as channels of their own."""
    samples, channels, *space = x.type.shape
    if samples % parts:
        raise IRError(f"a batch of {samples} cannot be cut into {parts} equal parts")
    cut = (parts, samples // parts, channels, *space)
    turn = (1, 0, *range(2, len(cut)))
    mixed = build.emit("transpose", build.emit("reshape", x, shape=cut), permutation=turn)
    apart = build.emit("reshape", mixed, shape=(cut[1], parts * channels, *space))
    gammas, betas = (build.emit("tile", v, multiples=(parts,)) for v in (gamma, beta))
    y, *statistics = emit_batch_norm(build, apart, gammas, betas, epsilon)
    mixed = build.emit("reshape", y, shape=(cut[1], parts, channels, *space))
    whole = build.emit("transpose", mixed, permutation=turn)
    mean, variance = (
        build.emit("reduce_mean", build.emit("reshape", each, shape=(parts, channels)), axis=(0,))
        for each in statistics
    )
    return build.emit("reshape", whole, shape=x.type.shape), mean, variance
