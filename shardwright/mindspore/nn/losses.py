"""Losses with MindSpore's arguments."""

from shardwright.ir.values import NOT_NEGATIVE, check_type, wrong_value
from shardwright.mindspore.ops import losses
from shardwright.nn import losses as own
from shardwright.nn.losses import Loss, Reduction
from shardwright.tensor import Tensor


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
        return losses.cross_entropy(
            logits, labels, self.weight, self.ignore_index, self.reduction, self.label_smoothing
        )


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
        return losses.binary_cross_entropy_with_logits(
            logits, labels, self.weight, self.pos_weight, self.reduction
        )
