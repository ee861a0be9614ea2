"""Several at once: hooks in checkpoints, slopes of norms, Functions in scans, ragged rows."""

import contextlib
from typing import Any

import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from own_gradients.functions import Reversal
from own_gradients.layers import Case, Cases, Net, changed, forward, inner, inputs


class Shared(nn.Module):
    """One weight in two checkpoints, with a hook of the weight and hooks of features inside."""

    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.use_reentrant = use_reentrant
        self.i, self.one, self.o = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.two = nn.Linear(8, 8)
        self.two.weight = self.one.weight
        self.one.weight.register_hook(lambda g: g.clamp(-0.01, 0.01))

    def _block(self, h: Tensor) -> Tensor:
        h = self.one(h).tanh()
        if h.requires_grad:
            h.register_hook(lambda g: g * 0.5)
        return self.two(h)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss."""
        h = self.i(x)
        for _ in range(2):
            h = h + checkpoint(self._block, h, use_reentrant=self.use_reentrant)
        return F.mse_loss(self.o(h), y)


def _slope(found: Tensor, x: Tensor) -> Tensor:
    return torch.autograd.grad(found.sum(), x, create_graph=True)[0]


def _norm_penalty(norm: nn.Module, h: Tensor) -> Tensor:
    made = norm(h).tanh().square()
    return norm(h) + _slope(made, h).square().sum(1, keepdim=True).sqrt()


class Squared(torch.autograd.Function):
    """A square whose backward is half of the derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * x


def _scan(step: Any) -> Any:
    def use(m: Net, x: Tensor) -> Tensor:
        h = m.a(x)
        _, found = scan(step, torch.zeros_like(h[:, 0]), h.T)
        return m.b(found.T)

    return use


def _scan_function(state: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    state = 0.5 * state + Squared.apply(h)
    return state, state.tanh()


def _scan_plain(state: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    state = torch.where(h > 0, 0.5 * state + h.sin(), state)
    return state, state * h


def _spectral_loss(m: Net, x: Tensor) -> Tensor:
    made = torch.fft.rfft(m.a(x), dim=0, norm="ortho")
    lines = torch.stack([made.real, made.imag], -1)
    return m.b(m.a(x)) + made.abs().clamp_min(1e-3).log().mean() + lines.abs().mean()


def _phases(m: Net, x: Tensor) -> Tensor:
    made = torch.fft.fft2(torch.view_as_complex(m.a(x).view(8, 4, 2)))
    made = torch.fft.fftshift(made) * torch.polar(torch.ones_like(made.real), made.angle())
    return m.b(torch.view_as_real(torch.fft.ifft2(made.conj())).reshape(8, 8))


def _odd_transform(m: Net, x: Tensor) -> Tensor:
    made = torch.fft.hfft(torch.complex(m.a(x)[:, :5], m.a(x)[:, 3:]), n=7)
    again = torch.fft.irfft(torch.fft.rfft(made, n=9), n=8)
    return m.b(again * 0.1)


def _ihfft(m: Net, x: Tensor) -> Tensor:
    made = torch.fft.ihfft(m.a(x), n=6)
    return m.b(torch.cat([made.real, made.conj().imag], -1)) * made.abs().square().sum()


class Bags(Net):
    """Bags of rows with weights that are trained, with and without offsets."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(11, 8, mode="sum", include_last_offset=last, padding_idx=2)
        self.each = nn.Linear(6, 24)
        self.last = last

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss."""
        places = (torch.arange(24) * 7) % 11
        starts = torch.tensor([0, 3, 3, 7, 8, 15, 20, 23] + [24] * self.last)
        bags = self.table(places, starts, per_sample_weights=self.each(x).mean(0).exp())
        rows = self.table(places.view(8, 3), None, per_sample_weights=self.each(x)[:, :3])
        return F.mse_loss(self.b(bags + rows + self.a(x)), y)


class RaggedBags(Net):
    """Bags whose rows and whose lengths are inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(11, 8, mode="mean")

    def forward(self, x: Tensor, y: Tensor, rows: Tensor, starts: Tensor) -> Tensor:
        """Return the loss."""
        return F.mse_loss(self.b(self.table(rows, starts) * self.a(x)), y)


class Ragged(Net):
    """Sequences of several lengths: masked attention, sum and loss; two of them are empty."""

    def forward(self, x: Tensor, y: Tensor, steps: Tensor, lengths: Tensor) -> Tensor:
        """Return the loss."""
        valid = torch.arange(5) < lengths[:, None]
        h = self.a(steps)
        bias = torch.zeros(8, 5, 5, dtype=h.dtype).masked_fill_(~valid[:, None, :], -torch.inf)
        h = F.scaled_dot_product_attention(h, h, h, bias)
        h = torch.where(valid[..., None], h, 0)
        each = F.mse_loss(self.b(h.sum(1) / lengths.clamp_min(1)[:, None]), y, reduction="none")
        return (each.mean(1) * (lengths > 0)).sum() + self.a(x).square().mean()


def _ragged() -> Case:
    steps = torch.randn(8, 5, 6, dtype=torch.float64)
    return Ragged().double(), (*inputs(), steps, torch.tensor([5, 3, 0, 1, 2, 5, 4, 0]))


def _ragged_bags() -> Case:
    starts = torch.tensor([0, 3, 3, 7, 8, 15, 20, 23])
    return RaggedBags().double(), (*inputs(), (torch.arange(24) * 7) % 11, starts)


def _removed_midway(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    parametrize.register_parametrization(m.b, "weight", nn.Softplus())
    h = m.b(h.tanh())
    parametrize.remove_parametrizations(m.b, "weight", leave_parametrized=False)
    return h + m.b(m.a(x))


def _removed_before(m: Net) -> None:
    parametrizations.weight_norm(m.a)
    parametrize.remove_parametrizations(m.a, "weight")
    parametrizations.orthogonal(m.b)
    parametrize.remove_parametrizations(m.b, "weight", leave_parametrized=True)
    nn.utils.parametrizations.spectral_norm(m.a).eval()


class Normed(nn.Module):
    """A batch norm with statistics that are not those of its start, in an ensemble by vmap."""

    def __init__(self, training: bool) -> None:
        super().__init__()
        members = [nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh()) for _ in range(3)]
        for member in members:
            member[1].running_mean.normal_()
            member[1].running_var.uniform_(0.5, 2)
        self.members = nn.ModuleList(members).train(training)

    def forward(self, h: Tensor) -> Tensor:
        """Return the mean of the members."""
        states, buffers = stack_module_state(list(self.members))

        def one(state: Any, buffer: Any, rows: Tensor) -> Tensor:
            return functional_call(self.members[0], (state, buffer), (rows,))

        return vmap(one, in_dims=(0, 0, None))(states, buffers, h).mean(0)


class Members(Normed):
    """The same by weights that are stacked by hand, so that they are trained."""

    def forward(self, h: Tensor) -> Tensor:
        """Return the mean of the members."""
        named = [dict(one.named_parameters()) for one in self.members]
        kept = [dict(one.named_buffers()) for one in self.members]
        states = {n: torch.stack([one[n] for one in named]) for n in named[0]}
        buffers = {n: torch.stack([one[n] for one in kept]) for n in kept[0]}

        def one(state: Any, buffer: Any, rows: Tensor) -> Tensor:
            return functional_call(self.members[0], (state, buffer), (rows,))

        return vmap(one, in_dims=(0, 0, None))(states, buffers, h).mean(0)


def _where_nan(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    safe = torch.where(h > 0, h, 1.0)
    return m.b(torch.where(h > 0, safe.log() / safe, h)) + m.b(torch.where(h > 9, h.log(), h) * 0)


def _where_nan_kept(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    return m.b(torch.where(h > 0, h.sqrt(), 0.0))


def _written_rows(m: Net, x: Tensor) -> Tensor:
    h, source = m.a(x).clone(), m.a(x)
    places = torch.tensor([1, 1, 6, 3])
    h.index_add_(0, places, source[:4].sin(), alpha=0.3)
    h.index_put_((places, torch.tensor([0, 0, 2, 5])), source[0, :4] * 2, accumulate=True)
    h.index_copy_(1, torch.tensor([7, 2]), source[:, :2].cos())
    h.index_fill_(0, torch.tensor([5]), 0.25)
    h.masked_scatter_(torch.arange(8) % 3 == 0, source.flip(0))
    columns = (torch.arange(64).view(8, 8) * 3) % 8
    return m.b(source.scatter_reduce(1, columns, h, "amax", include_self=False) + h)


def _written_by_mask(m: Net, x: Tensor) -> Tensor:
    h = m.a(x).clone()
    h[h > 0.5] = 0.5
    h[:, 2:4][x[:, :2] > 0] *= 0.5
    h[x[:, 0] > 0] += h.mean(0)
    h.view(-1)[::5].mul_(2)
    torch.diagonal(h).add_(h.sum())
    h.unfold(1, 2, 2)[..., 0].tanh_()
    return m.b(h)


def _branches(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    steps = int(h.detach().abs().sum().item()) % 3
    for _ in range(steps + 1):
        h = h.tanh()
    return m.b(h)


def _selective(m: Net, x: Tensor) -> Tensor:
    kept = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]
    how = lambda: create_selective_checkpoint_contexts(kept)  # noqa: E731
    inside = lambda h: m.b(m.a(h).tanh())  # noqa: E731
    return checkpoint(inside, x, use_reentrant=False, context_fn=how)


def _hook_in_checkpoint(m: Net, x: Tensor) -> Tensor:
    def inside(h: Tensor) -> Tensor:
        made = h.sin()
        made.register_hook(lambda g: g.sign() * 0.01)
        return made * h

    return m.b(checkpoint(inside, m.a(x), use_reentrant=False) + m.a(x))


def _slope_in_vmap_of_function(m: Net, x: Tensor) -> Tensor:
    energy = lambda v: m.b(F.layer_norm(m.a(v), (8,)).tanh()).square().sum()  # noqa: E731
    return m.b(m.a(x)) + vmap(grad(energy))(x).square().mean() - vmap(energy)(x).mean()


def _hooked_then_sliced(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    h.register_hook(lambda g: g / g.norm(dim=0, keepdim=True).clamp_min(1e-9))
    left, right = h[:, :4], h[:, 4:].clone()
    left.mul_(2)
    return m.b(torch.cat([right, left.detach() + left], 1))


def _reversed_in_checkpoint(m: Net, x: Tensor) -> Tensor:
    def inside(h: Tensor) -> Tensor:
        return Reversal.apply(m.b(Squared.apply(h)), 0.2)

    return checkpoint(inside, m.a(x), use_reentrant=True) + inside(m.a(x))


def _observed(m: Net, x: Tensor) -> Tensor:
    with torch.autograd.set_detect_anomaly(True), torch.profiler.record_function("both"):
        h = m.a(x)
    with contextlib.suppress(ValueError):
        h = h.relu()
        raise ValueError
    return m.b(h)


MIXTURES: Cases = {
    "shared_in_checkpoints": lambda: (Shared(False).double(), inputs()),
    "shared_in_reentrant_checkpoints": lambda: (Shared(True).double(), inputs()),
    "slope_of_group_norm": inner(lambda: nn.GroupNorm(2, 8), _norm_penalty),
    "slope_of_layer_norm": inner(lambda: nn.LayerNorm(8), _norm_penalty),
    "slope_of_rms_norm": inner(lambda: nn.RMSNorm(8), _norm_penalty),
    "slope_of_batch_norm": inner(lambda: nn.BatchNorm1d(8), _norm_penalty),
    "slope_of_batch_norm_eval": inner(lambda: nn.BatchNorm1d(8).eval(), _norm_penalty),
    "slope_of_instance_norm": inner(
        lambda: nn.InstanceNorm1d(4, affine=True),
        lambda n, h: _norm_penalty(lambda v: n(v.view(8, 4, 2)).reshape(8, 8), h),
    ),
    "function_in_a_scan": forward(_scan(_scan_function)),
    "choices_in_a_scan": forward(_scan(_scan_plain)),
    "spectral_loss": forward(_spectral_loss),
    "phases": forward(_phases),
    "odd_transform": forward(_odd_transform),
    "hermitian_transform": forward(_ihfft),
    "bags_by_trained_weights": lambda: (Bags(False).double(), inputs()),
    "bags_with_last_offset": lambda: (Bags(True).double(), inputs()),
    "ragged_bags": _ragged_bags,
    "ragged_rows_hidden": _ragged,
    "parametrization_removed_midway": forward(_removed_midway),
    "parametrization_removed_before": changed(_removed_before),
    "ensemble_of_batch_norms_stacked": inner(lambda: Normed(False)),
    "ensemble_of_batch_norms": inner(lambda: Members(False)),
    "ensemble_of_batch_norms_training": inner(lambda: Members(True)),
    "where_with_safe_branches": forward(_where_nan),
    "where_nan_gradient_kept": forward(_where_nan_kept),
    "rows_written_by_all": forward(_written_rows),
    "written_by_masks_and_views": forward(_written_by_mask),
    "loop_by_data": forward(_branches),
    "selective_checkpoint": forward(_selective),
    "hook_in_checkpoint": forward(_hook_in_checkpoint),
    "slope_of_norm_in_vmap": forward(_slope_in_vmap_of_function),
    "hook_of_features_then_written": forward(_hooked_then_sliced),
    "reversal_in_checkpoint": forward(_reversed_in_checkpoint),
    "observed": forward(_observed),
}
