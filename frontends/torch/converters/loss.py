"""Losses."""

from typing import Any

import numpy as np

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.common.items import Constant, Item
from shardwright.frontends.torch.aten import converts
from shardwright.frontends.torch.aten_call import Call, Chosen, Selected
from shardwright.ir.graph import Value
from shardwright.operators.models.loss import emit_cross_entropy, emit_log_sum_and_pick

_NONE, _MEAN = 0, 1  # PyTorch's numbers of reductions; 2 is the sum


def _reduced(call: Call, losses: Value, reduction: int) -> Value:
    if reduction == _NONE or not losses.type.rank:
        return losses
    return call.emit("reduce_mean" if reduction == _MEAN else "reduce_sum", losses)


def _last(call: Call, x: Value) -> Value:
    """Return scores with the classes, the second dimension, moved to the last."""
    rank = x.type.rank
    return x if rank < 3 else call.transpose(x, (0, *range(2, rank), 1))


@converts("aten.cross_entropy_loss")
def _cross_entropy(
    call: Call,
    x: Value,
    target: Value,
    weight: Value | None = None,
    reduction: int = _MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Value:
    scores = _last(call, x)
    if target.type.is_float:
        shares = _last(call, target)
        if label_smoothing:
            shares = call.scaled(shares, 1 - label_smoothing)
            shares = call.shifted(shares, label_smoothing / scores.type.shape[-1])
        return _of_shares(call, scores, shares, weight, reduction)
    label, kept = _labels(call, target, ignore_index)
    log_sum, picked = emit_log_sum_and_pick(call.build, scores, label)
    found = _weighted(call, call.emit("sub", log_sum, picked), label, kept, weight, reduction)
    if not label_smoothing:
        return found
    uniform = _uniform(call, _shared(call, scores, log_sum, weight), label, kept, weight, reduction)
    rest, share = 1 - label_smoothing, label_smoothing
    return call.emit("add", call.scaled(found, rest), call.scaled(uniform, share))


def _of_shares(
    call: Call, scores: Value, shares: Value, weight: Value | None, reduction: int
) -> Value:
    """Return the cross entropy with probabilities of the classes; a mean is over the samples."""
    if weight is None and not call.is_trained(shares):
        losses = emit_cross_entropy(call.build, scores, shares, sparse=False)
    else:
        logs = call.emit("log_softmax", scores, axis=-1)
        logs = logs if weight is None else call.emit("mul", logs, weight)
        losses = call.emit("neg", call.emit("reduce_sum", call.emit("mul", logs, shares), axis=-1))
    return _reduced(call, losses, reduction)


@converts("aten.nll_loss_nd", "aten.nll_loss", "aten.nll_loss2d", "aten.nll_loss_forward")
def _nll(
    call: Call,
    x: Value,
    target: Value,
    weight: Value | None = None,
    reduction: int = _MEAN,
    ignore_index: int = -100,
) -> Any:
    label, kept = _labels(call, target, ignore_index)
    losses = call.emit("neg", call.emit("pick", _last(call, x), label))
    found = _weighted(call, losses, label, kept, weight, reduction)
    return found if len(call.results) == 1 else [found, None]


def _labels(call: Call, target: Value, ignored: int) -> tuple[Value, Value]:
    """Return labels with zero for those that are ignored, and which are kept."""
    dtype = target.type.dtype
    kept = call.emit("not_equal", target, call.fill(ignored, dtype))
    return call.emit("where", kept, target, call.fill(0, dtype)), kept


def _shared(call: Call, scores: Value, log_sum: Value, weight: Value | None) -> Value:
    """Return the losses of labels that all classes share; each counts by its own weight.

    They are sums of scores, so that no tensor of their size is made.
    """
    if weight is not None:
        log_sum = call.emit("mul", log_sum, call.emit("reduce_mean", weight))
        scores = call.emit("mul", scores, weight)
    return call.emit("sub", log_sum, call.emit("reduce_mean", scores, axis=-1))


def _uniform(
    call: Call, losses: Value, label: Value, kept: Value, weight: Value | None, reduction: int
) -> Value:
    """Return the losses of labels that are shared, reduced; a mean is over the labels' weights."""
    losses = call.emit("mask", losses, kept)
    if reduction != _MEAN:
        return _reduced(call, losses, reduction)
    shares = call.cast(kept, losses.type.dtype)
    if weight is not None:
        shares = call.emit("mul", shares, call.emit("gather", weight, label, axis=0))
    if not losses.type.rank:
        return call.emit("div", losses, shares)
    return call.emit("div", call.emit("reduce_sum", losses), call.emit("reduce_sum", shares))


def _weighted(
    call: Call, losses: Value, label: Value, kept: Value, weight: Value | None, reduction: int
) -> Value:
    """Return losses reduced; a mean is over the weights of the labels that are kept."""
    shares = call.cast(kept, losses.type.dtype)
    losses = call.emit("mask", losses, kept)
    if weight is not None:
        own = call.emit("gather", weight, label, axis=0)
        losses, shares = call.emit("mul", losses, own), call.emit("mul", shares, own)
    if reduction != _MEAN:
        return _reduced(call, losses, reduction)
    if not losses.type.rank:
        return call.emit("div", losses, shares)
    return call.emit("div", call.emit("reduce_sum", losses), call.emit("reduce_sum", shares))


@converts("aten.mse_loss")
def _mse(call: Call, x: Value, target: Value, reduction: int = _MEAN) -> Value:
    return _reduced(call, call.emit("squared_difference", x, target), reduction)


@converts("aten.l1_loss")
def _l1(call: Call, x: Value, target: Value, reduction: int = _MEAN) -> Value:
    return _reduced(call, call.emit("abs", call.emit("sub", x, target)), reduction)


@converts("aten.smooth_l1_loss", "aten.huber_loss")
def _smooth_l1(
    call: Call, x: Value, target: Value, reduction: int = _MEAN, beta: float = 1, delta: float = 1
) -> Value:
    is_huber = "huber" in call.operator
    bound = float(delta if is_huber else beta)
    apart = call.emit("sub", x, target)
    distance = call.emit("abs", apart)
    near = call.scaled(call.emit("square", apart), 0.5 if is_huber else 0.5 / bound)
    far = call.emit("add_scalar", distance, value=-bound / 2)
    far = call.scaled(far, bound if is_huber else 1.0)
    is_near = call.emit("less", distance, call.fill(bound, x.type.dtype))
    return _reduced(call, call.emit("where", is_near, near, far), reduction)


@converts("aten.binary_cross_entropy")
def _binary(
    call: Call, x: Value, target: Value, weight: Value | None = None, reduction: int = _MEAN
) -> Value:
    losses = call.emit("binary_cross_entropy", x, target)
    if weight is not None:
        losses = call.emit("mul", losses, weight)
    return _reduced(call, losses, reduction)


@converts("aten.binary_cross_entropy_with_logits")
def _logistic(
    call: Call,
    x: Value,
    target: Value,
    weight: Value | None = None,
    pos_weight: Value | None = None,
    reduction: int = _MEAN,
) -> Value:
    if pos_weight is None and (call.notes.differentiates or call.is_trained(target)):
        # The operator for both has no gradient of its targets.
        losses = call.emit("sub", call.emit("softplus", x), call.emit("mul", x, target))
    elif pos_weight is None:
        losses = call.emit("sigmoid_cross_entropy", x, target)
    else:
        losses = _positives_weighted(call, x, target, pos_weight)
    if weight is not None:
        losses = call.emit("mul", losses, weight)
    return _reduced(call, losses, reduction)


def _positives_weighted(call: Call, x: Value, target: Value, weight: Value) -> Value:
    """Return ``(1 - y) x + (1 + (weight - 1) y) softplus(-x)``."""
    rest = call.emit("add_scalar", call.emit("neg", target), value=1.0)
    excess = call.emit("mul", target, call.emit("add_scalar", weight, value=-1.0))
    factor = call.emit("add_scalar", excess, value=1.0)
    logarithm = call.emit("softplus", call.emit("neg", x))
    return call.emit("add", call.emit("mul", rest, x), call.emit("mul", factor, logarithm))


@converts("aten.kl_div")
def _kl(
    call: Call, x: Value, target: Value, reduction: int = _MEAN, log_target: bool = False
) -> Value:
    if not log_target:
        dtype = target.type.dtype
        is_zero = call.emit("equal", target, call.fill(0, dtype))
        safe = call.emit("where", is_zero, call.fill(1, dtype), target)
        losses = call.emit("mul", target, call.emit("sub", call.emit("log", safe), x))
        return _reduced(call, losses, reduction)
    losses = call.emit("mul", call.emit("exp", target), call.emit("sub", target, x))
    return _reduced(call, losses, reduction)


@converts("aten.multi_margin_loss", "shardwright.multi_margin_loss")
def _multi_margin(
    call: Call,
    x: Value,
    target: Value,
    p: int = 1,
    margin: float = 1,
    weight: Value | None = None,
    reduction: int = _MEAN,
) -> Value:
    classes = x.type.shape[-1]
    scores = call.reshape(x, (x.type.elements // classes, classes))
    label = call.reshape(target, (scores.type.shape[0], 1))
    own = call.emit("gather_elements", scores, label, axis=1)
    losses = call.emit("relu", call.shifted(call.emit("sub", scores, own), margin))
    losses = call.emit("square", losses) if p == 2 else losses
    if weight is not None:
        if call.is_trained(weight):
            raise UnsupportedError("a trained weight of `multi_margin_loss`")
        losses = call.emit("mul", losses, call.emit("gather", weight, label, axis=0))
    others = call.emit("not_equal", call.like(np.arange(classes), label), label)
    losses = call.emit("reduce_mean", call.emit("mask", losses, others), axis=1)
    return _reduced(call, call.reshape(losses, target.type.shape), reduction)


@converts("aten.multilabel_margin_loss", "shardwright.multilabel_margin_loss")
def _multilabel_margin(call: Call, x: Value, target: Value, reduction: int = _MEAN) -> Value:
    """Convert by the definition: PyTorch's decomposition reads class 0 for labels after the end."""
    classes, kind = x.type.shape[-1], target.type.dtype
    count = x.type.elements // classes
    ended = call.emit("equal", call.reshape(target, (count, classes, 1)), call.fill(-1, kind))
    ended = call.emit("cumsum", call.cast(ended, kind), axis=1)
    is_label = call.emit("equal", ended, call.fill(0, kind))
    label = call.reshape(target, (count, classes, 1))
    label = call.emit("where", is_label, label, call.fill(0, kind))
    scores = call.reshape(x, (count, 1, classes))
    column = call.reshape(x, (count, classes, 1))
    own = call.emit("gather_elements", column, label, axis=1)
    is_own = call.emit("equal", call.like(np.arange(classes), label), label)
    is_own = call.emit("logical_and", is_own, is_label)
    others = call.emit("logical_not", call.emit("reduce_any", is_own, axis=1, keep_dims=True))
    room = call.emit("relu", call.shifted(call.emit("sub", scores, own), 1))
    losses = call.emit("mask", room, call.emit("logical_and", others, is_label))
    losses = call.scaled(call.emit("reduce_sum", losses, axis=(1, 2)), 1 / classes)
    return _reduced(call, call.reshape(losses, x.type.shape[:-1]), reduction)


@converts("shardwright.ctc_loss")
def _ctc(
    call: Call,
    log_probs: Value,
    targets: Chosen,
    input_lengths: Value,
    target_lengths: Item,
    blank: int,
    zero_infinity: bool,
) -> Value:
    """Convert with PyTorch's gradient: of logarithms whose exponentials add to one."""
    counts = call.value(target_lengths)
    operands = (log_probs, _rows(call, targets, counts, target_lengths), input_lengths, counts)
    losses = call.emit("ctc_loss", *operands, blank=blank, zero_infinity=zero_infinity)
    if _is_normalized(call, log_probs):
        return losses
    step = call.like(np.arange(log_probs.type.shape[0])[:, None, None], input_lengths)
    is_read = call.emit("less", step, call.reshape(input_lengths, (losses.type.elements, 1)))
    total = call.emit("reduce_sum", call.emit("mask", call.emit("exp", log_probs), is_read), axis=2)
    total = call.emit("reduce_sum", total, axis=0)
    if zero_infinity:
        plain = call.emit("ctc_loss", *operands, blank=blank, zero_infinity=False)
        total = call.emit("mask", total, call.emit("is_finite", call.emit("stop_gradient", plain)))
    return call.emit("add", losses, call.emit("sub", total, call.emit("stop_gradient", total)))


def _rows(call: Call, given: Chosen, counts: Value, known: Item) -> Value:
    """Return the labels of each sample as a row."""
    if isinstance(given, Selected):
        return _chosen(call, given, counts)
    targets = call.value(given)
    if targets.type.rank == 2:
        return targets
    total, dtype = targets.type.elements, counts.type.dtype
    longest = total
    if isinstance(known, Constant) and not known.is_absent:
        longest = int(known.array.max(initial=1))
    begins = call.emit("sub", call.emit("cumsum", counts, axis=0), counts)
    begins = call.reshape(begins, (counts.type.elements, 1))
    place = call.emit("add", begins, call.like(np.arange(max(longest, 1)), counts))
    place = call.emit("minimum", place, call.fill(total - 1, dtype))
    return call.emit("gather", targets, place, axis=0)


def _chosen(call: Call, given: Selected, counts: Value) -> Value:
    """Return the labels that a mask chooses of each row, in front."""
    mask, summed = given.mask, call.producer(counts.name)
    cast = summed and call.producer(summed.operands[0])
    if mask.type.rank != 2 or not cast or cast.operands != (mask.name,):
        raise UnsupportedError("labels that a mask selects, but for lengths that are its sums,")
    place = call.like(np.arange(mask.type.shape[1]), counts)
    order = call.emit("where", mask, place, call.shifted(place, mask.type.shape[1]))
    _, chosen = call.emit_all("sort", order, axis=1)
    return call.emit("gather_elements", given.values, chosen, axis=1)


def _is_normalized(call: Call, x: Value) -> bool:
    """Return whether the exponentials of values add to one over the last dimension."""
    node, axis = call.producer(x.name), x.type.rank - 1
    while node is not None and node.operator == "transpose":
        permutation = node.attributes["permutation"]
        assert isinstance(permutation, tuple)
        axis = int(permutation[axis])  # type: ignore[arg-type]
        node = call.producer(node.operands[0])
    if node is None or node.operator != "log_softmax":
        return False
    return node.attributes.get("axis", -1) in (axis, axis - x.type.rank)
