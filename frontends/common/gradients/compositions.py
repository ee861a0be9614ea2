"""Operators composed of others: each has a gradient that can be differentiated again.

The gradients of normalizations, attention and losses are operators of their own, without a
gradient. Where a model differentiates its own gradient, what is differentiated is their composition
instead.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf, pi, sqrt

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.common.gradients.terms import Term
from shardwright.frontends.common.patterns.masks import HIDDEN
from shardwright.operators.info import OperatorInfo
from shardwright.operators.reduction.reduce import reduced_axes
from shardwright.operators.windows.pooling import MaxPool

Composition = Callable[[OperatorInfo, Sequence[Term]], Sequence[Term]]


def _silu(info: OperatorInfo, terms: Sequence[Term]) -> Sequence[Term]:
    return [terms[0] * terms[0].apply("sigmoid")]


def _fast_gelu(info: OperatorInfo, terms: Sequence[Term]) -> Sequence[Term]:
    return [terms[0] * (terms[0] * 1.702).apply("sigmoid")]


def _gelu(info: OperatorInfo, terms: Sequence[Term]) -> Sequence[Term]:
    x = terms[0]
    if info.attributes["approximate"]:
        inner = ((x + x * x * x * 0.044715) * sqrt(2 / pi)).apply("tanh")
    else:
        inner = (x * sqrt(0.5)).apply("erf")
    return [x * 0.5 * (inner + 1)]


def _mish(info: OperatorInfo, terms: Sequence[Term]) -> Sequence[Term]:
    return [terms[0] * terms[0].apply("softplus").apply("tanh")]


def _softsign(info: OperatorInfo, terms: Sequence[Term]) -> Sequence[Term]:
    return [terms[0] / (terms[0].apply("abs") + 1)]


def _elu(info: OperatorInfo, terms: Sequence[Term]) -> Sequence[Term]:
    """Let it be linear at zero, where PyTorch has no second gradient."""
    x, alpha = terms[0], info.attributes["alpha"]
    is_over, is_below = x.compare("greater", 0), x.compare("less", 0)
    bent = x.where(is_below, 0).apply("expm1")  # finite where it is not taken
    low = bent.where(is_below, x) * alpha
    return [x.where(is_over, low) * info.attributes.get("gamma", 1.0)]


# Normalizations


def _standardized(x: Term, axes: int | tuple[int, ...], epsilon: float, centred: bool) -> Term:
    if centred:
        x = x - x.mean(axes)
    return x * ((x * x).mean(axes) + epsilon).apply("rsqrt")


def _row_norm(info: OperatorInfo, terms: Sequence[Term], *, centred: bool) -> Sequence[Term]:
    scaled = _standardized(terms[0], -1, info.attributes["epsilon"], centred) * terms[1]
    return [scaled + terms[2] if centred else scaled]


def _group_norm(info: OperatorInfo, terms: Sequence[Term]) -> Sequence[Term]:
    x, gamma, beta = terms
    (n, channels, *behind), groups = x.type.shape, info.attributes["groups"]
    grouped = x.reshape((n, groups, channels // groups, *behind))
    axes = tuple(range(2, grouped.type.rank))
    flat = _standardized(grouped, axes, info.attributes["epsilon"], True).reshape(x.type.shape)
    aside = (channels, *(1,) * len(behind))
    return [flat * gamma.reshape(aside) + beta.reshape(aside)]


def _channels(x: Term, statistics: Term) -> Term:
    """Return statistics of channels in a shape that broadcasts to ``[n, channel, ...]``."""
    return statistics.reshape((x.type.shape[1], *(1,) * (x.type.rank - 2)))


def _channel_mean(info: OperatorInfo, terms: Sequence[Term]) -> Sequence[Term]:
    x = terms[0]
    axes = tuple(i for i in range(x.type.rank) if i != 1)
    return [x.mean(axes).reshape((x.type.shape[1],))]


def _channel_variance(info: OperatorInfo, terms: Sequence[Term]) -> Sequence[Term]:
    x = terms[0]  # the other operand is its means, as constants to gradients
    distance = x - _channels(x, *_channel_mean(info, [x]))
    return _channel_mean(info, [distance * distance])


def _batch_normalize(info: OperatorInfo, terms: Sequence[Term]) -> Sequence[Term]:
    x, rest = terms[0], terms[1:]
    mean, variance, gamma, beta = (_channels(x, each) for each in rest)
    inverse = (variance + info.attributes["epsilon"]).apply("rsqrt")
    return [(x - mean) * inverse * gamma + beta]


def _l2_normalize(info: OperatorInfo, terms: Sequence[Term]) -> Sequence[Term]:
    x, epsilon = terms[0], info.attributes["epsilon"]
    squares = (x * x).sum(reduced_axes(info.attributes["axis"], x.type.rank))
    held = squares.where(squares.compare("greater", epsilon), epsilon)
    return [x * held.apply("rsqrt")]


# Losses


def _behind(term: Term) -> Term:
    """Return a tensor with a last dimension of one."""
    return term.reshape((*term.type.shape, 1))


def _exp_sum(info: OperatorInfo, terms: Sequence[Term]) -> Sequence[Term]:
    x, shift = terms
    return [(x - _behind(shift)).apply("exp").sum(-1, keep_dims=False)]


def _picked(x: Term, indices: Term) -> Term:
    found = x.apply("gather_elements", _behind(indices), axis=-1)
    return found.reshape(indices.type.shape)


def _exp_sum_and_pick(info: OperatorInfo, terms: Sequence[Term]) -> Sequence[Term]:
    x, shift, indices = terms
    return [*_exp_sum(info, (x, shift)), _picked(x, indices)]


def _pick(info: OperatorInfo, terms: Sequence[Term]) -> Sequence[Term]:
    return [_picked(*terms)]


def _softmax_cross_entropy(info: OperatorInfo, terms: Sequence[Term]) -> Sequence[Term]:
    logits, labels = terms
    return [-(logits.apply("log_softmax") * labels).sum(-1, keep_dims=False)]


def _sparse_cross_entropy(info: OperatorInfo, terms: Sequence[Term]) -> Sequence[Term]:
    logits, labels = terms
    return [-_picked(logits.apply("log_softmax"), labels)]


def _sigmoid_cross_entropy(info: OperatorInfo, terms: Sequence[Term]) -> Sequence[Term]:
    logits, labels = terms
    return [logits.apply("softplus") - logits * labels]


# Windows


def _max_pool(info: OperatorInfo, terms: Sequence[Term]) -> Sequence[Term]:
    """Compare the elements of windows in order: the first of equal ones, the last NaN is taken."""
    assert isinstance(info, MaxPool)
    (n, c, *space), windows = terms[0].type.shape, info.windows
    counts, whole = windows.count(space), windows.padded_size(space)
    before = (0, 0, *(pair[0] for pair in windows.padding))
    after = (0, 0, *(w - s - b for w, s, b in zip(whole, space, before[2:], strict=True)))
    padded = terms[0].apply("pad", before=before, after=after, value=-inf)
    how = {"size": (n, c, *counts), "strides": (1, 1, *windows.stride)}
    taps = [padded.apply("slice", begin=(0, 0, *offset), **how) for offset in windows.offsets]
    found = taps[0]
    for tap in taps[1:]:
        is_more = tap.apply("greater", found).apply("logical_or", tap.apply("is_nan"))
        found = tap.where(is_more, found)
    return [found]


# Attention


def _attention(info: OperatorInfo, terms: Sequence[Term]) -> Sequence[Term]:
    if info.attributes["documents"]:
        raise UnsupportedError("the second gradient of attention within documents")
    q, k, v = terms[:3]
    (b, heads, s, d), (_, h, t, e) = q.type.shape, v.type.shape
    by_head = (b, h, heads // h)
    scale = info.attributes["scale"]
    keys, values = (x.reshape((b, h, 1, t, n)) for x, n in ((k, d), (v, e)))
    scores = q.reshape((*by_head, s, d)).apply("matmul", keys, transpose_b=True)
    scores = scores * (d**-0.5 if scale is None else scale)
    if cap := info.attributes["soft_cap"]:
        scores = (scores * (1 / cap)).apply("tanh") * cap
    seen = _seen(info, scores) if info.attributes["causal"] else None
    sinks = terms[3] if info.attributes["sinks"] else None
    for mask in () if sinks else terms[3:]:
        n, m, rows, _ = mask.type.shape
        mask = mask.reshape((n, *((1, 1) if m == 1 else by_head[1:]), rows, t))
        is_seen = mask
        if mask.type.is_float:
            is_seen = mask.compare("not_equal", -inf)
            scores = scores + mask.where(is_seen, 0)
        seen = is_seen if seen is None else seen.apply("logical_and", is_seen)
    if seen is not None:
        scores = scores.where(seen, HIDDEN)
    weights = _with_sinks(scores, sinks) if sinks else scores.apply("softmax")
    if seen is not None:  # a query without keys
        weights = weights.where(seen, 0)
    return [weights.apply("matmul", values).reshape((b, heads, s, e))]


def _seen(info: OperatorInfo, scores: Term) -> Term:
    """Return which keys each query reads: none behind it, before its window or its chunk."""
    rows, keys = scores.type.shape[-2:]
    ones = scores.number(1).apply("broadcast_to", shape=(rows, keys))
    seen = ones.apply("tril")
    if window := info.attributes["window"]:
        seen = seen - ones.apply("tril", diagonal=-window)
    if chunk := info.attributes["chunk"]:
        chunks = (-(-rows // chunk), -(-keys // chunk))
        of_chunks = scores.number(1).apply("broadcast_to", shape=chunks).apply("tril", diagonal=-1)
        each = of_chunks.reshape((chunks[0], 1, chunks[1], 1))
        each = each.apply("broadcast_to", shape=(chunks[0], chunk, chunks[1], chunk))
        before = each.reshape((chunks[0] * chunk, chunks[1] * chunk))
        seen = seen - before.apply("slice", begin=(0, 0), size=(rows, keys)) * seen
    return seen.compare("greater", 0)


def _with_sinks(scores: Term, sinks: Term) -> Term:
    """Return the weights of keys beside a sink in each row, which has no value."""
    b, h, g, rows, keys = scores.type.shape
    column = sinks.reshape((1, h, g, 1, 1)).apply("broadcast_to", shape=(b, h, g, rows, 1))
    weights = scores.apply("concat", column, axis=4).apply("softmax")
    return weights.apply("slice", begin=(0,) * 5, size=(b, h, g, rows, keys))


COMPOSITIONS: Mapping[str, Composition] = {
    "batch_normalize": _batch_normalize,
    "channel_mean": _channel_mean,
    "channel_variance": _channel_variance,
    "elu": _elu,
    "exp_sum": _exp_sum,
    "exp_sum_and_pick": _exp_sum_and_pick,
    "fast_gelu": _fast_gelu,
    "gelu": _gelu,
    "group_norm": _group_norm,
    "l2_normalize": _l2_normalize,
    "layer_norm": partial(_row_norm, centred=True),
    "max_pool": _max_pool,
    "mish": _mish,
    "pick": _pick,
    "rms_norm": partial(_row_norm, centred=False),
    "scaled_dot_product_attention": _attention,
    "selu": _elu,
    "sigmoid_cross_entropy": _sigmoid_cross_entropy,
    "silu": _silu,
    "softmax_cross_entropy": _softmax_cross_entropy,
    "softsign": _softsign,
    "sparse_softmax_cross_entropy": _sparse_cross_entropy,
}
