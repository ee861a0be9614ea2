"""Writes, flags, buffers, parametrizations and shared weights."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrizations, parametrize, prune

from own_gradients.hooks import Tied
from own_gradients.layers import Case, Cases, Net, changed, forward, inputs


def _detached_in_place(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    k = h * 2
    h.detach_()
    return m.b(h + k)


def _required(m: Net, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    return m.b(torch.tanh(m.a(x)))


def _frozen_inside(m: Net, x: Tensor) -> Tensor:
    m.a.weight.requires_grad_(False)
    return m.b(torch.tanh(m.a(x)))


def _frozen_by_flag(m: Net, x: Tensor) -> Tensor:
    m.a.weight.requires_grad = False
    return m.b(torch.tanh(m.a(x)))


def _data_write(m: Net, x: Tensor) -> Tensor:
    m.a.weight.data.clamp_(-0.2, 0.2)
    return m.b(torch.tanh(m.a(x)))


def _data_read(m: Net, x: Tensor) -> Tensor:
    return m.b(torch.tanh(m.a(x))) + m.b.weight.data.sum()


def _written_view(m: Net, x: Tensor) -> Tensor:
    h = m.a(x) * 1
    h[:, ::2] *= 2
    h[:, 0] = h[:, 1].clone() + 1
    return m.b(h)


def _written_parameter(m: Net, x: Tensor) -> Tensor:
    with torch.no_grad():
        m.a.weight.mul_(0.9)
    return m.b(m.a(x))


class Symmetric(nn.Module):
    """A parametrization: the symmetric part."""

    def forward(self, w: Tensor) -> Tensor:
        """Return it."""
        return w.triu() + w.triu(1).mT


def _symmetric(m: Net) -> None:
    m.a = nn.Linear(6, 6).double()
    m.b = nn.Linear(6, 3).double()
    parametrize.register_parametrization(m.a, "weight", Symmetric())


class Counting(Net):
    """Buffers that it writes to: a count, a running mean, a queue."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("queue", torch.zeros(4, 8))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss."""
        h = self.a(x)
        self.count += 1
        self.mean.mul_(0.9).add_(0.1 * h.detach().mean(0))
        with torch.no_grad():
            self.queue[0] = h.mean(0)
        return F.mse_loss(self.b(h - self.mean + self.queue.sum(0)), y)


class BufferWithGradient(Net):
    """A buffer that is written with a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(8))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss."""
        h = self.a(x)
        self.state = self.state.detach() * 0.5 + h.mean(0)
        return F.mse_loss(self.b(h + self.state), y)


def _captured() -> Case:
    weight = nn.Parameter(torch.randn(8, 8, dtype=torch.float64))
    return Net(lambda h: h @ weight).double(), inputs()


def _views_of_views(m: Net, x: Tensor) -> Tensor:
    h = m.a(x) * 1
    h.view(-1)[::2].add_(1)
    h.t()[0].mul_(3)
    return m.b(h)


def _into_empty(m: Net, x: Tensor) -> Tensor:
    h = torch.empty(8, 8, dtype=x.dtype)
    h.copy_(m.a(x))
    swapped = torch.zeros_like(h)
    swapped[:4] = h[4:]
    swapped[4:].copy_(h[:4])
    return m.b(swapped)


def _accumulated(m: Net, x: Tensor) -> Tensor:
    h, rows = m.a(x) * 1, torch.tensor([0, 0, 1])
    h.index_put_((rows, rows + 1), torch.ones(3, dtype=x.dtype), accumulate=True)
    h.index_add_(0, rows, h[:3].clone())
    return m.b(h)


def _written_detached(m: Net, x: Tensor) -> Tensor:
    h = m.a(x) * 1
    k = h.sin()
    h.data.mul_(2)
    return m.b(h + k)


def _data_set(m: Net, x: Tensor) -> Tensor:
    h = m.a(x) * 1
    h.data = h.data * 2
    return m.b(h)


def _asked(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    k = h.detach()
    with torch.no_grad():
        off = torch.is_grad_enabled()
    scale = 1.0 + 2 * h.requires_grad + 4 * k.requires_grad + 8 * h.is_leaf + 16 * off
    return m.b(h * scale)


def _pruned(m: Net) -> None:
    prune.l1_unstructured(m.a, "weight", amount=0.5)


def _cached(m: Net) -> None:
    parametrizations.orthogonal(m.a)
    plain = m.forward

    def twice(x: Tensor, y: Tensor) -> Tensor:
        with parametrize.cached():
            return plain(x, y) + m.a.weight.square().sum()

    m.forward = twice  # type: ignore[method-assign]


TENSORS: Cases = {
    "views_of_views_written": forward(_views_of_views),
    "written_into_empty": forward(_into_empty),
    "written_twice_at_one_place": forward(_accumulated),
    "data_of_features_written": forward(_written_detached),
    "data_of_features_set": forward(_data_set),
    "flags_asked": forward(_asked),
    "pruned": changed(_pruned),
    "parametrization_cached": changed(_cached),
    "detach_in_place": forward(_detached_in_place),
    "input_requires_grad": forward(_required),
    "requires_grad_inside": forward(_frozen_inside),
    "requires_grad_flag_inside": forward(_frozen_by_flag),
    "data_written": forward(_data_write),
    "data_read": forward(_data_read),
    "view_written": forward(_written_view),
    "parameter_written": forward(_written_parameter),
    "parametrization": changed(_symmetric),
    "weight_norm": changed(lambda m: parametrizations.weight_norm(m.a)),
    "spectral_norm": changed(lambda m: parametrizations.spectral_norm(m.a)),
    "orthogonal": changed(lambda m: parametrizations.orthogonal(m.a)),
    "buffers_written": lambda: (Counting().double(), inputs()),
    "buffer_with_gradient": lambda: (BufferWithGradient().double(), inputs()),
    "captured_parameter": _captured,
    "shared_weight": lambda: (Tied().double(), inputs()),
    "frozen_parameter": changed(lambda m: m.a.weight.requires_grad_(False)),
}
