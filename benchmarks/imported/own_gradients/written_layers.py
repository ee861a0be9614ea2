"""Layers that people write by hand: attention, gates, graphs, quantized features, experts."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from own_gradients.layers import Cases, Extra, Net, extra, forward, inner


def _rotate_half(h: Tensor) -> Tensor:
    left, right = h.chunk(2, -1)
    return torch.cat((-right, left), -1)


def _rotary(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    angle = torch.outer(torch.arange(8, dtype=x.dtype), 10 ** -torch.arange(4, dtype=x.dtype))
    angle = torch.cat((angle, angle), -1)
    return m.b(h * angle.cos() + _rotate_half(h) * angle.sin())


def _complex_rotary(m: Net, x: Tensor) -> Tensor:
    h = torch.view_as_complex(m.a(x).view(8, 4, 2))
    turn = torch.polar(torch.ones(8, 4, dtype=x.dtype), torch.arange(32.0).double().view(8, 4))
    return m.b(torch.view_as_real(h * turn).flatten(1))


def _alibi(m: Net, x: Tensor) -> Tensor:
    h = m.a(x).view(2, 4, 2, 4).transpose(1, 2)
    far = torch.arange(4)[None] - torch.arange(4)[:, None]
    slopes = torch.tensor([0.5, 0.25], dtype=x.dtype)[:, None, None]
    scores = h @ h.mT / 2 + slopes * far
    scores = scores.masked_fill(far > 0, float("-inf"))
    return m.b((scores.softmax(-1) @ h).transpose(1, 2).reshape(8, 8))


def _relative_shift(m: Extra, x: Tensor) -> Tensor:
    """The shift of Transformer-XL, by padding and a view."""
    h = m.a(x).view(2, 4, 8)
    scores = F.pad(h @ m.table.mT, (1, 0))
    scores = scores.view(2, 5, 4)[:, 1:].reshape(2, 4, 4)
    return m.b((scores.softmax(-1) @ h).view(8, 8))


def _talking_heads(m: Extra, x: Tensor) -> Tensor:
    h = m.a(x).view(2, 4, 2, 4).transpose(1, 2)
    scores = torch.einsum("bhqk,hg->bgqk", h @ h.mT, m.mix).softmax(-1)
    return m.b(torch.einsum("bhqk,bhkd->bqhd", scores, h).reshape(8, 8))


def _linear_attention(m: Net, x: Tensor) -> Tensor:
    h = m.a(x).view(2, 4, 8)
    q, k = F.elu(h) + 1, F.elu(h.flip(-1)) + 1
    states = torch.einsum("bsd,bse->bsde", k, h).cumsum(1)
    norm = torch.einsum("bsd,bsd->bs", q, k.cumsum(1))
    return m.b((torch.einsum("bsd,bsde->bse", q, states) / norm[..., None]).view(8, 8))


def _window_attention(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    windows = F.pad(h, (0, 0, 1, 1)).unfold(0, 3, 1)  # [8, 8, 3]
    weights = torch.einsum("sd,sdw->sw", h, windows).softmax(-1)
    return m.b(torch.einsum("sw,sdw->sd", weights, windows))


def _rms_by_hand(m: Extra, x: Tensor) -> Tensor:
    h = m.a(x)
    scale = torch.rsqrt(h.float().double().pow(2).mean(-1, keepdim=True) + 1e-6)
    return m.b((1 + m.gain) * h * scale)


def _film(m: Extra, x: Tensor) -> Tensor:
    gamma, beta = (m.a(x) @ m.both).chunk(2, dim=-1)
    return m.b(F.instance_norm(m.a(x)[None])[0] * (1 + gamma) + beta)


def _squeeze_excite(m: Extra, x: Tensor) -> Tensor:
    h = m.a(x).view(2, 4, 8)
    gate = torch.sigmoid(F.silu(h.mean(1) @ m.down) @ m.up)
    return m.b((h * gate[:, None]).view(8, 8))


def _highway(m: Extra, x: Tensor) -> Tensor:
    h = m.a(x)
    gate = torch.sigmoid(h @ m.gate - 2)
    return m.b(torch.lerp(h, torch.relu(h @ m.change), gate))


def _maxout(m: Net, x: Tensor) -> Tensor:
    return m.b(m.a(x).unflatten(1, (4, 2)).amax(-1).repeat_interleave(2, 1))


def _neighbours(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    near = torch.cdist(x, x).topk(3, largest=False).indices
    return m.b(h[near].amax(1) - h[near].mean(1))


def _graph(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    edges = torch.tensor([[0, 1, 1, 2, 5, 7], [1, 0, 2, 1, 1, 0]])
    scores = F.leaky_relu((h[edges[0]] * h[edges[1]]).sum(-1), 0.2)
    top = torch.full((8,), -1e9, dtype=x.dtype).scatter_reduce(0, edges[1], scores, "amax")
    share = (scores - top[edges[1]]).exp()
    total = torch.zeros(8, dtype=x.dtype).index_add(0, edges[1], share) + 1e-16
    share = (share / total[edges[1]])[:, None]
    out = torch.zeros_like(h).index_add(0, edges[1], share * h[edges[0]])
    return m.b(h + out)


def _sparse_product(m: Extra, x: Tensor) -> Tensor:
    where = torch.tensor([[0, 1, 7], [2, 0, 7]])
    matrix = torch.sparse_coo_tensor(where, m.values, (8, 8)).to_dense()
    return m.b(matrix @ m.a(x))


def _capsules(m: Extra, x: Tensor) -> Tensor:
    u = torch.einsum("bi,ijd->bjd", m.a(x), m.routes)
    logits = torch.zeros(8, 4, dtype=x.dtype)
    for _ in range(3):
        v = (logits.softmax(1)[..., None] * u).sum(1, keepdim=True)
        v = v * v.norm(dim=-1, keepdim=True) / (1 + v.square().sum(-1, keepdim=True))
        logits = logits + (u.detach() * v).sum(-1)
    return m.b(v[:, 0])


def _sinkhorn(m: Net, x: Tensor) -> Tensor:
    p = m.a(x)
    for _ in range(5):
        p = p - p.logsumexp(1, keepdim=True)
        p = p - p.logsumexp(0, keepdim=True)
    return m.b(p.exp() * 8)


def _vector_quantized(m: Extra, x: Tensor) -> Tensor:
    h = m.a(x)
    code = (h[:, None] - m.codes).square().sum(-1).argmin(1)
    q = m.codes[code]
    loss = F.mse_loss(q, h.detach()) + 0.25 * F.mse_loss(q.detach(), h)
    return m.b(h + (q - h).detach()) + loss


def _finite_scalar(m: Net, x: Tensor) -> Tensor:
    h = torch.tanh(m.a(x)) * 3.5
    return m.b(h + (torch.round(h) - h).detach())


def _gumbel_noise(m: Net, x: Tensor) -> Tensor:
    noise = torch.linspace(0.1, 0.9, 8, dtype=x.dtype).log().neg().log().neg()
    soft = ((m.a(x) + noise) / 0.7).softmax(-1)
    hard = torch.zeros_like(soft).scatter_(-1, soft.argmax(-1, keepdim=True), 1.0)
    return m.b(hard - soft.detach() + soft)


class Standardized(nn.Linear):
    """A weight that is standardized whenever it is used."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the product."""
        mean = self.weight.mean(1, keepdim=True)
        spread = self.weight.var(1, keepdim=True, unbiased=False)
        return F.linear(x, (self.weight - mean) / torch.sqrt(spread + 1e-5), self.bias)


class Experts(nn.Module):
    """Experts in a list, of which each row takes two by its gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(4))

    def forward(self, h: Tensor) -> Tensor:
        """Return the sums of what the experts return."""
        weights, chosen = self.gate(h).softmax(-1).topk(2)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(h)
        for i, expert in enumerate(self.experts):
            share = (weights * (chosen == i)).sum(-1, keepdim=True)
            out = out + share * expert(h)
        return out


class Hyper(nn.Module):
    """A layer whose weights another layer makes."""

    def __init__(self) -> None:
        super().__init__()
        self.makes, self.seed = nn.Linear(4, 72), nn.Parameter(torch.randn(4))

    def forward(self, h: Tensor) -> Tensor:
        """Return its product."""
        weights = self.makes(self.seed)
        return F.linear(h, weights[:64].view(8, 8), weights[64:])


class Kan(nn.Module):
    """Sums of trained functions of single features."""

    def __init__(self) -> None:
        super().__init__()
        self.coefficients = nn.Parameter(torch.randn(8, 8, 5) * 0.1)

    def forward(self, h: Tensor) -> Tensor:
        """Return them."""
        x = torch.tanh(h).unsqueeze(-1).expand(-1, -1, 5).acos() * torch.arange(5)
        return torch.einsum("bik,iok->bo", x.cos(), self.coefficients)


class Fourier(nn.Module):
    """Random features, which are a buffer, and a convolution by transforms."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("basis", torch.randn(8, 4))
        self.kernel = nn.Parameter(torch.randn(8))

    def forward(self, h: Tensor) -> Tensor:
        """Return them."""
        angle = 2 * math.pi * h @ self.basis
        features = torch.cat([angle.sin(), angle.cos()], -1)
        spectrum = torch.fft.rfft(features, 16) * torch.fft.rfft(self.kernel, 16)
        return torch.fft.irfft(spectrum, 16)[:, :8]


def _polynomial(m: Net, x: Tensor) -> Tensor:
    h = torch.tanh(m.a(x))
    terms = [torch.ones_like(h), h]
    for _ in range(3):
        terms.append(2 * h * terms[-1] - terms[-2])
    return m.b(torch.stack(terms, -1) @ torch.tensor([1.0, -1, 0.5, 2, 0.1]).double())


def _einops_by_hand(m: Net, x: Tensor) -> Tensor:
    """Patches of an image and back, as `rearrange` does it."""
    image = m.a(x).reshape(2, 1, 4, 8)
    patches = image.view(2, 1, 2, 2, 4, 2).permute(0, 2, 4, 3, 5, 1).reshape(2, 8, 4)
    mixed = patches.softmax(1) * patches.roll((1, 1), (0, 2))
    back = mixed.view(2, 2, 4, 2, 2, 1).permute(0, 5, 1, 3, 2, 4).reshape(8, 8)
    return m.b(back)


WRITTEN_LAYERS: Cases = {
    "rotary_by_hand": forward(_rotary),
    "rotary_of_complex_numbers": forward(_complex_rotary),
    "alibi": forward(_alibi),
    "relative_shift": extra(_relative_shift, table=(4, 8)),
    "talking_heads": extra(_talking_heads, mix=(2, 2)),
    "linear_attention_by_sums": forward(_linear_attention),
    "window_attention": forward(_window_attention),
    "rms_norm_by_hand": extra(_rms_by_hand, gain=(8,)),
    "film": extra(_film, both=(8, 16)),
    "squeeze_and_excite": extra(_squeeze_excite, down=(8, 2), up=(2, 8)),
    "highway": extra(_highway, gate=(8, 8), change=(8, 8)),
    "maxout": forward(_maxout),
    "nearest_neighbours": forward(_neighbours),
    "graph_attention_by_edges": forward(_graph),
    "sparse_weights": extra(_sparse_product, values=(3,)),
    "capsules": extra(_capsules, routes=(8, 4, 8)),
    "sinkhorn": forward(_sinkhorn),
    "vector_quantized": extra(_vector_quantized, codes=(5, 8)),
    "finite_scalar_quantized": forward(_finite_scalar),
    "gumbel_straight_through": forward(_gumbel_noise),
    "standardized_weights": inner(lambda: Standardized(8, 8)),
    "experts_in_a_list": inner(Experts),
    "hyper_network": inner(Hyper),
    "kan": inner(Kan),
    "random_features_and_transforms": inner(Fourier),
    "chebyshev_features": forward(_polynomial),
    "patches_and_back": forward(_einops_by_hand),
}
