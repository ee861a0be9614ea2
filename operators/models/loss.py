"""Losses.

`emit_cross_entropy` composes the cross entropy of sums over the classes, so that a large vocabulary
may be split; `softmax_cross_entropy` and its sparse form are single operators with whole classes.
"""

import numpy as np

from shardwright.ir.graph import Value
from shardwright.operators.broadcasting import unbroadcast
from shardwright.operators.indexing.gather import kept_inside, local_positions
from shardwright.operators.info import (
    Array,
    Emitter,
    Example,
    Gradients,
    Linearization,
    OperatorInfo,
    register,
)
from shardwright.operators.reduction.softmax import log_softmax, softmax
from shardwright.operators.rule import ShardView

# Cross entropy over classes that may be split


def _exponentials(x: Array, shift: Array) -> Array:
    """Return exp(x - shift) along the last dimension.

    A shift that is not finite counts as zero, so that the logarithm of a sum of zeros, plus the
    shift, is minus infinity.
    """
    finite = np.where(np.isfinite(shift), shift, shift.dtype.type(0))
    return np.exp(x - finite[..., None], order="C")


@register
class RowMax(OperatorInfo):
    """The maximum along the last dimension; a constant to gradients.

    It only keeps exponentials in range; the loss does not depend on it.
    """

    name = "row_max"
    notation = "... v+max -> ..."
    examples = (Example(("f64[4, 2, 6]",), constants=(0,)),)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Return the maximum of the local part."""
        return np.asarray(np.maximum.reduce(operands[0], axis=-1))


@register
class ExpSum(OperatorInfo):
    """The sum of exp(x - shift) along the last dimension; the shift is a constant to gradients."""

    name = "exp_sum"
    of_reals = True
    notation = "... v+, ... -> ..."
    flops_per_point = 3.0
    examples = (
        Example(("f64[4, 2, 6]", "f64[4, 2]"), constants=(1,)),
        Example(("f64[6]", "f64[]"), constants=(1,)),
    )

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Sum the local part."""
        x, shift = operands
        return np.asarray(_exponentials(x, shift).sum(axis=-1))

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Every exponential is its own derivative."""
        return [build.emit("exp_sum_gradient", at.cotangents[0], *at.operands), None]


@register
class ExpSumGradient(OperatorInfo):
    """The gradient of a sum of exponentials, from the cotangent, the operand and the shift."""

    name = "exp_sum_gradient"
    notation = "..., ... v, ... -> ... v"
    linear = ((0,),)
    flops_per_point = 3.0
    examples = (Example(("f64[4, 2]", "f64[4, 2, 6]", "f64[4, 2]")),)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Multiply the exponentials by the cotangent."""
        dy, x, shift = operands
        return dy[..., None] * _exponentials(x, shift)


@register
class ExpSumAndPick(OperatorInfo):
    """Along the last dimension the sum of exp(x - shift), and the element at an index.

    One operator, so that the gradient by a large vocabulary is one tensor. The shift is a
    constant to gradients.
    """

    name = "exp_sum_and_pick"
    of_reals = True
    notation = "... v+, ..., ... -> ..., ..."
    flops_per_point = 3.0
    examples = (
        Example(("f64[4, 2, 6]", "f64[4, 2]", "i64[4, 2]"), ranges={2: (0, 6)}, constants=(1,)),
    )

    def kernel(self, view: ShardView, *operands: Array) -> tuple[Array, Array]:
        """Sum the local part, and pick; zero for an index of another rank."""
        x, shift, indices = operands
        local, inside = local_positions(indices, view)
        rows = x.reshape(-1, x.shape[-1])  # indexed in less time than by `take_along_axis`
        picked = rows[np.arange(len(rows)), local.ravel()].reshape(local.shape)
        total = np.asarray(np.add.reduce(_exponentials(x, shift), axis=-1))
        return total, kept_inside(picked, inside)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Save only the operands for backward."""
        dx = build.emit("exp_sum_and_pick_gradient", *at.cotangents, *at.operands)
        return [dx, None, None]


@register
class ExpSumAndPickGradient(OperatorInfo):
    """The gradient from the two cotangents, the operand, the shift and the index."""

    name = "exp_sum_and_pick_gradient"
    notation = "..., ..., ... v, ..., ... -> ... v"
    linear = ((0, 1),)
    flops_per_point = 3.0
    examples = (
        Example(
            ("f64[4, 2]", "f64[4, 2]", "f64[4, 2, 6]", "f64[4, 2]", "i64[4, 2]"),
            ranges={4: (0, 6)},
        ),
    )

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Multiply the exponentials by the one cotangent, add the other at the index."""
        d_sum, d_picked, x, shift, indices = operands
        result = _exponentials(x, shift)
        result *= d_sum[..., None]
        local, inside = local_positions(indices, view)
        rows = result.reshape(-1, result.shape[-1])  # a view
        rows[np.arange(len(rows)), local.ravel()] += kept_inside(d_picked, inside).ravel()
        return result


def emit_cross_entropy(build: Emitter, logits: Value, labels: Value, sparse: bool) -> Value:
    """Emit the cross entropy of each row of ``[..., class]``, splittable over rows and classes.

    Parameters
    ----------
    build : Emitter
        The builder.
    logits : Value
        Scores of the classes.
    labels : Value
        The class of each row; if not `sparse`, the weight of each class.
    sparse : bool
        Which of the two.

    Returns
    -------
    Value
        One loss a row, ``[...]``.
    """
    if sparse:
        return build.emit("sub", *emit_log_sum_and_pick(build, logits, labels))
    normalizer = emit_log_sum(build, logits)
    weight = build.emit("reduce_sum", labels, axis=-1)
    score = build.emit("reduce_sum", build.emit("mul", logits, labels), axis=-1)
    return build.emit("sub", build.emit("mul", normalizer, weight), score)


def emit_log_sum(build: Emitter, x: Value) -> Value:
    """Emit the logarithm of the sum of exponentials along the last dimension."""
    shift = build.emit("row_max", build.emit("stop_gradient", x))
    return build.emit("add", build.emit("log", build.emit("exp_sum", x, shift)), shift)


def emit_log_sum_and_pick(build: Emitter, logits: Value, labels: Value) -> tuple[Value, Value]:
    """Emit of each row the logarithm of the sum of exponentials, and the element at its label."""
    shift = build.emit("row_max", build.emit("stop_gradient", logits))
    total, picked = build.emit_all("exp_sum_and_pick", logits, shift, labels)
    return build.emit("add", build.emit("log", total), shift), picked


# Cross entropy over classes that stay whole


@register
class SoftmaxCrossEntropy(OperatorInfo):
    """The cross entropy of each row with the weights of its classes, which are constants."""

    name = "softmax_cross_entropy"
    of_reals = True
    notation = "... c^, ... c^ -> ..."
    linear = ((1,),)
    flops_per_point = 6.0
    examples = (Example(("f64[4, 2, 6]", "f64[4, 2, 6]"), ranges={1: (0, 1)}, constants=(1,)),)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Return the weighted sum of the log softmax."""
        logits, labels = operands
        return -np.asarray((log_softmax(logits) * labels).sum(axis=-1))

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Save only the operands for backward."""
        operator = "softmax_cross_entropy_gradient"
        return [build.emit(operator, at.cotangents[0], *at.operands), None]


@register
class SoftmaxCrossEntropyGradient(OperatorInfo):
    """The gradient by the logits, from the cotangent, logits and labels."""

    name = "softmax_cross_entropy_gradient"
    notation = "..., ... c^, ... c^ -> ... c"
    linear = ((0,), (2,))
    flops_per_point = 7.0
    examples = (Example(("f64[4, 2]", "f64[4, 2, 6]", "f64[4, 2, 6]")),)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Return (softmax sum(labels) - labels) dy."""
        dy, logits, labels = operands
        weight = labels.sum(axis=-1, keepdims=True)
        return (softmax(logits) * weight - labels) * dy[..., None]


@register
class SparseSoftmaxCrossEntropy(OperatorInfo):
    """The cross entropy of each row with its class."""

    name = "sparse_softmax_cross_entropy"
    of_reals = True
    notation = "... c^, ... -> ..."
    flops_per_point = 5.0
    examples = (Example(("f64[4, 2, 6]", "i64[4, 2]"), ranges={1: (0, 6)}),)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Pick from the log softmax."""
        logits, labels = operands
        picked = np.take_along_axis(log_softmax(logits), labels[..., None], axis=-1)
        return -picked[..., 0]

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Save only the operands for backward."""
        operator = "sparse_softmax_cross_entropy_gradient"
        return [build.emit(operator, at.cotangents[0], *at.operands), None]


@register
class SparseSoftmaxCrossEntropyGradient(OperatorInfo):
    """The gradient by the logits, from the cotangent, logits and labels."""

    name = "sparse_softmax_cross_entropy_gradient"
    notation = "..., ... c^, ... -> ... c"
    linear = ((0,),)
    flops_per_point = 6.0
    examples = (Example(("f64[4, 2]", "f64[4, 2, 6]", "i64[4, 2]"), ranges={2: (0, 6)}),)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Subtract one from the softmax at the label."""
        dy, logits, labels = operands
        y = softmax(logits)
        at = labels[..., None]
        np.put_along_axis(y, at, np.take_along_axis(y, at, axis=-1) - 1, axis=-1)
        return y * dy[..., None]


# Losses of elements


@register
class SigmoidCrossEntropy(OperatorInfo):
    """The cross entropy of every element as a choice of its own."""

    name = "sigmoid_cross_entropy"
    of_reals = True
    notation = "..., ... -> ..."
    flops_per_point = 5.0
    examples = (Example(("f64[4, 6]", "f64[4, 6]")),)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Return log(1 + exp(logits)) - logits labels."""
        logits, labels = operands
        return np.logaddexp(logits.dtype.type(0), logits) - logits * labels

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Save only the operands for backward; the gradient by a label is minus its score."""
        (logits, labels), dy = at.operands, at.cotangents[0]
        dx = build.emit("sigmoid_cross_entropy_gradient", dy, logits, labels)
        of_labels = build.emit("neg", build.emit("mul", dy, logits))
        return [unbroadcast(build, dx, logits), unbroadcast(build, of_labels, labels)]


@register
class SigmoidCrossEntropyGradient(OperatorInfo):
    """The gradient by the logits, from the cotangent, logits and labels."""

    name = "sigmoid_cross_entropy_gradient"
    notation = "..., ..., ... -> ..."
    linear = ((0,),)
    flops_per_point = 6.0
    examples = (Example(("f64[4, 6]",) * 3),)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Return (sigmoid(logits) - labels) dy; the hyperbolic tangent does not overflow."""
        dy, logits, labels = operands
        return (0.5 + 0.5 * np.tanh(0.5 * logits) - labels) * dy


@register
class BinaryCrossEntropy(OperatorInfo):
    """The cross entropy of probabilities and labels, element by element.

    Logarithms count as -100 where they are less.
    """

    name = "binary_cross_entropy"
    of_reals = True
    notation = "..., ... -> ..."
    flops_per_point = 25.0
    examples = (Example(("f64[4, 6]", "f64[4, 6]"), ranges={0: (0.1, 0.9), 1: (0, 1)}),)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Return -y max(log p, -100) - (1 - y) max(log(1 - p), -100)."""
        x, labels = operands
        least = x.dtype.type(-100)
        with np.errstate(divide="ignore", invalid="ignore"):  # at the ends, and outside of them
            first, second = np.maximum(np.log(x), least), np.maximum(np.log1p(-x), least)
        return np.asarray((labels - 1) * second - labels * first)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Save the operands; the gradient by a label is the logarithm of (1 - p) / p."""
        (x, labels), dy = at.operands, at.cotangents[0]
        dx = build.emit("binary_cross_entropy_gradient", dy, x, labels)
        second = build.emit("log1p", build.emit("neg", x))
        odds = build.emit("sub", second, build.emit("log", x))
        return [unbroadcast(build, dx, x), unbroadcast(build, build.emit("mul", dy, odds), labels)]


# What PyTorch has p (1 - p) be at least, and adds to p and to 1 - p in second gradients.
_LEAST_ROOM = 1e-12


@register
class BinaryCrossEntropyGradient(OperatorInfo):
    """The gradient by the probabilities, from the cotangent, probabilities and labels.

    It is bounded where a probability is 0 or 1, and its own gradient is not its derivative there:
    both are those of PyTorch.
    """

    name = "binary_cross_entropy_gradient"
    notation = "..., ..., ... -> ..."
    linear = ((0,),)
    flops_per_point = 6.0
    examples = (Example(("f64[4, 6]",) * 3, ranges={1: (0.1, 0.9), 2: (0, 1)}),)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Return (p - y) dy / max(p (1 - p), 1e-12)."""
        dy, x, labels = operands
        return np.asarray(dy * (x - labels) / np.maximum(x * (1 - x), x.dtype.type(_LEAST_ROOM)))

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """With e = 1e-12, divide by (p + e) (1 - p + e), its square, and p (1 - p), at least e."""
        (dy, x, labels), g, emit = at.operands, at.cotangents[0], build.emit
        rest = emit("add_scalar", emit("neg", x), value=1.0)
        wide = [emit("add_scalar", one, value=_LEAST_ROOM) for one in (x, rest)]
        room = emit("mul", *wide)
        of_cotangent = emit("div", emit("mul", g, emit("sub", x, labels)), room)
        both = emit("mul", g, dy)
        crossed = emit("scale", emit("mul", x, labels), factor=2.0)
        curve = emit("add", emit("sub", emit("square", x), crossed), labels)
        of_x = emit("div", emit("mul", both, curve), emit("square", room))
        plain = emit("mul", x, rest)
        least = emit("scale", emit("ones_like", plain), factor=_LEAST_ROOM)
        of_label = emit("neg", emit("div", both, emit("maximum", plain, least)))
        found = zip((of_cotangent, of_x, of_label), at.operands, strict=True)
        return [unbroadcast(build, gradient, operand) for gradient, operand in found]


def emit_mean_squared_error(build: Emitter, prediction: Value, target: Value) -> Value:
    """Emit the mean of the squared errors of all elements, a scalar."""
    errors = build.emit("squared_difference", prediction, target)
    total = build.emit("reduce_sum", errors)
    return build.emit("scale", total, factor=1.0 / errors.type.elements)
