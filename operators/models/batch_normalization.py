"""Normalization over a batch that may be split.

The statistics of a batch are sums over a dimension that may be split: each is an operator, whose
partial result is reduced before `batch_normalize` reads it; `emit_batch_norm` composes them.

A batch may consist of equal groups of samples with statistics of their own (Hoffer et al., "Train
longer, generalize better", 2017, call it ghost batch normalization): of a step in micro-batches
each is a group.
"""

from math import prod
from typing import ClassVar

import numpy as np

from shardwright.ir.errors import IRError
from shardwright.ir.graph import Value
from shardwright.ir.types import TensorType, numpy_dtype
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
from shardwright.operators.rule import Rule, ShardView


class Channelwise(OperatorInfo):
    """An operator on tensors ``[n, channel, ...]`` and on vectors of channels.

    In `channel_notation` ``x`` stands for the dimensions of such a tensor and ``s`` for those of
    statistics; all but the channel are contracted in results that lack them. Statistics of equal
    groups of the batch have the shape ``[group, channel]``, those of the whole batch ``[channel]``.
    """

    channel_notation: ClassVar[str]
    statistics_at: ClassVar[int] = 1  # the first operand that is a statistic
    flops_per_point = 2.0

    @property
    def groups(self) -> int:
        """Groups of the batch with statistics of their own; 0 for statistics of the whole batch."""
        statistics = self.operand_types[self.statistics_at].shape
        return statistics[0] if len(statistics) == 2 else 0

    @property
    def tensor(self) -> TensorType:
        """The type of the tensor."""
        return self.operand_types[0]

    def make_rule(self) -> Rule:
        """Contract all but the channels, and the groups where there are any."""
        shapes, groups = [operand.shape for operand in self.operand_types], self.groups
        behind = "".join(f" w{i}+" for i in range(self.tensor.rank - 2))
        x, statistics, sizes = f"n+ c{behind}", "c", {}
        if groups:
            x, statistics = f"(g+ n+) c{behind}", "g c"
            sizes = {"g": groups, "n": max(1, self.tensor.shape[0] // groups)}
            sizes |= {f"w{i}": size for i, size in enumerate(self.tensor.shape[2:])}
        notation = self.channel_notation.replace("s", statistics).replace("x", x)
        return resolve(notation, shapes, sizes)

    @property
    def others(self) -> tuple[int, ...]:
        """The dimensions that are not the channel; in groups, also not the group."""
        first = 1 if self.groups else 0
        return (first, *range(first + 2, self.tensor.rank + first))

    @property
    def count(self) -> int:
        """Elements of the whole tensor in each channel, of each group."""
        return prod(self.tensor.shape) // self.tensor.shape[1] // max(1, self.groups)

    def in_groups(self, x: Array, view: ShardView) -> Array:
        """Return a tensor with its groups as a dimension of their own, if there are any."""
        if not self.groups:
            return x
        groups = view.sizes["g"]
        return x.reshape(groups, len(x) // groups, *x.shape[1:])

    def per_channel(self, *vectors: Array) -> tuple[Array, ...]:
        """Return vectors, or statistics, in a shape that broadcasts to the tensor in groups."""
        behind = (1,) * (self.tensor.rank - 2)
        return tuple(
            v.reshape(v.shape[0], 1, -1, *behind) if v.ndim == 2 else v.reshape(-1, *behind)
            for v in vectors
        )


@register
class ChannelMean(Channelwise):
    """The mean of each channel over the whole batch, or over each of ``groups`` parts of it."""

    name = "channel_mean"
    of_reals = True
    channel_notation = "x -> s"
    defaults: ClassVar = {"groups": 0}
    linear = ((0,),)
    flops_per_point = 1.0
    examples = (
        Example(("f64[4, 2, 3, 2]",)),
        Example(("f64[4, 2]",)),
        Example(("f64[4, 2, 3]",), {"groups": 2}),
    )

    @property
    def groups(self) -> int:
        """The attribute.

        Raises
        ------
        IRError
            If it is not a number of groups.
        """
        groups = self.attributes["groups"]
        if not isinstance(groups, int) or isinstance(groups, bool) or groups < 0:
            raise IRError(f"`groups` is {groups!r}, expected an integer of at least 0")
        return groups

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Sum the local part, and divide by the global count."""
        return self.in_groups(operands[0], view).sum(axis=self.others) / self.count

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Spread the cotangent."""
        x, dy = at.operands[0], at.cotangents[0]
        if self.groups:
            return [build.emit("channel_mean_gradient", dy, like=x, shape=x.type.shape)]
        share = build.emit("scale", dy, factor=1.0 / self.count)
        return [build.emit("spread", share, like=x, shape=x.type.shape, axis=self.others)]


@register
class ChannelMeanGradient(Channelwise):
    """The gradient of means of groups by the tensor, which has the shape ``shape``."""

    name = "channel_mean_gradient"
    channel_notation = "s -> x"
    statistics_at = 0
    defaults: ClassVar = {"shape": ()}
    linear = ((0,),)
    flops_per_point = 1.0
    examples = (
        Example(("f64[2, 2]",), {"shape": (4, 2, 3)}),
        Example(("f64[2, 3]",), {"shape": (4, 3)}),
    )

    @property
    def tensor(self) -> TensorType:
        """The type of the result."""
        return self.operand_types[0].with_shape(tuple(self.attributes["shape"]))

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Divide by the global count, and repeat."""
        (share,) = self.per_channel(operands[0] / self.count)
        shape = view.result_shapes[0]
        groups = view.sizes["g"]
        apart = (groups, shape[0] // groups, *shape[1:])
        return np.broadcast_to(share, apart).reshape(shape)


@register
class ChannelVariance(Channelwise):
    """The variance of each channel, over what the means are taken of, from the tensor and means.

    No gradient goes to the means: the derivative by them is zero where they are the means.
    """

    name = "channel_variance"
    of_reals = True
    channel_notation = "x, s -> s"
    flops_per_point = 3.0
    examples = (
        Example(("f64[4, 2, 3, 2]", "f64[2]"), constants=(1,)),
        Example(("f64[4, 2]", "f64[2]"), constants=(1,)),
        Example(("f64[4, 2, 3]", "f64[2, 2]"), constants=(1,)),
    )

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Sum the squares of the local part, and divide by the global count."""
        (mean,) = self.per_channel(operands[1])
        distance = self.in_groups(operands[0], view) - mean
        return np.square(distance).sum(axis=self.others) / self.count

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Twice the distance from the mean."""
        x, mean = at.operands
        return [build.emit("channel_variance_gradient", at.cotangents[0], x, mean), None]


@register
class ChannelVarianceGradient(Channelwise):
    """The gradient of a variance by the tensor: from the cotangent, the tensor and the means."""

    name = "channel_variance_gradient"
    channel_notation = "s, x, s -> x"
    statistics_at = 2
    linear = ((0,),)
    flops_per_point = 3.0
    examples = (
        Example(("f64[2]", "f64[4, 2, 3, 2]", "f64[2]")),
        Example(("f64[2]", "f64[4, 2]", "f64[2]")),
        Example(("f64[2, 2]", "f64[4, 2, 3]", "f64[2, 2]")),
    )

    @property
    def tensor(self) -> TensorType:
        """The type of the second operand."""
        return self.operand_types[1]

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """2 (x - mean) dy / count."""
        dy, mean = self.per_channel(operands[0], operands[2])
        x = operands[1]
        return ((self.in_groups(x, view) - mean) * (dy * (2.0 / self.count))).reshape(x.shape)


@register
class BatchNormalize(Channelwise):
    """(x - mean) / sqrt(variance + ``epsilon``) gamma + beta, with the statistics as operands.

    With the statistics of training it is the normalization of inference.
    """

    name = "batch_normalize"
    of_reals = True
    channel_notation = "x, s, s, c, c -> x"
    defaults: ClassVar = {"epsilon": 1e-5}
    flops_per_point = 4.0
    examples = (
        Example(("f64[4, 2, 3, 2]", *("f64[2]",) * 4), ranges={2: (0.5, 2.0)}),
        Example(("f64[4, 2]", *("f64[2]",) * 4), ranges={2: (0.5, 2.0)}),
        Example(("f64[4, 3]", *("f64[2, 3]",) * 2, *("f64[3]",) * 2), ranges={2: (0.5, 2.0)}),
    )

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Normalize, scale and shift."""
        x = operands[0]
        mean, variance, gamma, beta = self.per_channel(*operands[1:])
        inverse = gamma / np.sqrt(variance + self.attributes["epsilon"])
        return ((self.in_groups(x, view) - mean) * inverse + beta).reshape(x.shape)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """All five share their sums over the batch."""
        return build.emit_all(
            "batch_normalize_gradient", at.cotangents[0], *at.operands[:4], **self.attributes
        )


@register
class BatchNormalizeGradient(Channelwise):
    """The gradients of `batch_normalize`; of the cotangent and all its operands but beta."""

    name = "batch_normalize_gradient"
    channel_notation = "x, x, s, s, c -> x, s, s, c, c"
    statistics_at = 2
    defaults: ClassVar = {"epsilon": 1e-5}
    linear = ((0,),)
    flops_per_point = 8.0
    examples = (
        Example(("f64[4, 2, 3, 2]", "f64[4, 2, 3, 2]", *("f64[2]",) * 3), ranges={3: (0.5, 2.0)}),
        Example(("f64[4, 3]", "f64[4, 3]", *("f64[2, 3]",) * 2, "f64[3]"), ranges={3: (0.5, 2.0)}),
    )

    def kernel(self, view: ShardView, *operands: Array) -> tuple[Array, ...]:
        """Sum the cotangent, and the cotangent times the normalized tensor."""
        dy, x = (self.in_groups(each, view) for each in operands[:2])
        mean, variance, gamma = operands[2:]
        inverse = 1 / np.sqrt(variance + self.attributes["epsilon"])
        slope = gamma * inverse
        slopes, means, inverses = self.per_channel(slope, mean, inverse)
        dbeta = dy.sum(axis=self.others)
        dgamma = (dy * (x - means) * inverses).sum(axis=self.others)
        dx = (dy * slopes).reshape(operands[0].shape)
        statistics = -slope * dbeta, -0.5 * slope * inverse * dgamma
        if self.groups:
            dgamma, dbeta = dgamma.sum(axis=0), dbeta.sum(axis=0)
        return dx, *statistics, dgamma, dbeta


@register
class MovingWeights(OperatorInfo):
    """The weights of a moving average: ``factor`` to the power of how many terms follow.

    They are those of the slices of the first dimension of ``shape``; the other dimensions repeat
    them. A moving average that moves to ``n`` terms one after the other, ``a = factor a + x_i``,
    ends at ``factor^n a + sum_i factor^(n - 1 - i) x_i``.
    """

    name = "moving_weights"
    result_dtype = "attribute"
    defaults: ClassVar = {"shape": (), "dtype": "float32", "factor": 1.0}
    flops_per_point = 0.0
    examples = (Example((), {"shape": (4, 3), "dtype": "float64", "factor": 0.5}),)

    def make_rule(self) -> Rule:
        """Assign a factor to every dimension.

        Raises
        ------
        IRError
            If there is no first dimension.
        """
        sizes = {f"d{i}": size for i, size in enumerate(self.attributes["shape"])}
        if not sizes:
            raise IRError("weights of a moving average need one dimension at least")
        return resolve(f"-> {' '.join(sizes)}", [], sizes)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Raise the factor to powers by the global index."""
        first = view.starts["d0"]
        following = self.rule.sizes["d0"] - 1 - np.arange(first, first + view.sizes["d0"])
        weights = np.power(float(self.attributes["factor"]), following)
        weights = weights.astype(numpy_dtype(self.attributes["dtype"]))
        shape = view.result_shapes[0]
        return np.broadcast_to(weights.reshape(-1, *(1,) * (len(shape) - 1)), shape)


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
