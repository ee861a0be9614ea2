"""Checkpoints, modes of autograd, and parts that run otherwise."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from own_gradients.functions import Reversal
from own_gradients.layers import Case, Cases, Net, changed, forward, inputs


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


def _dropped() -> Case:
    return Checkpointed(True, 0.5).double().eval(), inputs()


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


def _inferred(m: Net, x: Tensor) -> Tensor:
    with torch.inference_mode():
        return m.a(x).mean()


def _autocast(m: Net, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return m.b(m.a(x)).double()


def _autocast_off(m: Net, x: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        return m.b(m.a(x))


def _functional_call(m: Net, x: Tensor) -> Tensor:
    weights = {"weight": m.a.weight * 2, "bias": m.a.bias.sin()}
    return m.b(torch.func.functional_call(m.a, weights, (x,)))


def _compiled(m: Net) -> None:
    m.a = torch.compile(m.a, backend="eager")


def _nested(m: Net, x: Tensor) -> Tensor:
    rows = torch.nested.nested_tensor([x[:2], x[2:]], layout=torch.jagged)
    return m.b(torch.tanh(m.a(rows.values())))


def _branch(m: Net, x: Tensor) -> Tensor:
    return m.b(m.a(x)) if x.sum() > 0 else m.b(m.a(-x))


def _backward_inside(m: Net, x: Tensor) -> Tensor:
    m.a(x).square().mean().backward()
    return m.b(torch.tanh(m.a(x)))


REGIONS: Cases = {
    "checkpoint_reentrant": lambda: (Checkpointed(True).double(), inputs()),
    "checkpoint_not_reentrant": lambda: (Checkpointed(False).double(), inputs()),
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
    "backward_inside": forward(_backward_inside),
    "functional_call": forward(_functional_call),
    "autocast": forward(_autocast),
    "autocast_off": forward(_autocast_off),
    "nested_tensor": forward(_nested),
    "branch_on_data": forward(_branch),
    "compiled_part": changed(_compiled),
}
