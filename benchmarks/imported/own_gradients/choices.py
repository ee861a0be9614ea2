"""Points at which a derivative is a choice: equal elements, zeros, bounds, infinite numbers."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from own_gradients.layers import Cases, between

Function = Callable[[Tensor], Tensor]


def _pairs(h: Tensor) -> Tensor:
    """Return elements twice, equal but with derivatives of one and of two."""
    return torch.stack([h, 2 * h - h.detach()], -1).flatten(1)


def equal(function: Function) -> Any:
    """Return a case of a function of rows in which all elements stand twice."""
    return between(lambda h: h + _wide(function(_pairs(h)), h))


def zeros(function: Function) -> Any:
    """Return a case of a function of features of which some, and one whole row, are zero."""
    keep = (torch.arange(64).view(8, 8) % 3 > 0).double()
    keep[2] = 0
    return between(lambda h: h + _wide(function(h * keep), h))


def bounds(function: Function) -> Any:
    """Return a case of a function of features of which some are exactly at its bounds."""
    steps = torch.tensor([-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0, 6.0]).double()

    def at(h: Tensor) -> Tensor:
        exact = h - h.detach() + steps.roll(1)
        return h + _wide(function(exact), h)

    return between(at)


def _wide(found: Tensor, like: Tensor) -> Tensor:
    """Return a result as a term for features, whatever its shape is."""
    return found if found.shape == like.shape else found.sum() * like.tanh()


def _below(h: Tensor, rows: Tensor) -> Tensor:
    """Return scores of which those of some rows are all hidden."""
    return h.masked_fill(rows[:, None], -math.inf)


_HIDDEN = torch.tensor([True, False, False, True, False, False, False, False])


def _hidden_softmax(h: Tensor) -> Tensor:
    return _below(h, _HIDDEN).softmax(-1).nan_to_num(0.0)


def _hidden_logsumexp(h: Tensor) -> Tensor:
    found = _below(h, _HIDDEN).logsumexp(-1)
    return h * torch.where(found.isinf(), 0.0, found)[:, None]


def _attended(h: Tensor) -> Tensor:
    q = h.view(1, 1, 8, 8)
    mask = torch.ones(8, 8, dtype=torch.bool).tril() & ~_HIDDEN[:, None]
    return F.scaled_dot_product_attention(q, q, q, mask).view(8, 8)


def _attended_by_adding(h: Tensor) -> Tensor:
    q = h.view(1, 1, 8, 8)
    mask = torch.zeros(8, 8, dtype=h.dtype).masked_fill(_HIDDEN[:, None], -math.inf)
    return F.scaled_dot_product_attention(q, q, q, mask).nan_to_num(0.0).view(8, 8)


def _filled(h: Tensor) -> Tensor:
    found = h.masked_fill(h > 0.3, math.inf)
    return torch.where(found.isinf(), h.sin(), found)


def _distances(p: float) -> Function:
    def of(h: Tensor) -> Tensor:
        rows = h[torch.tensor([0, 1, 1, 2])]
        return torch.cdist(rows, h[:4], p)

    return of


# PyTorch leaves open which of equal elements has the gradient of `quantile` and `kthvalue`.
EQUAL: dict[str, Function] = {
    "max_of_a_dimension": lambda p: p.max(1).values,
    "min_of_a_dimension": lambda p: p.min(1).values,
    "max_of_all": lambda p: p.max(),
    "amax": lambda p: p.amax(1),
    "aminmax": lambda p: torch.aminmax(p, dim=1).max - torch.aminmax(p, dim=1).min,
    "median": lambda p: p.median(1).values,
    "median_of_all": lambda p: p.median(),
    "topk_of_all_pairs": lambda p: p.topk(4, 1).values,
    "maximum": lambda p: torch.maximum(p[:, ::2], p[:, 1::2]),
    "fmin": lambda p: torch.fmin(p[:, ::2], p[:, 1::2]),
    "clamp_by_tensors": lambda p: torch.clamp(p[:, ::2], min=p[:, 1::2]),
    "clip_by_both": lambda p: p[:, ::2].clamp(p[:, 1::2] - 1, p[:, 1::2]),
    "cummax": lambda p: p.cummax(1).values,
    "cummin": lambda p: p.cummin(1).values[:, ::2],
    "infinity_norm": lambda p: torch.linalg.vector_norm(p, math.inf, 1),
    "least_norm": lambda p: torch.linalg.vector_norm(p, -math.inf, 1),
    "max_pool": lambda p: F.max_pool1d(p[None], 2)[0],
    "max_pool_overlapping": lambda p: F.max_pool1d(p[None], 3, 2, 1)[0],
    "adaptive_max_pool": lambda p: F.adaptive_max_pool1d(p[None], 5)[0],
    "scatter_amax": lambda p: (
        torch.zeros(8, 8)
        .double()
        .scatter_reduce(1, torch.arange(16).expand(8, 16) // 2, p, "amax", include_self=False)
    ),
    "absolute_difference": lambda p: (p[:, ::2] - p[:, 1::2]).abs(),
    "l1_loss": lambda p: F.l1_loss(p[:, ::2], p[:, 1::2]),
    "smooth_l1_without_width": lambda p: F.smooth_l1_loss(p[:, ::2], p[:, 1::2], beta=0.0),
    "hinge": lambda p: F.margin_ranking_loss(p[:, ::2], p[:, 1::2], torch.ones(8, 8)),
    "where_by_themselves": lambda p: torch.where(p[:, ::2] >= p[:, 1::2], p[:, ::2], p[:, 1::2]),
    "logaddexp": lambda p: torch.logaddexp(p[:, ::2], p[:, 1::2]),
    "hypot_of_differences": lambda p: torch.hypot(p[:, ::2] - p[:, 1::2], p[:, ::2]),
}
ZEROS: dict[str, Function] = {
    "norm": lambda z: z.norm(dim=1),
    "norm_of_one": lambda z: z.norm(p=1, dim=1),
    "norm_of_three": lambda z: torch.linalg.vector_norm(z, 3, 1),
    "norm_of_all": lambda z: z[2].norm() + z.norm(),
    "matrix_norm": lambda z: torch.linalg.matrix_norm(z.view(2, 4, 8)),
    "normalize": lambda z: F.normalize(z, dim=1),
    "cosine_similarity": lambda z: F.cosine_similarity(z, z.roll(1, 0), 1),
    "pairwise_distance": lambda z: F.pairwise_distance(z, z.roll(1, 0)),
    "cdist_of_equal_rows": _distances(2.0),
    "cdist_by_sums": _distances(1.0),
    "cdist_by_maxima": _distances(math.inf),
    "cdist_of_three": _distances(3.0),
    "pdist": lambda z: torch.pdist(z[torch.tensor([0, 1, 1, 4])]),
    "abs": torch.abs,
    "signed": lambda z: z.sign() * z,
    "product": lambda z: z.prod(1),
    "product_of_all_but_one": lambda z: (z + (z == 0) * torch.eye(8)).prod(1),
    "cumprod": lambda z: z.cumprod(1),
    "powers": lambda z: z.pow(2) + z.pow(1) + z.pow(0) + z.abs().pow(1.5),
    "power_of_exponents": lambda z: torch.pow(z.abs() + (z == 0) * 0.5, z),
    "zero_to_tensors": lambda z: torch.pow(0.0, z.square() + 1) + torch.pow(2.0, z),
    "xlogy": lambda z: torch.special.xlogy(z.square(), z.square() + (z == 0)),
    "xlogy_of_zero": lambda z: torch.special.xlogy(z * 0, z.square()),
    "entr": lambda z: torch.special.entr(z.square() + 0.1),
    "sinc": torch.sinc,
    "std_of_equal_elements": lambda z: z.std(1) + z.var(1, correction=0),
    "renorm": lambda z: z.renorm(2, 0, 0.5),
    "heaviside": lambda z: torch.heaviside(z.detach(), torch.tensor(0.5).double()) * z,
    "copysign": lambda z: torch.copysign(z.exp(), z),
    "angle": lambda z: torch.atan2(z, z + (z == 0)),
    "logit_inside": lambda z: torch.special.logit(z.sigmoid(), 0.3),
    "frexp_by_hand": lambda z: torch.ldexp(z, torch.tensor([1, 2, 3, 0, -1, 1, 2, 3])),
    "nansum": lambda z: torch.where(z == 0, math.nan, z).nansum(1),
    "nanmean": lambda z: torch.where(z == 0, math.nan, z)[[0, 1, 3]].nanmean(1),
    "square_root_behind_where": lambda z: torch.where(z > 0, (z.clamp(min=0) + (z <= 0)).sqrt(), z),
    "logsumexp_of_logs": lambda z: (z.square() + 1e-300).log().logsumexp(1),
    "logcumsumexp": lambda z: torch.logcumsumexp(z, 1),
}
BOUNDS: dict[str, Function] = {
    "clamp": lambda b: b.clamp(-1, 1),
    "clamp_below": lambda b: b.clamp(min=0.5),
    "hardtanh": F.hardtanh,
    "relu6": F.relu6,
    "threshold": lambda b: F.threshold(b, 0.5, 7.0),
    "leaky_relu": lambda b: F.leaky_relu(b, 0.1),
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "tanhshrink": F.tanhshrink,
    "hardswish": F.hardswish,
    "celu": lambda b: F.celu(b, 0.5),
    "selu": F.selu,
    "rrelu_eval": lambda b: F.rrelu(b, 0.1, 0.3, training=False),
    "prelu": lambda b: F.prelu(b, torch.full((8,), 0.2).double()),
    "logsigmoid": F.logsigmoid,
    "huber": lambda b: F.huber_loss(b, 0 * b, delta=0.5),
    "softplus_with_threshold": lambda b: F.softplus(b, beta=2, threshold=6),
    "round_and_floor": lambda b: b.round() + b.floor() + b.ceil() + b.trunc() + b.frac(),
    "remainder": lambda b: b.remainder(0.5) + b.fmod(1.0) + torch.remainder(b, -b.abs() - 1),
    "divided_by_rounding": lambda b: torch.div(b, 0.5, rounding_mode="floor") * b,
    "log1p_and_expm1": lambda b: (b.abs()).log1p() + b.expm1(),
    "lerp_at_ends": lambda b: torch.lerp(b, b * 2, b.clamp(0, 1)),
}
HIDDEN: Cases = {
    "softmax_of_hidden_rows": between(_hidden_softmax),
    "logsumexp_of_hidden_rows": between(_hidden_logsumexp),
    "attention_of_hidden_rows": between(_attended),
    "attention_of_rows_with_infinite_scores": between(_attended_by_adding),
    "infinite_features_replaced": between(_filled),
}
CHOICES: Cases = (
    {f"equal_{name}": equal(function) for name, function in EQUAL.items()}
    | {f"zero_{name}": zeros(function) for name, function in ZEROS.items()}
    | {f"bound_{name}": bounds(function) for name, function in BOUNDS.items()}
    | HIDDEN
)
