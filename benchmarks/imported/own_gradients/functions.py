"""Functions with a backward pass of their own."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812

from own_gradients.layers import Cases, between, forward


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


FUNCTIONS: Cases = {
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
