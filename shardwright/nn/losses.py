"""Losses: cells that take predictions and labels."""

from typing import Any, Literal, Self

from shardwright import ops
from shardwright.ir.errors import ModelError
from shardwright.nn.cell import Cell
from shardwright.operators.models.loss import emit_cross_entropy
from shardwright.ops.composite import Composition
from shardwright.tensor import Tensor, TracedTensor, apply, computed
from shardwright.tracer import Tracer, current_tracer, is_tracing

Reduction = Literal["mean", "sum", "none"]


class Loss(Cell):
    """A loss for every sample, and how the samples are put together.

    Parameters
    ----------
    reduction : str
        ``mean``, ``sum`` or ``none``.
    """

    def __init__(self, reduction: Reduction = "mean") -> None:
        if reduction not in ("mean", "sum", "none"):
            raise ModelError(f"a loss is reduced by `{reduction}`, use `mean`, `sum` or `none`")
        self.reduction = reduction

    def set_inputs(self, *inputs: Any) -> None:
        """Say of what shapes the labels are; the first is the network's input, as in MindSpore."""
        super().set_inputs(*inputs)
        self._inputs = (None, *inputs[1:])

    def reduced(self, losses: Tensor) -> Tensor:
        """Return the losses as one, as asked for."""
        if self.reduction == "none":
            return losses
        total = losses.sum() if losses.ndim else losses
        return total / losses.size if self.reduction == "mean" else total


class CrossEntropyLoss(Loss):
    """Cross entropy of scores ``[..., class]``, which may be split over the classes.

    Labels are classes ``[...]``, if they are whole numbers, or weights of all classes.

    Parameters
    ----------
    reduction : str
        ``mean``, ``sum`` or ``none``.
    ignore_index : int, optional
        The class of labels that do not count: a mean is over all others of the whole batch.
    """

    def __init__(self, reduction: Reduction = "mean", ignore_index: int | None = None) -> None:
        super().__init__(reduction)
        self.ignore_index = ignore_index

    def construct(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss."""
        if self.ignore_index is None:
            return self.reduced(cross_entropy(logits, labels, not labels.type.is_float))
        if labels.type.is_float:
            raise ModelError(
                "`ignore_index` is a class, and the labels are weights of all classes",
                hint="give the labels as whole numbers",
            )
        kept = apply("not_equal", labels, self.ignore_index)
        known = apply("mask", labels, kept)
        losses = apply("mask", cross_entropy(logits, known, True), kept)
        if self.reduction != "mean":
            return self.reduced(losses)
        return losses.sum() / kept.astype(losses.dtype).sum()


class SoftmaxCrossEntropyWithLogits(Loss):
    """Cross entropy of scores ``[..., class]``, unreduced by default.

    Parameters
    ----------
    sparse : bool
        Whether labels are classes ``[...]``; else weights of all classes.
    reduction : str
        ``mean``, ``sum`` or ``none``.
    """

    def __init__(self, sparse: bool = False, reduction: Reduction = "none") -> None:
        super().__init__(reduction)
        self.sparse = sparse
        self.softmax_cross_entropy = _CrossEntropy(sparse)
        self.one_hot = ops.OneHot()

    def construct(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss; where `one_hot` is told its slices, classes become weights first."""
        if self.sparse and self.one_hot.out_strategy is not None:
            labels = self.one_hot(labels, logits.shape[-1]).astype(logits.dtype)
            return self.reduced(cross_entropy(logits, labels, sparse=False))
        return self.reduced(self.softmax_cross_entropy(logits, labels))


class BCEWithLogitsLoss(Loss):
    """Cross entropy of scores, each of which is a choice of its own, and labels from 0 to 1."""

    def construct(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss."""
        return self.reduced(apply("sigmoid_cross_entropy", logits, labels))


class MSELoss(Loss):
    """The square of the difference."""

    def construct(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss."""
        logits, labels = _by_micro_batch(logits, labels)
        if logits.dtype == labels.dtype:
            return self.reduced(apply("squared_difference", logits, labels))
        return self.reduced(apply("square", logits - labels))


class L1Loss(Loss):
    """The absolute difference."""

    def construct(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss."""
        logits, labels = _by_micro_batch(logits, labels)
        return self.reduced(apply("abs", logits - labels))


def _by_micro_batch(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return tensors of different shapes so that those of a micro-batch alone meet each other.

    Labels ``[n]`` of scores ``[n, 1]`` meet all scores; in micro-batches those of their own.
    """
    count, samples = current_tracer().micro_batches, logits.shape[:1]
    differ = logits.shape != labels.shape and labels.ndim and labels.ndim < logits.ndim
    if count == 1 or not differ or labels.shape[:1] != samples or samples[0] % count:
        return logits, labels
    part = samples[0] // count
    ones = (1,) * (logits.ndim - labels.ndim)
    shape = (count, *ones, part, *labels.shape[1:])
    return logits.reshape((count, part, *logits.shape[1:])), labels.reshape(shape)


class _CrossEntropy(Composition):
    """The cross entropy of each row, which can be told how it is split."""

    def __init__(self, sparse: bool) -> None:
        self.sparse = sparse

    def shard(self, in_strategy: Any = None, out_strategy: None = None) -> Self:
        """Pin the slices of scores and labels; of classes they are those of weights of classes."""
        super().shard(in_strategy, out_strategy)
        if self.sparse and self.in_strategy is not None:
            scores, *labels = self.in_strategy
            self.in_strategy = (scores, *(counts[: len(scores) - 1] for counts in labels))
        return self

    def compose(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the cross entropy."""
        return cross_entropy(logits, labels, self.sparse)


def cross_entropy(logits: Tensor, labels: Tensor, sparse: bool) -> Tensor:
    """Return the cross entropy of each row.

    Raises
    ------
    ModelError
        If the labels do not have the shape they must.
    """
    expected = logits.shape[:-1] if sparse else logits.shape
    if labels.shape != expected:
        kind = "classes" if sparse else "weights of classes"
        raise ModelError(
            f"labels of type {labels.type} stand for {kind} of scores of shape {logits.shape}, "
            f"they must have the shape {expected}"
        )
    if not is_tracing():
        made = computed(Tracer(1, {}, {}), lambda: (cross_entropy(logits, labels, sparse),), {})
        return made[0]
    tracer = current_tracer()
    values = (logits.value(tracer), labels.value(tracer))
    return TracedTensor(emit_cross_entropy(tracer, *values, sparse))
