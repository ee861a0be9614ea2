"""Gradients in the forward pass, transforms of functions, and what acts on their gradients."""

from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, hessian, jacrev, jvp, vjp, vmap
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from own_gradients.functions import Reversal
from own_gradients.layers import Cases, Net, changed, forward


def _slope(found: Tensor, x: Tensor, **how: Any) -> Tensor:
    return torch.autograd.grad(found.sum(), x, create_graph=True, **how)[0]


def _between_hook_and_penalty(m: Net, x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    h = m.a(x)
    slope = _slope(h.tanh().square(), x)
    h.register_hook(lambda g: g.clamp(-0.01, 0.01))
    return m.b(h.tanh()) + slope.mean()


def _penalty_on_weights(m: Net, x: Tensor) -> Tensor:
    y = m.b(torch.tanh(m.a(x)))
    slopes = torch.autograd.grad(y.square().mean(), [m.a.weight, m.b.bias], create_graph=True)
    return y + sum(s.square().sum() for s in slopes)


def _penalty_in_checkpoint(m: Net, x: Tensor) -> Tensor:
    def inner(h: Tensor) -> Tensor:
        h = h.detach().requires_grad_()
        return m.b(torch.tanh(h)) + _slope(m.b(h.sin()).square(), h).mean()

    return checkpoint(inner, m.a(x), use_reentrant=False) + m.b(m.a(x))


def _penalty_of_reversal(m: Net, x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    return m.b(m.a(x)) + _slope(Reversal.apply(m.a(x), 0.5).sin(), x).mean()


def _detached_slope(m: Net, x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    y = m.b(torch.tanh(m.a(x)))
    (slope,) = torch.autograd.grad(y.square().sum(), x, retain_graph=True)
    return m.b(torch.tanh(m.a(x - 0.1 * slope.sign()))) + y


def _written_slope(m: Net, x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    slope = _slope(torch.tanh(m.a(x)).square(), x)
    slope = slope.clone()
    slope[:, 0] = 0
    slope.mul_(2)
    return m.b(m.a(x)) * slope.square().mean()


def _slope_of_view(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    left, right = h[:, :4], h[:, 4:]
    slope = _slope((left.sin() * right).square(), left)
    return m.b(h) + slope.mean()


def _slope_of_written(m: Net, x: Tensor) -> Tensor:
    h = m.a(x) * 1
    h[:, 0] = h[:, 1] * 2
    slope = _slope(h.sin().square(), h)
    return m.b(h) + slope.mean()


def _slopes_of_both(m: Net, x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    h = m.a(x).tanh()
    to_x, to_h = torch.autograd.grad(m.b(h).square().sum(), [x, h], create_graph=True)
    return m.b(h) * to_x.mean() + to_h.square().mean()


def _unused(m: Net, x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    found = torch.autograd.grad(
        m.a(x).sin().sum(), [x, m.b.weight], create_graph=True, allow_unused=True
    )
    return m.b(m.a(x)) + found[0].mean() + (0.0 if found[1] is None else 1.0)


def _no_grad_slope(m: Net, x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    slope = _slope(m.a(x).sin(), x)
    with torch.no_grad():
        step = slope * 0.1
    return m.b(m.a(x + step)) + slope.mean()


def _unrolled(m: Net, x: Tensor) -> Tensor:
    weights = dict(m.a.named_parameters())
    for _ in range(3):
        loss = functional_call(m.a, weights, (x,)).sin().square().mean()
        slopes = torch.autograd.grad(loss, [*weights.values()], create_graph=True)
        weights = {n: w - 0.3 * s for (n, w), s in zip(weights.items(), slopes, strict=True)}
    return m.b(functional_call(m.a, weights, (x,)))


def _implicit(m: Net, x: Tensor) -> Tensor:
    z = torch.zeros(x.shape[0], 8, dtype=x.dtype)
    with torch.no_grad():
        for _ in range(5):
            z = torch.tanh(0.1 * z + m.a(x))
    return m.b(torch.tanh(0.1 * z + m.a(x)))


def _vmapped_grad(m: Net, x: Tensor) -> Tensor:
    def energy(v: Tensor) -> Tensor:
        return m.b(torch.tanh(m.a(v))).square().sum()

    return m.b(m.a(x)) + vmap(grad(energy))(x).square().mean()


def _ensemble(m: Net, x: Tensor) -> Tensor:
    weights = torch.stack([m.a.weight, m.a.weight.sin(), m.a.weight * 2])
    found = vmap(lambda w: F.linear(x, w, m.a.bias).tanh())(weights)
    return m.b(found.mean(0))


def _jacobian(m: Net, x: Tensor) -> Tensor:
    return m.b(m.a(x)) * vmap(jacrev(lambda v: torch.tanh(m.a(v))))(x).square().mean()


def _curved(m: Net, x: Tensor) -> Tensor:
    return m.b(m.a(x)) + vmap(hessian(lambda v: m.b(m.a(v).sin()).sum()))(x).square().mean()


def _pushed(m: Net, x: Tensor) -> Tensor:
    value, moved = jvp(lambda v: m.a(v).tanh(), (x,), (x.cos(),))
    return m.b(value + moved)


def _pulled(m: Net, x: Tensor) -> Tensor:
    value, pull = vjp(lambda v: m.a(v).tanh(), x)
    return m.b(value) + pull(value)[0].mean()


def _outer_values(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    return m.b(h) + grad(lambda v: (v * h).sin().sum())(h.detach()).mean()


def _in_axes(m: Net, x: Tensor) -> Tensor:
    pairs = vmap(vmap(lambda a, b: (a * b).tanh(), (0, None)), (None, 0), out_dims=1)
    h = m.a(x)
    return m.b(pairs(h[:, 0], h[:, 1]) @ h)


def _chunked(m: Net, x: Tensor) -> Tensor:
    return m.b(vmap(lambda v: m.a(v).softmax(-1), chunk_size=3)(x))


def _late_hook(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    slope = _slope(h.tanh(), m.a.weight)
    handle = h.register_hook(lambda g: g * 3)
    handle.remove()
    return m.b(h) + slope.mean()


def _removed_hook(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    handle = h.register_hook(lambda g: g * 3)
    slope = _slope(h.tanh(), m.a.weight)
    handle.remove()
    return m.b(h) + slope.mean()


def _hooked_slope(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    h.register_hook(lambda g: g * 3)
    return m.b(h) + _slope(h.sin(), h).square().mean()


def _module_hook(m: Net) -> None:
    m.a.register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))
    plain = m.forward

    def doubled(x: Tensor, y: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        return plain(x, y) + _slope(m.a(x).sin(), x).square().mean()

    m.forward = doubled  # type: ignore[method-assign]


def _batched(m: Net, x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    h = m.a(x).tanh()
    rows = torch.stack([h.detach(), h.detach() * 2])
    (found,) = torch.autograd.grad(h, x, rows, is_grads_batched=True, create_graph=True)
    return m.b(h) + found.mean()


def _edge(m: Net, x: Tensor) -> Tensor:
    h = m.a(x).sin()
    edge = torch.autograd.graph.get_gradient_edge(h)
    return m.b(h) + torch.autograd.grad((h * h).sum(), [edge], create_graph=True)[0].mean()


def _clipped_step(m: Net, x: Tensor) -> Tensor:
    loss = m.b(m.a(x).tanh()).square().mean()
    slopes = torch.autograd.grad(loss, [*m.parameters()], create_graph=True)
    norm = torch.sqrt(torch.stack([s.square().sum() for s in slopes]).sum())
    share = torch.clamp(0.1 / norm, max=1.0)
    return m.b(F.linear(x, m.a.weight - slopes[0] * share))


def _probability(m: Net, x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    share = torch.clamp(m.a(x) * 5, 0, 1)  # zeros and ones
    loss = F.binary_cross_entropy(share, (m.a(x) > 0).to(x.dtype))
    return m.b(share) + _slope(loss, x).mean() * 1e-9


def _corners(m: Net, x: Tensor) -> Tensor:
    h = m.a(x).relu()  # zeros
    found = F.elu(h) + F.huber_loss(h, 0 * h, reduction="none") + F.softshrink(h)
    return m.b(found) + _slope(found, h).square().mean()


def _hooked_parameter(m: Net) -> None:
    m.a.weight.register_hook(lambda g: g.clamp(-0.02, 0.02))
    plain = m.forward

    def doubled(x: Tensor, y: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        return plain(x, y) + _slope(m.a(x).sin(), x).square().mean()

    m.forward = doubled  # type: ignore[method-assign]


TRANSFORMS: Cases = {
    "penalty_of_hooked": forward(_between_hook_and_penalty),
    "penalty_on_weights": forward(_penalty_on_weights),
    "penalty_in_checkpoint": forward(_penalty_in_checkpoint),
    "penalty_of_reversal": forward(_penalty_of_reversal),
    "attack_by_sign": forward(_detached_slope),
    "slope_written": forward(_written_slope),
    "slope_of_view": forward(_slope_of_view),
    "slope_of_written": forward(_slope_of_written),
    "slopes_of_input_and_features": forward(_slopes_of_both),
    "slope_unused": forward(_unused),
    "slope_without_gradients": forward(_no_grad_slope),
    "unrolled_optimizer": forward(_unrolled),
    "fixed_point_last_step": forward(_implicit),
    "func_vmap_grad": forward(_vmapped_grad),
    "func_ensemble": forward(_ensemble),
    "func_jacobian": forward(_jacobian),
    "func_hessian": forward(_curved),
    "func_jvp": forward(_pushed),
    "func_vjp": forward(_pulled),
    "func_closes_over": forward(_outer_values),
    "func_vmap_axes": forward(_in_axes),
    "func_vmap_chunks": forward(_chunked),
    "hook_removed_before_it_acts": forward(_late_hook),
    "hook_removed_after_a_gradient": forward(_removed_hook),
    "penalty_by_hooked": forward(_hooked_slope),
    "module_hook_and_penalty": changed(_module_hook),
    "slopes_batched": forward(_batched),
    "slope_by_an_edge": forward(_edge),
    "clipped_inner_step": forward(_clipped_step),
    "penalty_of_probabilities_at_ends": forward(_probability),
    "penalty_at_corners": forward(_corners),
    "parameter_hook_and_penalty": changed(_hooked_parameter),
}
