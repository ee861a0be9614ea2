"""Losses with MindSpore's arguments."""

from shardwright.ir.values import NOT_NEGATIVE, check_type, wrong_value
from shardwright.nn import losses as own
from shardwright.nn.losses import Loss, Reduction
from shardwright.tensor import Tensor, apply


class CrossEntropyLoss(Loss):
    """Cross entropy of scores ``[n, class, ...]``.

    Labels are classes ``[n, ...]``, if they are whole numbers, or weights of all classes.

    Parameters
    ----------
    weight : Tensor, optional
        The weight of each class.
    ignore_index : int
        The class of labels that do not count: a mean is over all others of the whole batch.
    reduction : str
        ``mean``, ``sum`` or ``none``.
    label_smoothing : float
        The share of a label that goes to all classes, equally.
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(reduction)
        check_type("ignore_index", ignore_index, int)
        if label_smoothing not in NOT_NEGATIVE or label_smoothing > 1:
            raise wrong_value("label_smoothing", label_smoothing, "a number from 0 to 1")
        self.weight, self.ignore_index = weight, ignore_index
        self.label_smoothing = label_smoothing

    def construct(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss."""
        if labels.type.is_float:
            return self._by_shares(_classes_last(logits), _classes_last(labels))
        scores = _classes_last(logits)
        kept = apply("not_equal", labels, self.ignore_index)
        known = apply("mask", labels, kept)
        losses = apply("mask", own.cross_entropy(scores, known, sparse=True), kept)
        weights = kept.astype(losses.dtype)
        if self.weight is not None:
            weights = weights * apply("gather", self.weight, known, axis=0)
            losses = losses * weights
        if self.label_smoothing:
            losses = self._smoothed(losses, scores, kept)
        if self.reduction != "mean":
            return self.reduced(losses)
        if not losses.ndim:
            return losses / weights
        return losses.sum() / weights.sum()

    def _by_shares(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of weights of all classes."""
        if self.label_smoothing:
            even = self.label_smoothing / scores.shape[-1]
            labels = labels * (1 - self.label_smoothing) + even
        labels = labels if self.weight is None else labels * self.weight
        losses = own.cross_entropy(scores, labels, sparse=False)
        return self.reduced(losses)

    def _smoothed(self, losses: Tensor, scores: Tensor, kept: Tensor) -> Tensor:
        """Return losses a share of which is that of all classes, equally."""
        logs = apply("log_softmax", scores, axis=-1)
        logs = logs if self.weight is None else logs * self.weight
        every = apply("mask", -logs.sum(-1), kept)
        share = self.label_smoothing
        return losses * (1 - share) + every * (share / scores.shape[-1])


def _classes_last(x: Tensor) -> Tensor:
    """Return scores with the dimension of the classes, the second one if there is, as the last."""
    if x.ndim < 3:
        return x
    return x.transpose(0, *range(2, x.ndim), 1)


class BCEWithLogitsLoss(own.BCEWithLogitsLoss):
    """Cross entropy of scores, each of which is a choice of its own, and labels from 0 to 1.

    Parameters
    ----------
    reduction : str
        ``mean``, ``sum`` or ``none``.
    weight : Tensor, optional
        Factors of the losses.
    pos_weight : Tensor, optional
        Factors of what positive labels cost.
    """

    def __init__(
        self,
        reduction: Reduction = "mean",
        weight: Tensor | None = None,
        pos_weight: Tensor | None = None,
    ) -> None:
        super().__init__(reduction)
        self.weight, self.pos_weight = weight, pos_weight

    def construct(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss."""
        losses = apply("sigmoid_cross_entropy", logits, labels)
        if self.pos_weight is not None:
            # log(1 + exp(-x)) is the loss of a positive label.
            more = labels * (self.pos_weight - 1.0)
            losses = losses + more * apply("softplus", -logits)
        return self.reduced(losses if self.weight is None else losses * self.weight)
