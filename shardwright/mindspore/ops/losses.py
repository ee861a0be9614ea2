"""Losses as functions, with MindSpore's arguments."""

from collections.abc import Sequence
from math import log, pi

from shardwright import ops as own
from shardwright.ir.values import check_choice
from shardwright.nn.losses import cross_entropy as rows_cross_entropy
from shardwright.tensor import Tensor, apply


def reduced(losses: Tensor, reduction: str) -> Tensor:
    check_choice("reduction", reduction, ("none", "mean", "sum"))
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()


def _least(x: Tensor, bound: float) -> Tensor:
    return apply("maximum", x, apply("fill", shape=(), value=bound, dtype=x.dtype))


# Of numbers


def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Return the squares of differences."""
    return reduced(apply("square", input - target), reduction)


def l1_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Return the sizes of differences."""
    return reduced(apply("abs", input - target), reduction)


def smooth_l1_loss(
    input: Tensor, target: Tensor, beta: float = 1.0, reduction: str = "none"
) -> Tensor:
    """Return the sizes of differences, less half of `beta`; smaller ones squared, by 2 `beta`."""
    size = apply("abs", input - target)
    near = apply("square", size) * (0.5 / beta) if beta else size
    return reduced(apply("where", size < beta, near, size - 0.5 * beta), reduction)


def huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0
) -> Tensor:
    """Return half the squares of differences, and of larger ones than `delta` lines."""
    size = apply("abs", input - target)
    near, far = apply("square", size) * 0.5, (size - 0.5 * delta) * delta
    return reduced(apply("where", size <= delta, near, far), reduction)


def gaussian_nll_loss(
    x: Tensor,
    target: Tensor,
    var: Tensor,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """Return the negative logarithm of the density of a normal distribution."""
    spread = apply("with_gradient_of", _least(var, eps), var)
    if spread.ndim == x.ndim - 1:
        spread = apply("expand_dims", spread, axis=-1)
    losses = (apply("log", spread) + apply("square", x - target) / spread) * 0.5
    return reduced(losses + 0.5 * log(2 * pi) if full else losses, reduction)


# Of choices


def binary_cross_entropy(
    logits: Tensor, labels: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """Return the cross entropy of probabilities, each of a choice of its own."""
    losses = apply("binary_cross_entropy", logits, labels)
    return reduced(losses if weight is None else losses * weight, reduction)


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return the cross entropy of scores, each of which is a choice of its own."""
    losses = apply("sigmoid_cross_entropy", input, target)
    if pos_weight is not None:
        # log(1 + exp(-x)) is the loss of a positive label.
        losses = losses + target * (pos_weight - 1.0) * apply("softplus", -input)
    return reduced(losses if weight is None else losses * weight, reduction)


def kl_div(logits: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    """Return the divergence of shares from those whose logarithms are given."""
    made: Tensor = own.KLDivLoss(reduction)(logits, labels)
    return made


def _known(target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Return which classes are not ignored, and the classes with zeros for those that are."""
    kept = apply("not_equal", target, ignore_index)
    return kept, apply("mask", target, kept)


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return the cross entropy of scores ``[n, class, ...]``, by classes or their shares."""
    scores, size = _classes_last(input), input.shape[1 if input.ndim > 1 else 0]
    if target.type.is_float:
        shares = _classes_last(target)
        if label_smoothing:
            shares = shares * (1 - label_smoothing) + label_smoothing / size
        shares = shares if weight is None else shares * weight
        losses = rows_cross_entropy(scores, shares, sparse=False)
        if reduction != "mean" or not losses.ndim:
            return reduced(losses, reduction)
        return losses.sum() / losses.size
    kept, known = _known(target, ignore_index)
    losses = rows_cross_entropy(scores, known, sparse=True)
    logs = apply("log_softmax", scores, axis=-1) if label_smoothing else scores
    return _by_class(losses, logs, kept, known, weight, reduction, label_smoothing)


def nll_loss(
    inputs: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return the negative logarithms ``[n, class, ...]`` of the classes that are right."""
    logs = _classes_last(inputs)
    kept, known = _known(target, ignore_index)
    places = apply("expand_dims", known, axis=-1)
    found = apply("gather_elements", logs, places, axis=logs.ndim - 1)
    losses = -apply("squeeze", found, axis=-1)
    return _by_class(losses, logs, kept, known, weight, reduction, label_smoothing)


def _by_class(
    losses: Tensor,
    logs: Tensor,
    kept: Tensor,
    known: Tensor,
    weight: Tensor | None,
    reduction: str,
    smoothing: float,
) -> Tensor:
    """Reduce losses by classes; a mean is over the weights of labels that count."""
    losses = apply("mask", losses, kept)
    weights = kept.astype(losses.dtype)
    if weight is not None:
        weights = weights * apply("gather", weight, known, axis=0)
        losses = losses * weights
    if smoothing:
        every = apply("mask", -(logs if weight is None else logs * weight).sum(-1), kept)
        losses = losses * (1 - smoothing) + every * (smoothing / logs.shape[-1])
    if reduction != "mean":
        return reduced(losses, reduction)
    return losses.sum() / weights.sum() if losses.ndim else losses / weights


def _classes_last(x: Tensor) -> Tensor:
    """Return scores with the dimension of the classes, the second one if there is, as the last."""
    return x if x.ndim < 3 else x.transpose(0, *range(2, x.ndim), 1)


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
    steps, counts = (
        item if isinstance(item, Tensor) else Tensor(list(item), "int32")
        for item in (input_lengths, target_lengths)
    )
    operands, how = (log_probs, targets, steps, counts), {"zero_infinity": zero_infinity}
    losses = apply("ctc_loss", *operands, blank=blank, **how)
    sums = apply("ctc_prefixes", *operands, blank=blank)
    if reduction == "mean":
        losses = losses / _least(counts.astype(losses.dtype), 1.0)
    return reduced(losses, reduction), sums


# Of pairs


def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """Return by how much pairs are not in the order that labels of 1 and -1 say, plus a margin."""
    return reduced(apply("relu", -target * (input1 - input2) + margin), reduction)


def soft_margin_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Return ``log(1 + exp(-label score))`` for labels of 1 and -1."""
    return reduced(apply("log", apply("exp", -target * input) + 1.0), reduction)


def hinge_embedding_loss(
    inputs: Tensor, targets: Tensor, margin: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """Return distances where a label is 1, and what a margin exceeds them by where it is -1."""
    far = apply("relu", margin - inputs)
    zeros = apply("zeros_like", inputs)
    losses = apply("where", targets == 1, inputs, zeros) + apply("where", targets == -1, far, zeros)
    return reduced(losses, reduction)


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """Return the cosines of the angles between vectors along a dimension."""
    sizes = [apply("sqrt", apply("square", x).sum(dim)) for x in (x1, x2)]
    return (x1 * x2).sum(dim) / _least(sizes[0] * sizes[1], eps)


def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """Return 1 less the cosine where a label is 1, and what it exceeds a margin by where -1."""
    products = (input1 * input2).sum(-1)
    sizes = [apply("square", x).sum(-1) + 1e-12 for x in (input1, input2)]
    cosine = products / apply("sqrt", sizes[0] * sizes[1])
    zeros = apply("zeros_like", cosine)
    losses = apply("where", target == 1, 1.0 - cosine, zeros) + apply(
        "where", target == -1, apply("relu", cosine - margin), zeros
    )
    return reduced(losses, reduction)


def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: int = 2,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """Return by how much an anchor is nearer to the wrong example than to the right one."""

    def distance(x: Tensor, y: Tensor) -> Tensor:
        sums = (apply("abs", x - y + eps) ** p).sum(-1)
        return sums ** (1 / p)

    far = distance(anchor, negative)
    if swap:
        far = apply("minimum", far, distance(positive, negative))
    return reduced(apply("relu", distance(anchor, positive) - far + margin), reduction)


__all__ = [
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cosine_embedding_loss",
    "cosine_similarity",
    "cross_entropy",
    "ctc_loss",
    "gaussian_nll_loss",
    "hinge_embedding_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "margin_ranking_loss",
    "mse_loss",
    "nll_loss",
    "smooth_l1_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
]
