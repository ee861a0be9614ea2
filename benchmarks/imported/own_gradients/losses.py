"""Losses with weights, ignored labels, reductions, and edges of their arguments."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from own_gradients.layers import Cases, Net, forward

Loss = Callable[[Tensor, Tensor], Tensor]
_LABELS = torch.tensor([0, 3, 7, 7, 1, 5, 2, 2])
_IGNORED = torch.tensor([0, 3, 9, 7, 1, 9, 2, 2])
_WEIGHTS = torch.tensor([1.0, 2, 0, 0.5, 1, 3, 1, 0.1]).double()
_SIGNS = torch.tensor([1, -1, 1, 1, -1, -1, 1, -1])


def added(loss: Loss) -> Any:
    """Return a case whose prediction has a loss of its features and the input added."""

    def use(m: Net, x: Tensor) -> Tensor:
        h = m.a(x)
        found = loss(h, x)
        return m.b(h) + (found.mean() if found.dim() else found)

    return forward(use)


def _distances(h: Tensor, x: Tensor) -> Tensor:
    far = nn.TripletMarginWithDistanceLoss(
        distance_function=lambda a, b: 1 - F.cosine_similarity(a, b), margin=0.3, swap=True
    )
    return far(h, h.roll(1, 0), h.flip(0))


def _positive_and_unlabelled(h: Tensor, x: Tensor) -> Tensor:
    """A risk that is not negative, by a branch that `where` takes."""
    positive = (x[:, 0] > 0).double()
    risk = F.softplus(h[:, 0])
    negative = (risk * (1 - positive)).sum() - 0.4 * (risk * positive).sum()
    return torch.where(negative < 0, -negative, negative) + (F.softplus(-h[:, 0]) * positive).sum()


def _info_nce(h: Tensor, x: Tensor) -> Tensor:
    z = F.normalize(h, dim=1)
    scores = torch.cat([(z * z.roll(1, 0)).sum(1, keepdim=True), z @ z.detach().T], 1) / 0.1
    return F.cross_entropy(scores, torch.zeros(8, dtype=torch.long))


def _mean_of_valid(h: Tensor, x: Tensor) -> Tensor:
    """A mean over tokens that count, as trainers of language models write it."""
    flat = F.cross_entropy(h, _IGNORED % 8, reduction="none")
    valid = _IGNORED.ne(9)
    return (flat * valid).sum() / valid.sum().clamp(min=1)


def _z_loss(h: Tensor, x: Tensor) -> Tensor:
    return F.cross_entropy(h, _LABELS) + 1e-2 * h.logsumexp(-1).pow(2).mean()


def _structured(h: Tensor, x: Tensor) -> Tensor:
    """The log-likelihood of a linear chain, forward in time."""
    scores, moves = h.view(2, 4, 8), h[:8].detach().cos()
    alpha = scores[:, 0]
    for t in range(1, 4):
        alpha = torch.logsumexp(alpha[:, :, None] + moves, 1) + scores[:, t]
    path = scores.gather(2, _LABELS.view(2, 4, 1)).sum()
    return alpha.logsumexp(1).sum() - path


def _wasserstein(h: Tensor, x: Tensor) -> Tensor:
    ours, theirs = h.softmax(-1).cumsum(-1), x[:, :1].sigmoid().expand(8, 8).cumsum(-1) / 8
    return (ours - theirs).abs().sum(-1).mean()


def _mixture_density(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    weights, means, widths = h[:, :2].log_softmax(-1), h[:, 2:4], F.softplus(h[:, 4:6])
    target = x[:, :1]
    logs = weights - 0.5 * ((target - means) / widths) ** 2 - widths.log()
    return m.b(h) - torch.logsumexp(logs, -1).mean()


def _distribution(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    normal = torch.distributions.Normal(h[:, :4], F.softplus(h[:, 4:]) + 0.1)
    prior = torch.distributions.Normal(torch.zeros_like(h[:, :4]), 1.0)
    gap = torch.distributions.kl_divergence(normal, prior).mean()
    return m.b(h) + gap - normal.log_prob(x[:, :4]).mean()


def _contrastive(m: Net, x: Tensor) -> Tensor:
    z = F.normalize(m.a(x), dim=-1)
    scores = (z @ z.T / 0.5).masked_fill(torch.eye(8, dtype=torch.bool), float("-inf"))
    return m.b(z) + F.cross_entropy(scores, torch.arange(8) ^ 1)


def _triplet(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    return m.b(h) + F.triplet_margin_loss(h, h.roll(1, 0), h.roll(2, 0), margin=0.7)


def _focal(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    target = (x[:, :4] > 0).double()
    rough = F.binary_cross_entropy_with_logits(h[:, :4], target, reduction="none")
    return m.b(h) + ((1 - torch.exp(-rough)) ** 2 * rough).mean()


def _smoothed(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    labels = torch.tensor([0, 3, -100, 7, 1, -100, 2, 2])
    return m.b(h) + F.cross_entropy(h, labels, label_smoothing=0.1, ignore_index=-100)


def _dice(m: Net, x: Tensor) -> Tensor:
    p, t = m.a(x).sigmoid(), (x.sum(1, keepdim=True) > 0).double().expand(8, 8)
    return m.b(p) + 1 - (2 * (p * t).sum() + 1) / (p.sum() + t.sum() + 1)


def _orthogonal_penalty(m: Net, x: Tensor) -> Tensor:
    w = m.a.weight
    gram = w.T @ w - torch.eye(6, dtype=x.dtype)
    sparse = sum(p.abs().sum() for p in m.b.parameters())
    return m.b(m.a(x)) + 0.1 * torch.linalg.matrix_norm(gram) + sparse


LOSSES: Cases = {
    "entropy_weights_smoothing": added(
        lambda h, x: F.cross_entropy(h, _IGNORED, _WEIGHTS, ignore_index=9, label_smoothing=0.2)
    ),
    "entropy_weights_sum": added(
        lambda h, x: F.cross_entropy(h, _LABELS, _WEIGHTS, reduction="sum", label_smoothing=0.1)
    ),
    "entropy_weights_each": added(
        lambda h, x: F.cross_entropy(
            h, _IGNORED, _WEIGHTS, ignore_index=9, reduction="none", label_smoothing=0.1
        )
    ),
    "entropy_of_shares": added(
        lambda h, x: F.cross_entropy(
            h, h.detach().roll(1, 0).softmax(1), _WEIGHTS, label_smoothing=0.1
        )
    ),
    "entropy_trained_shares": added(lambda h, x: F.cross_entropy(h, h.roll(1, 1).softmax(1))),
    "entropy_of_pixels": added(
        lambda h, x: F.cross_entropy(
            h.view(2, 4, 2, 4), (_LABELS % 4).view(1, 2, 4).expand(2, 2, 4), _WEIGHTS[:4] + 1
        )
    ),
    "entropy_one_sample": added(lambda h, x: F.cross_entropy(h[0], torch.tensor(2))),
    "entropy_weight_of_zero": added(
        lambda h, x: F.cross_entropy(h, _LABELS, _WEIGHTS, reduction="none")
    ),
    "nll_weights": added(
        lambda h, x: F.nll_loss(h.log_softmax(1), _IGNORED, _WEIGHTS, ignore_index=9)
    ),
    "nll_negative_ignored": added(
        lambda h, x: F.nll_loss(
            h.view(2, 8, 4).log_softmax(1),
            torch.full((2, 4), 3).fill_diagonal_(-1),
            ignore_index=-1,
        )
    ),
    "binary_weights": added(
        lambda h, x: F.binary_cross_entropy(
            h.sigmoid(), x[:, :1].sigmoid().expand(8, 8), _WEIGHTS, reduction="sum"
        )
    ),
    "binary_positive_weights": added(
        lambda h, x: F.binary_cross_entropy_with_logits(
            h, (x[:, :1] > 0).double().expand(8, 8), _WEIGHTS + 1, pos_weight=_WEIGHTS
        )
    ),
    "binary_of_ends": added(lambda h, x: F.binary_cross_entropy(h.clamp(0, 1), (h > 0).double())),
    "divergence_of_logs": added(
        lambda h, x: F.kl_div(
            h.log_softmax(1), h.roll(1, 0).log_softmax(1), reduction="batchmean", log_target=True
        )
    ),
    "divergence_with_zeros": added(
        lambda h, x: F.kl_div(h.log_softmax(1), F.one_hot(_LABELS, 8).double(), reduction="sum")
    ),
    "poisson_full": added(lambda h, x: F.poisson_nll_loss(h, h.detach().exp() * 3, full=True)),
    "poisson_of_rates": added(
        lambda h, x: F.poisson_nll_loss(h.exp(), h.detach().abs(), log_input=False, eps=0.1)
    ),
    "gaussian_full": added(
        lambda h, x: F.gaussian_nll_loss(h[:, :4], x[:, :4], h[:, 4:].relu(), full=True, eps=0.01)
    ),
    "multi_margin": added(
        lambda h, x: F.multi_margin_loss(h, _LABELS, p=2, margin=0.7, weight=_WEIGHTS)
    ),
    "multilabel_margin": added(
        lambda h, x: F.multilabel_margin_loss(
            h, torch.tensor([3, 0, -1, 1, 2, 4, 5, 6]).expand(8, 8)
        )
    ),
    "multilabel_soft": added(
        lambda h, x: F.multilabel_soft_margin_loss(h, (h > 0.1).double(), weight=_WEIGHTS)
    ),
    "soft_margin": added(lambda h, x: F.soft_margin_loss(h, _SIGNS.expand(8, 8).double())),
    "hinge_embedding": added(lambda h, x: F.hinge_embedding_loss(h.abs(), _SIGNS.expand(8, 8))),
    "cosine_embedding": added(
        lambda h, x: F.cosine_embedding_loss(h, h.roll(1, 0), _SIGNS, margin=0.1)
    ),
    "triplet_of_own_distance": added(_distances),
    "triplet_swapped": added(
        lambda h, x: F.triplet_margin_loss(h, h.roll(1, 0), h.flip(0), p=1, swap=True)
    ),
    "huber_weighted": added(lambda h, x: F.huber_loss(h, x[:, :1].expand(8, 8), delta=0.3)),
    "squares_weighted": added(
        lambda h, x: F.mse_loss(h, x[:, :1].expand(8, 8), weight=_WEIGHTS.expand(8, 8))
    ),
    "risk_not_negative": added(_positive_and_unlabelled),
    "info_nce": added(_info_nce),
    "mean_of_valid_tokens": added(_mean_of_valid),
    "z_loss": added(_z_loss),
    "linear_chain": added(_structured),
    "earth_mover": added(_wasserstein),
    "mixture_density": forward(_mixture_density),
    "distributions": forward(_distribution),
    "contrastive": forward(_contrastive),
    "triplet": forward(_triplet),
    "focal": forward(_focal),
    "labels_smoothed_and_ignored": forward(_smoothed),
    "dice": forward(_dice),
    "penalties_of_weights": forward(_orthogonal_penalty),
}
