"""Mixtures of experts as people write them in PyTorch: all compute the same sum."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode

HIDDEN, INNER, EXPERTS, TOP = 8, 12, 4, 2


class ExactGroups(TorchFunctionMode):
    """Computes grouped products in float64, which PyTorch does not, but in traces."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__name__", "") != "_grouped_mm" or torch.compiler.is_exporting():
            return func(*args, **(kwargs or {}))
        rows, matrices = args
        ends = kwargs["offs"].tolist()
        begins = [0, *ends[:-1]]
        return torch.cat([rows[b:e] @ m for b, e, m in zip(begins, ends, matrices, strict=True)])


class Expert(nn.Module):
    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(HIDDEN, INNER, bias=bias) for _ in range(2))
        self.down = nn.Linear(INNER, HIDDEN, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Mixture(nn.Module):
    """A loss of a mixture; `mix` is the way it is written."""

    fused = False
    bias = False

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(HIDDEN, EXPERTS, bias=False)
        if self.fused:
            self.gate_up = nn.Parameter(torch.randn(EXPERTS, 2 * INNER, HIDDEN) * 0.3)
            self.down = nn.Parameter(torch.randn(EXPERTS, HIDDEN, INNER) * 0.3)
        else:
            self.experts = nn.ModuleList(Expert(self.bias) for _ in range(EXPERTS))

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights, chosen = torch.topk(F.softmax(self.router(x), -1), TOP, -1)
        return weights / weights.sum(-1, keepdim=True), chosen

    def mix(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        with ExactGroups():
            tokens = x.reshape(-1, HIDDEN)
            found = self.mix(tokens, *self.route(tokens)).reshape(x.shape)
        places = torch.linspace(-1, 1, x.numel(), dtype=x.dtype, device=x.device)
        return (found * places.reshape(x.shape)).sum()


def chunks(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


class Where(Mixture):
    """As Mixtral was written."""

    def mix(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        total, marks = torch.zeros_like(x), F.one_hot(chosen, EXPERTS).permute(2, 1, 0)
        for expert in range(EXPERTS):
            choice, token = torch.where(marks[expert])
            rows = x[None, token].reshape(-1, HIDDEN)
            made = self.experts[expert](rows) * weights[token, choice, None]
            total.index_add_(0, token, made.to(x.dtype))
        return total


class WhereBiased(Where):
    bias = True


class Continues(Mixture):
    """An expert without tokens is passed over."""

    def mix(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        total, marks = torch.zeros_like(x), F.one_hot(chosen, EXPERTS).permute(2, 1, 0)
        for expert, layer in enumerate(self.experts):
            choice, token = torch.where(marks[expert])
            if token.numel() == 0:
                continue
            total.index_add_(0, token, layer(x[token]) * weights[token, choice, None])
        return total


class Hit(Mixture):
    """As transformers writes it, with the weights of all experts in one tensor."""

    fused = True

    def mix(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        with torch.no_grad():
            marks = F.one_hot(chosen, num_classes=EXPERTS).permute(2, 1, 0)
            hit = torch.greater(marks.sum(dim=(-1, -2)), 0).nonzero()
        for expert in hit:
            expert = expert[0]
            choice, token = torch.where(marks[expert])
            inner = chunks(F.linear(x[token], self.gate_up[expert]))
            made = F.linear(inner, self.down[expert]) * weights[token, choice, None]
            total.index_add_(0, token, made)
        return total


class HitModules(Mixture):
    """A loop over the experts that have tokens, each a module."""

    def mix(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        total, marks = torch.zeros_like(x), F.one_hot(chosen, EXPERTS).permute(2, 1, 0)
        for expert in (marks.sum((-1, -2)) > 0).nonzero().squeeze(-1).tolist():
            choice, token = torch.where(marks[expert])
            total.index_add_(
                0, token, self.experts[expert](x[token]) * weights[token, choice, None]
            )
        return total


class Masks(Mixture):
    """Tokens by masks, as in tutorials."""

    def mix(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        for expert, layer in enumerate(self.experts):
            mask = (chosen == expert).any(-1)
            if mask.any():
                share = (weights * (chosen == expert)).sum(-1)
                total[mask] += layer(x[mask]) * share[mask, None]
        return total


class Nonzero(Mixture):
    def mix(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        for expert, layer in enumerate(self.experts):
            token, choice = (chosen == expert).nonzero(as_tuple=True)
            total[token] += layer(x[token]) * weights[token, choice].unsqueeze(-1)
        return total


class Shared(Where):
    """What is added up begins with an expert of all tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = Expert()

    def mix(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        total = self.shared(x)
        for expert, layer in enumerate(self.experts):
            token, choice = torch.where(chosen == expert)
            total = total.index_add(0, token, layer(x[token]) * weights[token, choice, None])
        return total


class Grouped(Mixture):
    """Rows sorted by expert, and products of groups that end where a histogram says."""

    fused = True

    def ends(self, chosen: Tensor) -> Tensor:
        counts = torch.histc(chosen.float(), bins=EXPERTS, min=0, max=EXPERTS - 1)
        return counts.int().cumsum(0).to(torch.int32)

    def mix(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        flat = chosen.reshape(-1)
        order, ends = torch.argsort(flat, stable=True), self.ends(flat)
        rows = x[order // TOP]
        inner = chunks(F.grouped_mm(rows, self.gate_up.mT, offs=ends))
        made = F.grouped_mm(inner, self.down.mT, offs=ends)
        made = made * weights.reshape(-1)[order][:, None]
        return torch.zeros_like(x).index_add_(0, order // TOP, made)


class GroupedCounts(Grouped):
    def ends(self, chosen: Tensor) -> Tensor:
        return torch.bincount(chosen, minlength=EXPERTS).cumsum(0).to(torch.int32)


class GroupedMarks(Grouped):
    def ends(self, chosen: Tensor) -> Tensor:
        return F.one_hot(chosen, EXPERTS).sum(0).cumsum(0).to(torch.int32)


class Inverse(GroupedCounts):
    """Rows go back by the inverse of the order."""

    def mix(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        flat = chosen.reshape(-1)
        order, ends = torch.argsort(flat, stable=True), self.ends(flat)
        rows = x.repeat_interleave(TOP, 0)[order]
        inner = chunks(F.grouped_mm(rows, self.gate_up.mT, offs=ends))
        made = F.grouped_mm(inner, self.down.mT, offs=ends)
        made = made[torch.argsort(order)].view(-1, TOP, HIDDEN)
        return (made * weights[..., None]).sum(1)


class Scattered(GroupedCounts):
    """Rows are scattered back."""

    def mix(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        flat = chosen.reshape(-1)
        order, ends = flat.sort(stable=True).indices, self.ends(flat)
        rows = x.unsqueeze(1).expand(-1, TOP, -1).reshape(-1, HIDDEN)[order]
        inner = chunks(F.grouped_mm(rows, self.gate_up.mT, offs=ends))
        made = F.grouped_mm(inner, self.down.mT, offs=ends)
        back = torch.zeros_like(made)
        back[order] = made
        return torch.einsum("tkd,tk->td", back.view(-1, TOP, HIDDEN), weights)


class Dense(Mixture):
    """Every expert computes every token."""

    fused = True

    def mix(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        shares = torch.zeros(len(x), EXPERTS, dtype=x.dtype).scatter(1, chosen, weights)
        inner = chunks(torch.einsum("td,efd->tef", x, self.gate_up))
        return (torch.einsum("tef,edf->ted", inner, self.down) * shares[..., None]).sum(1)


class DenseModules(Mixture):
    def mix(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        shares = (F.one_hot(chosen, EXPERTS) * weights[..., None]).sum(1)
        made = [layer(x) * shares[:, i, None] for i, layer in enumerate(self.experts)]
        return torch.stack(made).sum(0)


class DenseEinsum(Mixture):
    def mix(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        shares = torch.zeros(len(x), EXPERTS, dtype=x.dtype).scatter(1, chosen, weights)
        made = torch.stack([layer(x) for layer in self.experts], 1)
        return torch.einsum("ted,te->td", made, shares)


DENSE = {kind.__name__: kind for kind in (Dense, DenseModules, DenseEinsum)}
WAYS = {
    kind.__name__: kind
    for kind in (
        Where, WhereBiased, Continues, Hit, HitModules, Masks, Nonzero, Shared,
        Grouped, GroupedCounts, GroupedMarks, Inverse, Scattered,
    )
}  # fmt: skip


def inputs_of(kind: str) -> Tensor:
    """Return tokens: random ones, or those that all choose the same experts, of which one none."""
    torch.manual_seed(1)
    x = torch.randn(2, 6, HIDDEN, dtype=torch.float64)
    return x if kind == "random" else x[:1, :1] * (1 + torch.rand(2, 6, 1, dtype=torch.float64))
