"""Small modules whose gradients are not those of their operators alone, against autograd.

    OMP_NUM_THREADS=1 python benchmarks/imported/torch_own_gradients.py [--write] [NAME ...]

Each is imported in float64, and its loss and gradients on one rank and on four compared with those
of PyTorch: RIGHT if none differs by more than 1e-9, REFUSED with the sentence that says why, or
WRONG. `--write` writes `torch_own_gradients.md`.
"""

import argparse
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch_compare as compare
import torch_second
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from shardwright.dataflow.cotangents import gradient_name
from shardwright.frontends.torch import import_module
from shardwright.ir.errors import ShardwrightError
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.differentiate import Differentiate

Case = tuple[nn.Module, tuple[Tensor, ...]]
Between = Callable[[Tensor], Tensor]
PAGE = Path(__file__).with_suffix(".md")
TOLERANCE = 1e-9


class Net(nn.Module):
    """Two layers with something between them, and a loss."""

    def __init__(self, between: Between = torch.tanh) -> None:
        super().__init__()
        self.a, self.b, self.between = nn.Linear(6, 8), nn.Linear(8, 3), between

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss."""
        return F.mse_loss(self.b(self.between(self.a(x))), y)


def _inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(8, 6, dtype=torch.float64), torch.randn(8, 3, dtype=torch.float64)


def between(function: Between) -> Callable[[], Case]:
    """Return a case with a function between two layers."""
    return lambda: (Net(function).double(), _inputs())


def changed(change: Callable[[Net], Any]) -> Callable[[], Case]:
    """Return a case whose module something is done to when it is made."""

    def make() -> Case:
        module = Net().double()
        change(module)
        return module, _inputs()

    return make


def forward(function: Callable[[Net, Tensor], Tensor]) -> Callable[[], Case]:
    """Return a case whose prediction is a function of the module and its input."""

    class Own(Net):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return F.mse_loss(function(self, x), y)

    return lambda: (Own().double(), _inputs())


# Functions


class StraightThrough(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.sign(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g.clamp(-0.05, 0.05)


class Masked(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.round(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * (x.abs() <= 1)


class Reversal(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, strength: float) -> Tensor:
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return -ctx.strength * g, None


class Clipped(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * (0.1 / g.norm().clamp(min=0.1))


class Rows(Function):
    """The gradient of each row has at most a norm."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g / g.norm(dim=1, keepdim=True).clamp(min=1e-3)


class Product(Function):
    """A linear layer with its own backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.has_bias = b is not None
        return x @ w.t() + (0 if b is None else b)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        gx = g @ w if ctx.needs_input_grad[0] else None
        gw = g.t() @ x if ctx.needs_input_grad[1] else None
        return gx, gw, g.sum(0) if ctx.has_bias else None


class Split(Function):
    @staticmethod
    def forward(x: Tensor, size: float) -> tuple[Tensor, Tensor]:
        return x.exp(), x * size

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output[0])
        ctx.size = inputs[1]

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> tuple[Tensor, None]:
        (y,) = ctx.saved_tensors
        return 2 * g * y + ctx.size * h * h, None


class Largest(Function):
    """A value and its place, which has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        value, place = x.max(1)
        ctx.mark_non_differentiable(place)
        ctx.save_for_backward(place)
        ctx.size = x.shape[1]
        return value, place

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor) -> Tensor:
        (place,) = ctx.saved_tensors
        return F.one_hot(place, ctx.size) * g[:, None] * 3


class Once(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.sigmoid()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return g * y * (1 - y) * 1.5


class Constant(Function):
    """A loss that ignores the gradient of its result."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.square().sum()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x


class NoGradient(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> None:
        return None


class InPlace(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 2


class GradientInPlace(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.tanh()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g.clone().mul_(0.5).clamp_(-0.01, 0.01)


class Inner(Function):
    """Calls another function in both passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return StraightThrough.apply(x) * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return StraightThrough.apply(g) * 0.1


class Recomputed(Function):
    """Runs autograd in its backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.tanh()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            again = x.detach().requires_grad_()
            y = again.tanh()
        return torch.autograd.grad(y, again, g)[0] * 3


class Jvp(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Tensor:
        return t * 3


class Vmapped(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.saved_tensors[0].cos() * 2


class Vjp(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> Tensor:
        return g * 7


class Unmaterialized(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, h: Tensor | None) -> Tensor | None:
        return g if h is None else h


class SparseTop(Function):
    """Only the two largest gradients of each row are passed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        _, places = g.abs().topk(2, dim=1)
        return torch.zeros_like(g).scatter(1, places, g.gather(1, places))


class Branching(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g / g.norm() if g.norm() > 1 else g


class SignGradient(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g.sign() * 0.01


class Noisy(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 2 + 0.1


class Derived(Masked):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 0.5 * g


class WithModule(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: nn.Module) -> Tensor:
        ctx.layer = layer
        return layer(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g @ ctx.layer.weight, None


class Kept(Function):
    """Keeps tensors as attributes of its context."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.x, ctx.y = x, y
        return x * y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        return g * ctx.y * 2, (g * ctx.x).sum(0, keepdim=True)


straight_through = StraightThrough.apply
_linear_product = Product.apply


def _in_a_loop(x: Tensor) -> Tensor:
    for i in range(3):
        x = Reversal.apply(torch.tanh(x), 0.5 + i)
    return x


def _made_inside(x: Tensor) -> Tensor:
    class Made(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * 5

    return Made.apply(x)


def _largest(x: Tensor) -> Tensor:
    value, place = Largest.apply(x)
    return x * value[:, None] + place[:, None]


def _frozen_argument(x: Tensor) -> Tensor:
    return Kept.apply(x, torch.ones(1, 8, dtype=x.dtype) * 2)


def _off(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = StraightThrough.apply(x)
    return x * y


def _after_a_function(x: Tensor) -> Tensor:
    return torch.tanh(Once.apply(x) * x)


FUNCTIONS: Mapping[str, Callable[[], Case]] = {
    "straight_through": between(StraightThrough.apply),
    "straight_through_kept_apply": between(lambda x: straight_through(x)),
    "straight_through_masked": between(Masked.apply),
    "straight_through_detach": between(lambda x: x + (x.round() - x).detach()),
    "reversal": between(lambda x: Reversal.apply(x, 0.5)),
    "clipped_by_norm": between(Clipped.apply),
    "clipped_rows": between(Rows.apply),
    "linear_with_bias": forward(lambda m, x: m.b(Product.apply(x, m.a.weight, m.a.bias))),
    "linear_without_bias": forward(lambda m, x: m.b(_linear_product(x, m.a.weight))),
    "setup_context_two_results": between(lambda x: sum(Split.apply(x, 0.3))),
    "two_results_one_read": between(lambda x: Split.apply(x, 0.3)[1]),
    "non_differentiable_result": between(_largest),
    "once_differentiable": between(Once.apply),
    "after_a_function": between(_after_a_function),
    "gradient_ignored": forward(lambda m, x: m.b(m.a(x)) * Constant.apply(m.a(x))),
    "none_for_a_gradient": between(lambda x: NoGradient.apply(x) + x),
    "mark_dirty": between(lambda x: InPlace.apply(x * 1)),
    "gradient_in_place": between(GradientInPlace.apply),
    "function_in_a_function": between(Inner.apply),
    "autograd_in_backward": between(Recomputed.apply),
    "jvp_alone": between(Jvp.apply),
    "vmap_rule": between(Vmapped.apply),
    "vjp_for_backward": between(Vjp.apply),
    "unmaterialized": between(lambda x: Unmaterialized.apply(x)[0]),
    "largest_gradients": between(SparseTop.apply),
    "branch_on_gradient": between(Branching.apply),
    "sign_of_gradient": between(SignGradient.apply),
    "constant_added": between(Noisy.apply),
    "inherited_forward": between(Derived.apply),
    "function_with_a_module": forward(lambda m, x: WithModule.apply(m.a(x), m.b)),
    "context_attributes": between(lambda x: Kept.apply(x, x[:1].tanh())),
    "untrained_argument": between(_frozen_argument),
    "functions_in_a_loop": between(_in_a_loop),
    "function_made_inside": between(_made_inside),
    "function_without_gradients": between(_off),
    "function_of_a_parameter": forward(
        lambda m, x: F.linear(m.a(x), Reversal.apply(m.b.weight, 2.0))
    ),
    "function_under_vmap": between(lambda x: torch.func.vmap(Vmapped.apply)(x)),
}


# Hooks


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
    return lambda: (Backward(*hooks, pre=pre).double(), _inputs())


def _tied_hook() -> Case:
    module = Tied()
    module.a.weight.register_hook(lambda g: g.clamp(-0.05, 0.05))
    return module.double(), _inputs()


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


HOOKS: Mapping[str, Callable[[], Case]] = {
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
    "module_backward_hook_of_two": lambda: (Twice().double(), _inputs()),
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
    "saved_tensor_hooks": forward(lambda m, x: _packed(m, x)),
    "save_on_cpu": forward(lambda m, x: _on_cpu(m, x)),
}


def _packed(m: Net, x: Tensor) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.round(), lambda t: t):
        return m.b(torch.tanh(m.a(x)))


def _on_cpu(m: Net, x: Tensor) -> Tensor:
    with torch.autograd.graph.save_on_cpu():
        return m.b(torch.tanh(m.a(x)))


# Checkpoints, modes, writes, parametrizations


class Checkpointed(nn.Module):
    """A block that is computed again in the backward pass, beside a path around it."""

    def __init__(self, use_reentrant: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.use_reentrant = use_reentrant
        self.i, self.o = nn.Linear(6, 8), nn.Linear(8, 3)
        self.block = nn.Sequential(
            nn.Linear(8, 16), nn.GELU(), nn.Dropout(dropout), nn.Linear(16, 8)
        )

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss."""
        h = self.i(x)
        again = checkpoint(self.block, h, use_reentrant=self.use_reentrant)
        return F.mse_loss(self.o(h + again), y) + F.mse_loss(self.o(h), y)


def _checkpointed_inputs(m: Net, x: Tensor) -> Tensor:
    return m.b(torch.tanh(checkpoint(m.a, x, use_reentrant=True)))


def _checkpointed_function(m: Net, x: Tensor) -> Tensor:
    return m.b(checkpoint(lambda h: Reversal.apply(h, 0.3) + h, m.a(x), use_reentrant=True))


def _checkpoint_in_checkpoint(m: Net, x: Tensor) -> Tensor:
    def inner(h: Tensor) -> Tensor:
        return checkpoint(torch.sin, h * 2, use_reentrant=True)

    return m.b(checkpoint(inner, m.a(x), use_reentrant=True))


def _sequential(m: Net, x: Tensor) -> Tensor:
    parts = nn.Sequential(m.a, nn.Tanh(), m.b)
    return checkpoint_sequential(parts, 2, x, use_reentrant=False)


def _checkpoint_off(m: Net, x: Tensor) -> Tensor:
    with torch.no_grad():
        h = checkpoint(m.a, x.clone(), use_reentrant=True)
    return m.b(h)


def _off_region(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    with torch.no_grad():
        scale = h.abs().mean()
    return m.b(h / scale)


@torch.no_grad()
def _scale(h: Tensor) -> Tensor:
    return h.abs().mean()


def _set_off(m: Net, x: Tensor) -> Tensor:
    torch.set_grad_enabled(False)
    h = m.a(x)
    torch.set_grad_enabled(True)
    return m.b(h) + m.b(m.a(x))


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


def _backward_inside(m: Net, x: Tensor) -> Tensor:
    m.a(x).square().mean().backward()
    return m.b(torch.tanh(m.a(x)))


def _functional_call(m: Net, x: Tensor) -> Tensor:
    weights = {"weight": m.a.weight * 2, "bias": m.a.bias.sin()}
    return m.b(torch.func.functional_call(m.a, weights, (x,)))


def _autocast(m: Net, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return m.b(m.a(x)).double()


def _autocast_off(m: Net, x: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        return m.b(m.a(x))


def _nested(m: Net, x: Tensor) -> Tensor:
    rows = torch.nested.nested_tensor([x[:2], x[2:]], layout=torch.jagged)
    return m.b(torch.tanh(m.a(rows.values())))


def _branch(m: Net, x: Tensor) -> Tensor:
    return m.b(m.a(x)) if x.sum() > 0 else m.b(m.a(-x))


def _compiled(m: Net) -> None:
    m.a = torch.compile(m.a, backend="eager")


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
    return Net(lambda h: h @ weight).double(), _inputs()


def _shared() -> Case:
    return Tied().double(), _inputs()


def _dropped() -> Case:
    return Checkpointed(True, 0.5).double().eval(), _inputs()


OTHERS: Mapping[str, Callable[[], Case]] = {
    "checkpoint_reentrant": lambda: (Checkpointed(True).double(), _inputs()),
    "checkpoint_not_reentrant": lambda: (Checkpointed(False).double(), _inputs()),
    "checkpoint_reentrant_dropout_off": _dropped,
    "checkpoint_reentrant_of_inputs": forward(_checkpointed_inputs),
    "checkpoint_reentrant_function": forward(_checkpointed_function),
    "checkpoint_in_checkpoint": forward(_checkpoint_in_checkpoint),
    "checkpoint_sequential": forward(_sequential),
    "checkpoint_without_gradients": forward(_checkpoint_off),
    "no_grad": forward(_off_region),
    "no_grad_decorator": forward(lambda m, x: m.b(m.a(x) / _scale(m.a(x)))),
    "set_grad_enabled": forward(_set_off),
    "inference_mode": forward(lambda m, x: m.b(m.a(x)) * _inferred(m, x).clone()),
    "detach_in_place": forward(_detached_in_place),
    "input_requires_grad": forward(_required),
    "requires_grad_inside": forward(_frozen_inside),
    "requires_grad_flag_inside": forward(_frozen_by_flag),
    "data_written": forward(_data_write),
    "data_read": forward(_data_read),
    "view_written": forward(_written_view),
    "parameter_written": forward(_written_parameter),
    "backward_inside": forward(_backward_inside),
    "functional_call": forward(_functional_call),
    "autocast": forward(_autocast),
    "autocast_off": forward(_autocast_off),
    "nested_tensor": forward(_nested),
    "branch_on_data": forward(_branch),
    "compiled_part": changed(_compiled),
    "parametrization": changed(_symmetric),
    "weight_norm": changed(lambda m: parametrizations.weight_norm(m.a)),
    "spectral_norm": changed(lambda m: parametrizations.spectral_norm(m.a)),
    "orthogonal": changed(lambda m: parametrizations.orthogonal(m.a)),
    "buffers_written": lambda: (Counting().double(), _inputs()),
    "buffer_with_gradient": lambda: (BufferWithGradient().double(), _inputs()),
    "captured_parameter": _captured,
    "shared_weight": _shared,
    "frozen_parameter": changed(lambda m: m.a.weight.requires_grad_(False)),
}


def _inferred(m: Net, x: Tensor) -> Tensor:
    with torch.inference_mode():
        return m.a(x).mean()


def _wide(make: Callable[[], Any]) -> Callable[[], Case]:
    def case() -> Case:
        module, inputs = make()
        return module.double(), tuple(t.double() if t.is_floating_point() else t for t in inputs)

    return case


SECOND = {f"second_{name}": _wide(make) for name, make in torch_second.CASES.items()}
CASES: Mapping[str, Callable[[], Case]] = {**FUNCTIONS, **HOOKS, **OTHERS, **SECOND}


def judged(make: Callable[[], Case], devices: int = 4) -> tuple[str, str]:
    """Return the verdict on a case, and what was measured or said."""
    torch.manual_seed(0)
    module, inputs = make()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            imported = import_module(module, inputs)
    except ShardwrightError as error:
        return "REFUSED", re.sub(r"0x[0-9a-f]+|\d{12,}", "...", str(error))
    found = compare.gradients_differ(module, inputs, imported)
    surplus = _surplus(module, inputs, imported)
    many = compare.on_ranks(module, inputs, devices, cluster="cpu")
    one = max(found.loss, found.gradient, surplus)
    text = f"{one:.0e}, {max(many):.0e}" + f", missing {found.missing}" * bool(found.missing)
    is_right = max(one, *many) < TOLERANCE and not found.missing
    return "RIGHT" if is_right else "WRONG", text


def _surplus(module: nn.Module, inputs: Any, imported: Any) -> float:
    """Return the largest gradient of parameters that PyTorch does not train."""
    untrained = [n for n, p in module.named_parameters() if p.grad is None]
    graph = Differentiate().run(Canonicalize().run(imported.graph))
    names = [gradient_name(n) for n in untrained if gradient_name(n) in graph.values]
    if not names:
        return 0.0
    made = compare.run(graph, imported.initial, compare.arrays_of(imported, inputs), names)
    return max(float(np.abs(array).max()) for array in made.values())


def main() -> int:
    """Print the verdict on every case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*CASES, []], metavar="NAME")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    rows = []
    for name in options.names or CASES:
        verdict, text = judged(CASES[name])
        rows.append((name, verdict, text))
        print(f"{verdict:8}{name}: {text}", flush=True)
    if options.write:
        PAGE.write_text(_page(rows))
    return any(verdict == "WRONG" for _, verdict, _ in rows)


def _page(rows: list[tuple[str, str, str]]) -> str:
    counts = {v: sum(verdict == v for _, verdict, _ in rows) for v in ("RIGHT", "REFUSED", "WRONG")}
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    lines = [f"| `{n}` | {v} | {t.replace('|', chr(92) + '|')} |" for n, v, t in rows]
    head = (
        "# Modules that change gradients, against autograd\n\n"
        "Written by `torch_own_gradients.py --write`. Largest relative difference of the loss and "
        "all gradients\nin float64, on one rank and on four; or the sentence that refuses.\n\n"
        f"PyTorch {torch.__version__.split('+')[0]}, {len(rows)} modules: {told}.\n\n"
        "| module | verdict | difference, or why not |\n|---|---|---|\n"
    )
    return head + "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
