"""Hooks of tensors, parameters and modules."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from own_gradients.layers import Between, Case, Cases, Net, between, changed, forward, inputs


def _hooked(*hooks: Callable[[Tensor], Any]) -> Between:
    def run(h: Tensor) -> Tensor:
        for hook in hooks:
            h.register_hook(hook)
        return torch.tanh(h)

    return run


def _late(h: Tensor) -> Tensor:
    early = torch.sin(h)
    h.register_hook(lambda g: g.clamp(-0.01, 0.01))
    return early * torch.cos(h)


def _removed(h: Tensor) -> Tensor:
    handle = h.register_hook(lambda g: g * 0)
    handle.remove()
    return torch.tanh(h)


def _reading(h: Tensor) -> Tensor:
    k = torch.tanh(h)
    h.register_hook(lambda g: g * k.detach() + h.detach())
    return k * 2


def _in_place_hook(h: Tensor) -> Tensor:
    h.register_hook(lambda g: g.mul_(0.5))
    return torch.tanh(h)


def _hook_without_gradients(h: Tensor) -> Tensor:
    with torch.no_grad():
        h.register_hook(lambda g: g * 2)
    return torch.tanh(h)


def _written_after(h: Tensor) -> Tensor:
    h = h * 1
    h.register_hook(lambda g: g * 3)
    h.mul_(2)
    return torch.tanh(h)


def _view(h: Tensor) -> Tensor:
    part = h.view(-1)
    h.register_hook(lambda g: g * 3)
    return torch.tanh(part.view(h.shape)) * h


def _of_view(h: Tensor) -> Tensor:
    part = h[:, :4]
    part.register_hook(lambda g: g.clamp(-1e-3, 1e-3))
    return torch.cat([part, h[:, 4:]], 1)


def _observing(h: Tensor) -> Tensor:
    h.register_hook(lambda g: None)
    h.retain_grad()
    return torch.tanh(h)


def _node_hook(h: Tensor) -> Tensor:
    y = torch.tanh(h)
    y.grad_fn.register_hook(lambda gi, go: (gi[0] * 0.5,))
    return y


def _many(h: Tensor) -> Tensor:
    y = torch.tanh(h)
    torch.autograd.graph.register_multi_grad_hook((h, y), lambda gs: None)
    return y


def _own_hook(m: Net, x: Tensor) -> Tensor:
    m.a.weight.register_hook(lambda g: 2 * g)
    return m.b(m.a(x))


def _decayed(m: Net) -> None:
    w = m.a.weight
    w.register_hook(lambda g: g + 0.1 * w.detach())


def _halved(p: Tensor) -> None:
    p.grad.mul_(0.5)


def _clipped(p: Tensor) -> None:
    p.grad = p.grad.clamp(-0.01, 0.01)


def _stepping(p: Tensor) -> None:
    with torch.no_grad():
        p.add_(p.grad, alpha=-0.1)
    p.grad = None


def _data_step(p: Tensor) -> None:
    p.data.add_(p.grad, alpha=-0.1)


class Backward(Net):
    """The last layer has backward hooks."""

    def __init__(self, *hooks: Any, pre: Any = ()) -> None:
        super().__init__()
        for hook in hooks:
            self.b.register_full_backward_hook(hook)
        for hook in pre:
            self.b.register_full_backward_pre_hook(hook)


def _backward(*hooks: Any, pre: Any = ()) -> Callable[[], Case]:
    return lambda: (Backward(*hooks, pre=pre).double(), inputs())


def _tied_hook() -> Case:
    module = Tied()
    module.a.weight.register_hook(lambda g: g.clamp(-0.05, 0.05))
    return module.double(), inputs()


class Tied(Net):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.c = nn.Linear(6, 6), nn.Linear(6, 6)
        self.c.weight, self.b = self.a.weight, nn.Linear(6, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss."""
        return F.mse_loss(self.b(self.c(torch.tanh(self.a(x)))), y)


class Twice(nn.Module):
    """A module with two inputs and a tuple of results, and a backward hook."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Pair()
        self.part.register_full_backward_hook(
            lambda m, gi, go: (gi[0] * 2, gi[1].clamp(-0.01, 0.01))
        )
        self.a, self.b = nn.Linear(6, 8), nn.Linear(6, 8)
        self.c = nn.Linear(8, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss."""
        s, d = self.part(self.a(x), self.b(x))
        return F.mse_loss(self.c(s * d.tanh()), y)


class Pair(nn.Module):
    """A sum and a difference."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return both."""
        return x + y, x - y


def _legacy(m: Net) -> None:
    m.b.register_backward_hook(lambda m, gi, go: None)


def _packed(m: Net, x: Tensor) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.round(), lambda t: t):
        return m.b(torch.tanh(m.a(x)))


def _on_cpu(m: Net, x: Tensor) -> Tensor:
    with torch.autograd.graph.save_on_cpu():
        return m.b(torch.tanh(m.a(x)))


HOOKS: Cases = {
    "tensor_hook": between(_hooked(lambda g: 0.1 * g)),
    "tensor_hook_clamps": between(_hooked(lambda g: g.clamp(-0.01, 0.01))),
    "tensor_hook_norm": between(_hooked(lambda g: g / (g.norm() + 1e-6))),
    "tensor_hooks_in_order": between(_hooked(lambda g: g.clamp(-0.01, 0.01), lambda g: g + 0.02)),
    "tensor_hook_late": between(_late),
    "tensor_hook_removed": between(_removed),
    "tensor_hook_reads_values": between(_reading),
    "tensor_hook_in_place": between(_in_place_hook),
    "tensor_hook_observes": between(_observing),
    "tensor_hook_without_gradients": between(_hook_without_gradients),
    "tensor_hook_then_written": between(_written_after),
    "tensor_hook_with_a_view": between(_view),
    "tensor_hook_of_a_view": between(_of_view),
    "tensor_hook_nan_to_num": between(_hooked(lambda g: torch.nan_to_num(g) * 2)),
    "tensor_hook_where": between(_hooked(lambda g: torch.where(g.abs() > 0.01, g, 0.0))),
    "tensor_hook_mean": between(_hooked(lambda g: g - g.mean(0, keepdim=True))),
    "tensor_hook_float32": between(_hooked(lambda g: g.float().double())),
    "tensor_hook_branches": between(_hooked(lambda g: g if g.sum() > 0 else -g)),
    "node_hook": between(_node_hook),
    "multi_gradient_hook": between(_many),
    "parameter_hook": changed(lambda m: m.a.weight.register_hook(lambda g: 2 * g)),
    "parameter_hook_clamps": changed(
        lambda m: m.a.weight.register_hook(lambda g: g.clamp(-0.1, 0.1))
    ),
    "parameter_hook_norm": changed(
        lambda m: m.a.weight.register_hook(lambda g: g / g.norm().clamp(min=0.1))
    ),
    "parameter_hooks_all": changed(
        lambda m: [p.register_hook(lambda g: torch.clamp(g, -0.05, 0.05)) for p in m.parameters()]
    ),
    "parameter_hook_masks_rows": changed(
        lambda m: m.a.weight.register_hook(lambda g: g * (torch.arange(8) > 3)[:, None])
    ),
    "parameter_hook_reads_itself": changed(_decayed),
    "parameter_hook_in_forward": forward(_own_hook),
    "parameter_hook_tied": _tied_hook,
    "accumulation_hook_halves": changed(
        lambda m: m.a.weight.register_post_accumulate_grad_hook(_halved)
    ),
    "accumulation_hook_clips": changed(
        lambda m: m.a.weight.register_post_accumulate_grad_hook(_clipped)
    ),
    "accumulation_hook_steps": changed(
        lambda m: m.a.weight.register_post_accumulate_grad_hook(_stepping)
    ),
    "accumulation_hook_steps_data": changed(
        lambda m: m.a.weight.register_post_accumulate_grad_hook(_data_step)
    ),
    "module_backward_hook": _backward(lambda m, gi, go: (gi[0] * 0.5,)),
    "module_backward_hook_clamps": _backward(lambda m, gi, go: (gi[0].clamp(-0.01, 0.01),)),
    "module_backward_hook_observes": _backward(lambda m, gi, go: None),
    "module_backward_hook_of_results": _backward(lambda m, gi, go: (gi[0] * go[0].mean(),)),
    "module_backward_pre_hook": _backward(pre=(lambda m, go: (go[0] * 3,),)),
    "module_backward_hooks_both": _backward(
        lambda m, gi, go: (gi[0] + 1,), pre=(lambda m, go: (go[0].clamp(-0.1, 0.1),),)
    ),
    "module_backward_hook_of_two": lambda: (Twice().double(), inputs()),
    "module_backward_hook_whole": changed(
        lambda m: m.register_full_backward_pre_hook(lambda m, go: (go[0] * 2,))
    ),
    "module_backward_hook_old": changed(_legacy),
    "forward_hook_changes_result": changed(
        lambda m: m.a.register_forward_hook(lambda m, i, o: o * 2 + i[0][:, :1])
    ),
    "forward_pre_hook_changes_input": changed(
        lambda m: m.b.register_forward_pre_hook(lambda m, i: (i[0].sin(),))
    ),
    "saved_tensor_hooks": forward(_packed),
    "save_on_cpu": forward(_on_cpu),
}
