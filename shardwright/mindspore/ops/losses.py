"""Losses as functions, with MindSpore's arguments."""

from collections.abc import Sequence

from shardwright.ir.values import check_choice
from shardwright.tensor import Tensor, apply


def binary_cross_entropy(
    logits: Tensor, labels: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """Return the cross entropy of probabilities, each of a choice of its own."""
    check_choice("reduction", reduction, ("none", "mean", "sum"))
    losses = apply("binary_cross_entropy", logits, labels)
    losses = losses if weight is None else losses * weight
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the CTC loss, and the logarithms of the sums over the begins of alignments.

    The mean is that of losses over the numbers of labels; the second result has no gradient.
    """
    check_choice("reduction", reduction, ("none", "mean", "sum"))
    steps, counts = (
        item if isinstance(item, Tensor) else Tensor(list(item), "int32")
        for item in (input_lengths, target_lengths)
    )
    operands, how = (log_probs, targets, steps, counts), {"zero_infinity": zero_infinity}
    losses = apply("ctc_loss", *operands, blank=blank, **how)
    sums = apply("ctc_prefixes", *operands, blank=blank)
    if reduction == "mean":
        return (losses / apply("maximum", counts.astype(losses.dtype), 1.0)).mean(), sums
    return (losses.sum() if reduction == "sum" else losses), sums


__all__ = ["binary_cross_entropy", "ctc_loss"]
