"""Parts of modules that people mix: losses over the batch, linear algebra, wrappers, writes."""

from typing import Any
from warnings import catch_warnings, simplefilter

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrizations

from own_gradients.layers import Cases, Net, changed, extra, forward, inner


def _embedded(m: Net, x: Tensor) -> Tensor:
    """Losses over the batch: the hardest half, a median, neighbours, sums along it."""
    h = m.a(x)
    each = h.square().mean(1)
    hard = each.topk(4).values.mean()
    around = (h - h.roll(1, 0)).abs().mean() + h.cumsum(0).logcumsumexp(0)[-1].mean()
    spread = h.std(0).mean() + torch.cov(h.T).diagonal().sum() + torch.corrcoef(h).mean()
    order = h[each.argsort()] * torch.linspace(0, 1, 8, dtype=x.dtype)[:, None]
    return m.b(h) + hard + around + spread + order.sum() + each.quantile(0.3) + each.median()


def _by_size(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    return m.b(h) * h.square().sum() / x.shape[0] / len(x) + h.numel() / x.size(0)


def _all_ignored(m: Net, x: Tensor) -> Tensor:
    logits = m.b(m.a(x).tanh())
    target = torch.tensor([-100, -100, -100, -100, -100, 0, 2, 1])
    return m.b(m.a(x)) + F.cross_entropy(logits, target)


def _mixed_types(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    gate = (h.to(torch.float32) > 0).type_as(h)
    return m.b(h * gate + h.new_ones(8).cumsum(0) + (h > 1).sum(1, keepdim=True) * h)


def _complex_weights(m: Any, x: Tensor) -> Tensor:
    z = torch.complex(m.a(x), m.a(x).flip(1))
    w = torch.view_as_complex(m.w)
    z = torch.einsum("nc,cd->nd", z, w)
    z = z * torch.sigmoid(z.abs()) / (z.abs() + 1e-3)
    return m.b((z * z.conj()).real + z.angle().cos() + z.imag.exp() * 0.1 + z.real.clone())


def _solved(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    gram = h.T @ h / 8 + torch.eye(8, dtype=x.dtype)
    lower = torch.linalg.cholesky(gram)
    found = torch.cholesky_solve(h.T, lower).T
    values, _ = torch.linalg.eigh(gram)
    _, r = torch.linalg.qr(h + 3 * torch.eye(8, dtype=x.dtype))
    return m.b(found) + values.log().sum() + torch.linalg.slogdet(gram)[1] + r.abs().sum() * 0.1


def _decomposed(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    values = torch.linalg.svdvals(h)
    near = torch.linalg.matrix_exp(0.1 * h) + torch.linalg.pinv(h[:, :3]).T @ h[:3]
    return m.b(near) + values.sum() + torch.linalg.matrix_norm(h, "nuc")


def _special(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    p = h.abs() + 0.5
    made = torch.special.erfcx(h) + torch.special.i0e(h) + torch.digamma(p) + torch.lgamma(p)
    made = (
        made
        + torch.special.ndtri(h.sigmoid())
        + torch.special.log_ndtr(h)
        + h.erfinv().nan_to_num(0)
    )
    return m.b(
        made + torch.special.xlog1py(h, p) + torch.special.gammaln(p) + torch.polygamma(1, p)
    )


class Lazy(nn.Module):
    """Layers whose sizes are found when they first run, lists by a schedule, weights by name."""

    def __init__(self) -> None:
        super().__init__()
        self.found = nn.LazyLinear(8)
        self.named = nn.ParameterDict({"scale": torch.rand(8), "shift": torch.rand(8)})
        self.many = nn.ModuleDict({"a": nn.Linear(8, 8), "b": nn.Bilinear(8, 8, 8)})
        self.count = nn.Parameter(torch.tensor([3]), requires_grad=False)
        self.found(torch.zeros(8, 8))

    def forward(self, h: Tensor) -> Tensor:
        """Return the features."""
        h = self.found(h) * self.named["scale"] + self.named["shift"]
        return self.many["b"](self.many["a"](h), h) * self.count


class Steps(nn.Module):
    """Steps of a filter whose state is a dictionary that is written in place."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.register = nn.Linear(8, 8), {"state": torch.zeros(8)}

    def forward(self, h: Tensor) -> Tensor:
        """Return the states."""
        kept = {"state": torch.zeros_like(h)}
        made = torch.empty(4, *h.shape, dtype=h.dtype)
        for i in range(4):
            kept["state"] = torch.lerp(kept["state"], self.gain(h + kept["state"]), 0.5)
            made[i] = kept["state"]
        return made.mean(0) + made[-1].detach() * made[0]


def _wrapped(m: Net, x: Tensor) -> Tensor:
    return nn.DataParallel(m.b)(m.a(x))


def _scripted(m: Net, x: Tensor) -> Tensor:
    return m.b(_SCRIPTED(m.a(x)))


def _twice(h: Tensor) -> Tensor:
    for _ in range(2):
        h = h.tanh() if h.shape[0] > 3 else h.sin()
    return h


with catch_warnings():  # PyTorch deprecates scripts, and people have them
    simplefilter("ignore", FutureWarning)
    _SCRIPTED = torch.jit.script(_twice)


def _custom_types(m: Net, x: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        h = Cast.apply(m.a(x))
    return m.b(h)


class Cast(torch.autograd.Function):
    """A Function that is wrapped for autocast."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.saved_tensors[0].exp() * 2


def _ctc(m: Any, x: Tensor) -> Tensor:
    logits = (m.a(x)[:, None] * m.w).transpose(0, 1).log_softmax(-1)
    lengths = torch.tensor([6, 6, 5, 4, 6, 3, 2, 6])
    wanted = torch.tensor([2, 3, 1, 0, 3, 2, 3, 1])
    labels = torch.arange(24).view(8, 3) % 7
    each = F.ctc_loss(logits, labels, lengths, wanted, 7, "none", zero_infinity=True)
    return m.b(m.a(x)) + (each * torch.arange(8)).mean()


def _grouped_attention(m: Any, x: Tensor) -> Tensor:
    h = (m.a(x)[:, None, None] * m.w).transpose(1, 2)
    made = F.scaled_dot_product_attention(
        h, h[:, :2] * 2, h[:, :2].sin(), is_causal=True, enable_gqa=True, scale=0.3
    )
    return m.b(made.mean((1, 2)))


def _nested_transforms(m: Net, x: Tensor) -> Tensor:
    pair = lambda u, v: (u * v).sum() + torch.where(u > 0, u, v.sin()).prod()  # noqa: E731
    h = m.a(x)
    kernel = vmap(vmap(pair, (None, 0)), (0, None))(h, h.tanh())
    slopes = vmap(torch.func.jacfwd(torch.func.jacrev(lambda v: m.b(v.tanh()).square().sum())))(h)
    solved = vmap(torch.linalg.solve)(slopes + 3 * torch.eye(8, dtype=x.dtype), h)
    return m.b(kernel.softmax(0) @ solved)


def _clamped(p: Any) -> None:
    p.grad.clamp_(-1e-3, 1e-3)


def _two_hooks_of_weights(m: Net) -> None:
    parametrizations.weight_norm(m.a)
    m.a.parametrizations.weight.original0.register_hook(lambda g: g * 3)
    m.a.parametrizations.weight.original1.register_post_accumulate_grad_hook(_clamped)
    m.b.weight.register_hook(lambda g: g - g.mean(1, keepdim=True))
    m.b.register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))


def _sparse_table(m: Any, x: Tensor) -> Tensor:
    places = (torch.arange(8) * 3) % 5
    return m.b(m.a(x) + F.embedding(places, m.w, sparse=True))


def _inputs_written(m: Net, x: Tensor) -> Tensor:
    x = x.clone()
    x += 1
    x[:, 0].zero_()
    h = m.a(x)
    h.mul_(h.detach().sigmoid()).add_(1).clamp_(-1, 2)
    return m.b(h.relu_())


def _statistics(m: Any, h: Tensor) -> Tensor:
    with torch.no_grad():
        m.running_mean.mul_(0.5)
        m.running_var.copy_(m.running_var + h.var(0))
        m.num_batches_tracked += 1
    return m(h) * m.running_var.sqrt() + m.num_batches_tracked


PARTS: Cases = {
    "losses_over_the_batch": forward(_embedded),
    "means_by_size": forward(_by_size),
    "samples_all_ignored": forward(_all_ignored),
    "types_mixed": forward(_mixed_types),
    "complex_weights_by_parts": extra(_complex_weights, w=(8, 8, 2)),
    "solved_systems": forward(_solved),
    "decomposed": forward(_decomposed),
    "special_functions": forward(_special),
    "lazy_and_named": inner(Lazy),
    "states_in_a_dictionary": inner(Steps),
    "data_parallel_inside": forward(_wrapped),
    "scripted_inside": forward(_scripted),
    "function_for_autocast": forward(_custom_types),
    "ctc_of_each": extra(_ctc, w=(6, 8)),
    "grouped_causal_attention": extra(_grouped_attention, w=(5, 4, 8)),
    "transforms_nested": forward(_nested_transforms),
    "hooks_of_parametrized": changed(_two_hooks_of_weights),
    "table_with_sparse_gradient": extra(_sparse_table, w=(5, 8)),
    "features_written": forward(_inputs_written),
    "statistics_written": inner(lambda: nn.BatchNorm1d(8).eval(), _statistics),
}
