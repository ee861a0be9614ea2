"""Buffers, parametrizations, sharing, and modules that read what they compute."""

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parameters_to_vector, parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

from own_gradients.layers import Cases, Net, between, changed, forward, inner


def _tied(m: Net) -> None:
    m.a, m.b = nn.Linear(6, 6, bias=False).double(), nn.Linear(6, 3).double()
    m.b.weight = nn.Parameter(m.b.weight.detach())
    m.a.weight = nn.Parameter(m.a.weight.detach())
    m.between = lambda h: F.linear(h, m.a.weight.T) + F.linear(h, m.a.weight)


def _spectral(m: Net) -> None:
    parametrizations.spectral_norm(m.a)
    parametrizations.weight_norm(m.b)
    m.eval()


def _pruned(m: Net) -> None:
    torch.nn.utils.prune.random_unstructured(m.a, "weight", 0.4)
    parametrize.register_parametrization(m.b, "weight", nn.Softplus())


class Averaged(nn.Module):
    """A teacher by a running mean of weights, which has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = nn.Linear(8, 8), nn.Linear(8, 8)
        self.teacher.requires_grad_(False)

    def forward(self, h: Tensor) -> Tensor:
        """Return the student's result, drawn to the teacher's."""
        with torch.no_grad():
            goal = self.teacher(h).softmax(-1)
        found = self.student(h)
        return found + F.kl_div(found.log_softmax(-1), goal, reduction="batchmean")


def _nested(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    nested = torch.nested.as_nested_tensor([h[:3], h[3:]], layout=torch.jagged)
    return m.b(torch.cat((nested * 2).unbind()))


def _dropped_by_mask(m: Net, x: Tensor) -> Tensor:
    keep = (torch.arange(64).view(8, 8) % 5 != 0).double()
    return m.b(m.a(x) * keep / 0.8)


def _deep_supervision(m: Net, x: Tensor) -> Tensor:
    out, h = [], m.a(x)
    for _ in range(3):
        h = F.dropout(torch.tanh(h) + h, 0.3, training=False)
        out.append(m.b(h))
    return sum(w * one for w, one in zip((0.2, 0.3, 0.5), out, strict=True))


def _stop_halves(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    with torch.no_grad():
        scale = h.abs().amax(1, keepdim=True).clamp(min=1e-5)
    left, right = (h / scale).tensor_split(2, 1)
    return m.b(torch.cat([left.detach() * right, right], 1) * scale)


class Exp(torch.autograd.Function):
    """Saves its result."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float, mask: Any = None) -> Tensor:
        y = (x * scale).exp()
        ctx.save_for_backward(y)
        ctx.scale = scale
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (y,) = ctx.saved_tensors
        return g * y * ctx.scale * 2, None, None


class Needs(torch.autograd.Function):
    """Asks which gradients are needed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return (g * w if ctx.needs_input_grad[0] else None), (
            (g * x).sum(0) * 3 if ctx.needs_input_grad[1] else None
        )


class Quantize(torch.autograd.Function):
    """Trained step sizes (LSQ)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, step: Tensor) -> Tensor:
        ctx.save_for_backward(x, step)
        return (x / step).clamp(-4, 3).round() * step

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, step = ctx.saved_tensors
        q = x / step
        low, high = q < -4, q > 3
        inside = ~(low | high)
        slope = torch.where(inside, q.round() - q, torch.where(low, -4.0, 3.0))
        return g * inside, (g * slope).sum() / math.sqrt(x.numel() * 3)


class Quantized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Parameter(torch.tensor(0.21))

    def forward(self, h: Tensor) -> Tensor:
        return Quantize.apply(h, self.step)


class Rescaled(nn.Module):
    """Counts, averages, and a threshold that it writes while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("history", torch.zeros(3, 8), persistent=False)

    def forward(self, h: Tensor) -> Tensor:
        self.count.add_(1)
        momentum = 1 / (self.count.double() + 1)
        self.mean.copy_((1 - momentum) * self.mean + momentum * h.detach().mean(0))
        self.history = torch.roll(self.history, 1, 0)
        self.history[0] = self.mean
        return h - self.mean + self.history.sum(0) * 0.1


class Codes(nn.Module):
    """A codebook that moves by running means, with straight-through results (VQ-VAE 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", torch.randn(5, 8))
        self.register_buffer("sizes", torch.ones(5))

    def forward(self, h: Tensor) -> Tensor:
        near = torch.cdist(h.detach(), self.codes).argmin(1)
        chosen = F.one_hot(near, 5).to(h.dtype)
        q = chosen @ self.codes
        with torch.no_grad():
            self.sizes.mul_(0.9).add_(chosen.sum(0), alpha=0.1)
            self.codes.add_(0.1 * (chosen.T @ h / self.sizes[:, None] - self.codes))
        return h + (q - h).detach() + 0.25 * F.mse_loss(h, q.detach())


class Scale(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return w / w.norm(dim=1, keepdim=True).clamp(min=1e-6)

    def right_inverse(self, w: Tensor) -> Tensor:
        return w * 2


class Lists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(8, 8) / 3) for _ in range(3)])
        self.named = nn.ParameterDict(
            {"gain": nn.Parameter(torch.ones(8)), "shift": nn.Parameter(torch.zeros(8))}
        )
        self.weights.append(self.weights[0])

    def forward(self, h: Tensor) -> Tensor:
        for w in self.weights:
            h = torch.tanh(h @ w) + h
        return h * self.named["gain"] + self.named["shift"]


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        block = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.blocks = nn.ModuleList([block, copy.deepcopy(block), block])
        self.skip = nn.Parameter(torch.zeros(3))

    def forward(self, h: Tensor) -> Tensor:
        for i, block in enumerate(self.blocks):
            h = h + self.skip[i] * checkpoint(block, h, use_reentrant=i == 1) + block(h)
        return h


def _old_norms(m: Net) -> None:
    nn.utils.weight_norm(m.a, dim=1)
    nn.utils.spectral_norm(m.b)


def _two_parametrizations(m: Net) -> None:
    parametrize.register_parametrization(m.a, "weight", Scale())
    parametrize.register_parametrization(m.a, "weight", nn.Tanh())
    parametrize.register_parametrization(m.b, "bias", nn.Sigmoid())


def _householder(m: Net) -> None:
    parametrizations.orthogonal(m.a, orthogonal_map="householder")
    parametrizations.orthogonal(m.b, orthogonal_map="cayley")


def _swapped_weights(m: Net, x: Tensor) -> Tensor:
    vector = parameters_to_vector(m.b.parameters())
    shifted = {n: p * 0.5 for n, p in m.b.named_parameters()}
    return functional_call(m.b, shifted, m.a(x)) + vector.square().sum()


def _permuted(m: Net, x: Tensor) -> Tensor:
    return m.b(m.a(x)[torch.randperm(8, generator=torch.Generator().manual_seed(1))])


def _item(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    return m.b(h * h.abs().max().item())


def _int_of_sum(m: Net, x: Tensor) -> Tensor:
    n = int((x[:, 0] > 0).sum())
    return m.b(m.a(x)) * n


def _listed(m: Net, x: Tensor) -> Tensor:
    return m.b(m.a(x) * torch.tensor(x[:, :1].tolist()))


def _numpy(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    return m.b(h * torch.from_numpy(h.detach().numpy()))


def _early_exit(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    for _ in range(3):
        if (h.softmax(-1).max(-1).values > 0.9).all():
            break
        h = h * 2
    return m.b(h)


def _nan_guard(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    if torch.isnan(h).any() or h.isinf().any():
        h = torch.nan_to_num(h)
    return m.b(h)


def _compiled_module(m: Net) -> None:
    m.between = torch.compile(
        lambda h: torch.where(h > 0, h, h.expm1()) * 2, fullgraph=True, backend="eager"
    )


def _replaced_forward(m: Net) -> None:
    plain = m.b.forward
    m.b.forward = lambda h: plain(h).sigmoid()


def _monkey(m: Net) -> None:
    m.a.weight.requires_grad_(False)
    m.extra = nn.Parameter(torch.randn(8, 2).double())
    old = m.a.forward
    m.a.forward = lambda x: old(x) + x[:, :2] @ m.extra.T


def _hook_chain(m: Net) -> None:
    m.a.register_forward_hook(lambda _, i, o: o + i[0].sum(1, keepdim=True).detach())
    m.register_forward_hook(lambda _, i, o: o * 2)
    m.b.weight.register_hook(lambda g: g - g.mean(0))


STATES: Cases = {
    "one_weight_twice": changed(_tied),
    "spectral_and_weight_norm": changed(_spectral),
    "pruned_and_positive": changed(_pruned),
    "teacher_without_gradient": inner(Averaged),
    "nested_rows": forward(_nested),
    "dropout_by_a_mask": forward(_dropped_by_mask),
    "deep_supervision": forward(_deep_supervision),
    "scaled_without_gradient": forward(_stop_halves),
    "function_saves_its_result": between(lambda h: Exp.apply(h, 0.5)),
    "function_asks_for_needs": forward(
        lambda m, x: (
            m.b(Needs.apply(m.a(x), m.a.bias))
            + m.b(Needs.apply(x.sum(1, keepdim=True).expand(8, 8), m.a.bias))
        )
    ),
    "function_with_a_trained_step": inner(Quantized),
    "buffers_with_a_history": inner(Rescaled),
    "codes_that_move": inner(Codes),
    "lists_of_parameters": inner(Lists),
    "blocks_twice_and_copied": inner(Deep),
    "old_norms": changed(_old_norms),
    "parametrizations_of_one": changed(_two_parametrizations),
    "orthogonal_by_other_maps": changed(_householder),
    "weights_as_a_vector": forward(_swapped_weights),
    "permuted_by_a_generator": forward(_permuted),
    "item_of_features": forward(_item),
    "whole_number_of_samples": forward(_int_of_sum),
    "list_of_samples": forward(_listed),
    "through_numpy": forward(_numpy),
    "early_exit": forward(_early_exit),
    "guard_against_nan": forward(_nan_guard),
    "compiled_between": changed(_compiled_module),
    "forward_replaced": changed(_replaced_forward),
    "parameter_added_from_outside": changed(_monkey),
    "hooks_of_hooks": changed(_hook_chain),
}
