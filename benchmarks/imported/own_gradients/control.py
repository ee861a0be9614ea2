"""Branches, loops, random numbers, compiled parts, and modules that change while they run."""

from typing import Any

import torch
from torch import Tensor, nn
from torch._higher_order_ops.while_loop import while_loop
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrizations

from own_gradients.layers import Case, Cases, Net, changed, forward, inputs


def _cond(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    return m.b(torch.cond(h.sum() > 0, torch.sin, lambda v: v * 2, (h,)))


def _cond_of_weights(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    return torch.cond(x.sum() > 0, lambda v: m.b(v), lambda v: m.b(v.tanh()) * 2, (h,))


def _cond_with_hook(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    h.register_hook(lambda g: g.clamp(-0.01, 0.01))
    return m.b(torch.cond(h.sum() > 100, torch.sin, torch.cos, (h,)))


def _cond_penalty(m: Net, x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    h = torch.cond(x.sum() > 0, lambda v: m.a(v).sin(), lambda v: m.a(v).tanh(), (x,))
    (slope,) = torch.autograd.grad(h.sum(), x, create_graph=True)
    return m.b(h) + slope.square().mean()


def _while_counted(m: Net, x: Tensor) -> Tensor:
    def more(i: Tensor, h: Tensor) -> Tensor:
        return i < 3

    def step(i: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return i + 1, torch.tanh(h) * 1.1

    return m.b(while_loop(more, step, (torch.tensor(0), m.a(x)))[1])


def _while_on_data(m: Net, x: Tensor) -> Tensor:
    def more(h: Tensor) -> Tensor:
        return h.abs().sum() > 1

    (h,) = while_loop(more, lambda h: (h * 0.5,), (m.a(x).detach(),))
    return m.b(m.a(x) + h)


def _loop_of_python(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    while h.abs().max() > 0.1:
        h = h * 0.5
    return m.b(h)


def _assertion(m: Net, x: Tensor) -> Tensor:
    if not torch.isfinite(x).all():
        raise ValueError("not finite")
    torch._assert(x.shape[1] == 6, "six features")
    return m.b(m.a(x))


def _where(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    return m.b(torch.where(h > 0, h.sqrt(), h * 0.1).nan_to_num(0.0))


def _masked_branch(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    rows = h[x[:, 0] > 0]
    return m.b(h) + m.b(rows).sum()


def _random(m: Net, x: Tensor) -> Tensor:
    return m.b(m.a(x) + 0 * torch.randn(8, 8, dtype=x.dtype))


def _seeded(m: Net, x: Tensor) -> Tensor:
    torch.manual_seed(7)
    return m.b(m.a(x) * torch.bernoulli(torch.full((8, 8), 1.0, dtype=x.dtype)))


def _dropped(m: Net, x: Tensor) -> Tensor:
    return m.b(F.dropout(m.a(x), 0.5, training=False) + F.dropout(m.a(x), 0.0, training=True))


def _generator(m: Net, x: Tensor) -> Tensor:
    made = torch.Generator().manual_seed(3)
    return m.b(m.a(x) + torch.randn(8, 8, generator=made, dtype=x.dtype))


def _compiled_function(m: Net, x: Tensor) -> Tensor:
    return m.b(torch.compile(lambda h: torch.tanh(h) * 2, backend="eager")(m.a(x)))


def _scripted(m: Net) -> None:
    m.b = torch.jit.trace(m.b, torch.zeros(8, 8, dtype=torch.float64))


class Counted(Net):
    """Changes an attribute whenever it runs, and reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss."""
        self.calls += 1
        return F.mse_loss(self.b(self.a(x) * min(self.calls, 1)), y)


class Cached(Net):
    """Keeps a result of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: Any = None

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss."""
        if self.kept is None:
            self.kept = self.a.weight.detach().norm()
        return F.mse_loss(self.b(self.a(x) / self.kept), y)


class Averaged(Net):
    """A moving average of its weights, which it predicts with, too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("slow", self.a.weight.detach().clone())

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss."""
        with torch.no_grad():
            self.slow.lerp_(self.a.weight, 0.1)
        target = F.linear(x, self.slow, self.a.bias.detach())
        return F.mse_loss(self.b(self.a(x)), y) + F.mse_loss(self.a(x).tanh(), target)


class Quantized(Net):
    """A codebook with a straight-through estimator, and its two losses."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Embedding(5, 8)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss."""
        h = self.a(x)
        index = torch.cdist(h, self.codes.weight).argmin(1)
        code = self.codes(index)
        loss = F.mse_loss(code, h.detach()) + 0.25 * F.mse_loss(h, code.detach())
        return loss + F.mse_loss(self.b(h + (code - h).detach()), y)


def _norms(m: Net) -> None:
    parametrizations.spectral_norm(parametrizations.weight_norm(m.a))


def _list_of_hooks(m: Net) -> None:
    m.a.register_forward_hook(lambda m, i, o: o.sin())
    m.a.register_forward_hook(lambda m, i, o: o * 2)
    m.a.register_full_backward_hook(lambda m, gi, go: None)
    m.b.register_forward_pre_hook(lambda m, i: (i[0].detach() + i[0],))


def _keywords(m: Net) -> None:
    m.b.register_forward_pre_hook(lambda m, args, named: ((args[0] * 3,), named), with_kwargs=True)
    m.a.register_forward_hook(lambda m, i, named, o: o + 1, with_kwargs=True)


def _detaching_hook(m: Net) -> None:
    m.a.register_forward_hook(lambda m, i, o: o.detach() * 0.5 + o * 0.5)


def _global_hook(m: Net, x: Tensor) -> Tensor:
    handle = nn.modules.module.register_module_forward_hook(lambda m, i, o: o * 2)
    try:
        return m.b(m.a(x))
    finally:
        handle.remove()


def _retained(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    h.retain_grad()
    return m.b(h if h.grad is None else h + h.grad)


def _made(kind: type[nn.Module]) -> Any:
    def case() -> Case:
        return kind().double(), inputs()

    return case


CONTROL: Cases = {
    "cond": forward(_cond),
    "cond_of_weights": forward(_cond_of_weights),
    "cond_with_hook": forward(_cond_with_hook),
    "cond_and_penalty": forward(_cond_penalty),
    "while_loop_counted": forward(_while_counted),
    "while_loop_on_data": forward(_while_on_data),
    "while_of_python": forward(_loop_of_python),
    "assertions": forward(_assertion),
    "where_with_nan_gradient": forward(_where),
    "rows_selected_by_data": forward(_masked_branch),
    "random_without_effect": forward(_random),
    "random_with_seed": forward(_seeded),
    "dropout_without_effect": forward(_dropped),
    "random_of_a_generator": forward(_generator),
    "compiled_function": forward(_compiled_function),
    "traced_part": changed(_scripted),
    "attribute_counts": _made(Counted),
    "attribute_caches": _made(Cached),
    "average_of_weights": _made(Averaged),
    "codebook": _made(Quantized),
    "norms_of_norms": changed(_norms),
    "forward_hooks": changed(_list_of_hooks),
    "forward_hooks_with_names": changed(_keywords),
    "forward_hook_detaches": changed(_detaching_hook),
    "forward_hook_of_all": forward(_global_hook),
    "retain_grad_read": forward(_retained),
}
