"""Modules of kinds that people post: layers written by hand, indexing, recurrences, states."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrizations, parametrize

from own_gradients.layers import Cases, Net, changed, forward, inputs


class Extra(Net):
    """Two layers, and further parameters by name."""

    def __init__(self, use: Any, **shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.use = use
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(0.5 * torch.randn(shape)))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss."""
        return F.mse_loss(self.use(self, x), y)


def extra(use: Any, **shapes: tuple[int, ...]) -> Any:
    """Return a case with further parameters."""
    return lambda: (Extra(use, **shapes).double(), inputs())


class Inner(Net):
    """Two layers, and others between them that a function makes and uses."""

    def __init__(self, made: Any, use: Any) -> None:
        super().__init__()
        self.inner, self.use = made(), use

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss."""
        return F.mse_loss(self.b(self.use(self.inner, self.a(x))), y)


def inner(made: Any, use: Any = lambda m, h: m(h)) -> Any:
    """Return a case with other layers between."""
    return lambda: (Inner(made, use).double(), inputs())


# Layers written by hand


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


def _mixture_density(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    weights, means, widths = h[:, :2].log_softmax(-1), h[:, 2:4], F.softplus(h[:, 4:6])
    target = x[:, :1]
    logs = weights - 0.5 * ((target - means) / widths) ** 2 - widths.log()
    return m.b(h) - torch.logsumexp(logs, -1).mean()


def _distribution(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    normal = torch.distributions.Normal(h[:, :4], F.softplus(h[:, 4:]) + 0.1)
    prior = torch.distributions.Normal(torch.zeros_like(h[:, :4]), 1.0)
    gap = torch.distributions.kl_divergence(normal, prior).mean()
    return m.b(h) + gap - normal.log_prob(x[:, :4]).mean()


def _contrastive(m: Net, x: Tensor) -> Tensor:
    z = F.normalize(m.a(x), dim=-1)
    scores = (z @ z.T / 0.5).masked_fill(torch.eye(8, dtype=torch.bool), float("-inf"))
    return m.b(z) + F.cross_entropy(scores, torch.arange(8) ^ 1)


def _triplet(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    return m.b(h) + F.triplet_margin_loss(h, h.roll(1, 0), h.roll(2, 0), margin=0.7)


def _focal(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    target = (x[:, :4] > 0).double()
    rough = F.binary_cross_entropy_with_logits(h[:, :4], target, reduction="none")
    return m.b(h) + ((1 - torch.exp(-rough)) ** 2 * rough).mean()


def _smoothed(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    labels = torch.tensor([0, 3, -100, 7, 1, -100, 2, 2])
    return m.b(h) + F.cross_entropy(h, labels, label_smoothing=0.1, ignore_index=-100)


def _dice(m: Net, x: Tensor) -> Tensor:
    p, t = m.a(x).sigmoid(), (x.sum(1, keepdim=True) > 0).double().expand(8, 8)
    return m.b(p) + 1 - (2 * (p * t).sum() + 1) / (p.sum() + t.sum() + 1)


def _orthogonal_penalty(m: Net, x: Tensor) -> Tensor:
    w = m.a.weight
    gram = w.T @ w - torch.eye(6, dtype=x.dtype)
    sparse = sum(p.abs().sum() for p in m.b.parameters())
    return m.b(m.a(x)) + 0.1 * torch.linalg.matrix_norm(gram) + sparse


# Indexing, and writes


def _diagonal_written(m: Net, x: Tensor) -> Tensor:
    h = m.a(x) * 1
    h.fill_diagonal_(0.5)
    h[torch.arange(8), torch.arange(8).flip(0)] += x[:, 0]
    return m.b(h)


def _masked_assignment(m: Net, x: Tensor) -> Tensor:
    h = m.a(x) * 1
    h[h < 0] = 0.1
    h[x[:, 0] > 0, :2] = 2.0
    h[:, [1, 3]] *= -1
    return m.b(h)


def _boolean_rows(m: Net, x: Tensor) -> Tensor:
    keep = torch.tensor([True, False, True, True, False, True, True, True])
    h = m.a(x)
    out = torch.zeros_like(h)
    out[keep] = h[keep] * 2
    return m.b(out)


def _ellipsis(m: Net, x: Tensor) -> Tensor:
    h = m.a(x).view(2, 4, 2, 4)
    picked = h[..., None, [0, 1], 1:3][:, ::2, 0]
    h = h[:, torch.tensor([[3, 0], [1, 1]]), :, torch.tensor([0, 2])]
    return m.b(h.flatten().view(2, 8).repeat(4, 1)) + picked.mean()


def _negative_steps(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    h = torch.cat([h[-3:], h[:-3]])[:, torch.arange(7, -1, -1)]
    rows = h.index_select(0, torch.tensor([7, 7, 0, 1, 2, 3, 4, 5]))
    return m.b(rows.swapaxes(0, 1).movedim(0, 1))


def _overlapping_views(m: Net, x: Tensor) -> Tensor:
    frames = m.a(x).flatten().unfold(0, 8, 4)
    back = F.fold(frames.T[None], (1, 64), (1, 8), stride=(1, 4))
    return m.b(back.view(8, 8))


def _strided(m: Net, x: Tensor) -> Tensor:
    h = m.a(x).contiguous()
    return m.b(h.as_strided((8, 8), (8, 1)).as_strided((7, 8), (8, 1), 4).sum(0).expand(8, 8))


def _slices_in_place(m: Net, x: Tensor) -> Tensor:
    h = m.a(x) * 1
    h.narrow(1, 4, 4).add_(h.narrow(1, 0, 4).clone().sin())
    h[:, 4:].mul_(h[:, :4].clone())
    return m.b(h)


def _chained_views(m: Net, x: Tensor) -> Tensor:
    h = m.a(x).clone()
    view = h.view(4, 16).t()[3:9]
    view.copy_(view.clone().cos())
    h.unsqueeze(0).squeeze(0).narrow(1, 0, 1).zero_()
    return m.b(h)


def _swapped_rows(m: Net, x: Tensor) -> Tensor:
    h = m.a(x).clone()
    h[0], h[1] = h[1].clone(), h[0].clone()
    h[2:4], h[4:6] = h[4:6].clone(), h[2:4].clone()
    return m.b(h)


def _sorted(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    values, places = h.sort(1, descending=True)
    back = torch.empty_like(values).scatter_(1, places, values.cumsum(1))
    return m.b(back + h.gather(1, h.argsort(1).argsort(1)))


def _segments(m: Net, x: Tensor) -> Tensor:
    groups = torch.tensor([0, 0, 1, 1, 1, 2, 2, 2])
    h = m.a(x)
    top = torch.full((3, 8), -math.inf, dtype=x.dtype).index_reduce(0, groups, h, "amax")
    mean = torch.zeros(3, 8, dtype=x.dtype).scatter_reduce(
        0, groups[:, None].expand(8, 8), h, "mean", include_self=False
    )
    return m.b((top - mean)[groups])


def _one_hot(m: Net, x: Tensor) -> Tensor:
    kind = (x[:, 0] * 2).long().clamp(0, 3)
    table = torch.eye(4, dtype=x.dtype)
    return m.b(torch.cat([F.one_hot(kind, 4), table[kind]], 1) * m.a(x))


def _triangle(m: Net, x: Tensor) -> Tensor:
    rows, columns = torch.triu_indices(8, 8, 1)
    h = m.a(x)
    pairs = (h[rows] * h[columns]).sum(-1)
    out = torch.zeros(8, 8, dtype=x.dtype)
    out[rows, columns] = pairs
    return m.b(out + out.T)


# Recurrences


class Cell(nn.Module):
    """Gates written by hand, a step at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.gates, self.norm = nn.Linear(16, 32), nn.LayerNorm(8)

    def forward(self, h: Tensor) -> Tensor:
        """Return the states of all steps."""
        steps = h.view(4, 2, 8)
        state, memory = h.new_zeros(2, 8), h.new_zeros(2, 8)
        out = []
        for step in steps:
            i, f, g, o = self.gates(torch.cat([step, state], 1)).chunk(4, 1)
            memory = torch.sigmoid(f + 1) * memory + torch.sigmoid(i) * g.tanh()
            state = torch.sigmoid(o) * torch.tanh(self.norm(memory))
            out.append(state)
        return torch.stack(out).view(8, 8)


def _bidirectional(rnn: Any, h: Tensor) -> Tensor:
    out, last = rnn(h.view(4, 2, 8))
    last = last[0] if isinstance(last, tuple) else last
    return out.reshape(8, 8) + last.mean()


def _packed(rnn: Any, h: Tensor) -> Tensor:
    packed = nn.utils.rnn.pack_padded_sequence(
        h.view(2, 4, 8), torch.tensor([4, 2]), batch_first=True
    )
    out, (state, _) = rnn(packed)
    padded = nn.utils.rnn.pad_packed_sequence(out, batch_first=True, total_length=4)[0]
    return padded.reshape(8, 8) + state[-1].mean()


def _cell_loop(cell: Any, h: Tensor) -> Tensor:
    state, out = None, []
    for step in h.view(4, 2, 8).unbind():
        state = cell(step, state)
        out.append(state[0] if isinstance(state, tuple) else state)
    return torch.cat(out)


def _truncated(cell: Any, h: Tensor) -> Tensor:
    state, out = h.new_zeros(2, 8), []
    for i, step in enumerate(h.view(4, 2, 8)):
        state = cell(step, state.detach() if i == 2 else state)
        out.append(state)
    return torch.stack(out).flatten(0, 1)


def _reservoir(m: Extra, x: Tensor) -> Tensor:
    state = torch.zeros(8, dtype=x.dtype)
    for row in m.a(x):
        state = torch.addmv(row, m.w, state).tanh()
    return m.b(state).expand(8, 3)


def _selective(m: Extra, x: Tensor) -> Tensor:
    """A selective state space, step by step."""
    u = m.a(x).view(2, 4, 8)
    step = F.softplus(u @ m.step)
    state, out = torch.zeros(2, 8, 3, dtype=x.dtype), []
    for t in range(4):
        decay = torch.exp(-step[:, t, :, None] * m.rates.exp())
        write = (u[:, t] @ m.write)[:, None]
        state = decay * state + step[:, t, :, None] * u[:, t, :, None] * write
        out.append((state * (u[:, t] @ m.read)[:, None]).sum(-1))
    return m.b(torch.stack(out, 1).reshape(8, 8))


def _diagonal_complex(m: Extra, x: Tensor) -> Tensor:
    """A linear recurrence of complex numbers (LRU)."""
    rate = torch.exp(torch.complex(-m.size.exp(), m.angle))
    u = m.a(x).view(2, 4, 8) * (1 - rate.abs() ** 2).sqrt()
    state, out = torch.zeros(2, 8, dtype=torch.complex128), []
    for t in range(4):
        state = rate * state + u[:, t]
        out.append(state.real)
    return m.b(torch.stack(out, 1).reshape(8, 8))


# States, parametrizations, sharing


def _tied(m: Net) -> None:
    m.a, m.b = nn.Linear(6, 6, bias=False).double(), nn.Linear(6, 3).double()
    m.b.weight = nn.Parameter(m.b.weight.detach())
    m.a.weight = nn.Parameter(m.a.weight.detach())
    m.between = lambda h: F.linear(h, m.a.weight.T) + F.linear(h, m.a.weight)


def _spectral(m: Net) -> None:
    parametrizations.spectral_norm(m.a)
    parametrizations.weight_norm(m.b)
    m.eval()


class Masked(nn.Module):
    """A pruned weight."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", (torch.arange(48).view(8, 6) % 3 > 0).double())

    def forward(self, w: Tensor) -> Tensor:
        """Return what is left."""
        return w * self.mask


def _pruned(m: Net) -> None:
    torch.nn.utils.prune.random_unstructured(m.a, "weight", 0.4)
    parametrize.register_parametrization(m.b, "weight", nn.Softplus())


class Standardized(nn.Linear):
    """A weight that is standardized whenever it is used."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the product."""
        mean = self.weight.mean(1, keepdim=True)
        spread = self.weight.var(1, keepdim=True, unbiased=False)
        return F.linear(x, (self.weight - mean) / torch.sqrt(spread + 1e-5), self.bias)


class Averaged(nn.Module):
    """A teacher by a running mean of weights, which has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = nn.Linear(8, 8), nn.Linear(8, 8)
        self.teacher.requires_grad_(False)

    def forward(self, h: Tensor) -> Tensor:
        """Return the student's result, drawn to the teacher's."""
        with torch.no_grad():
            goal = self.teacher(h).softmax(-1)
        found = self.student(h)
        return found + F.kl_div(found.log_softmax(-1), goal, reduction="batchmean")


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


def _ensemble(m: Extra, x: Tensor) -> Tensor:
    """Members that `vmap` maps over stacked weights."""

    def member(w: Tensor, b: Tensor, v: Tensor) -> Tensor:
        return torch.tanh(v @ w + b)

    return m.b(torch.func.vmap(member, in_dims=(0, 0, None))(m.w, m.c, m.a(x)).mean(0))


def _per_sample_norms(m: Net, x: Tensor) -> Tensor:
    def loss(parameters: Any, row: Tensor) -> Tensor:
        return torch.func.functional_call(m.b, parameters, (row,)).square().sum()

    h = m.a(x)
    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(
        dict(m.b.named_parameters()), h
    )
    return m.b(h) + found["weight"].flatten(1).norm(dim=1).mean()


def _jacobian_penalty(m: Net, x: Tensor) -> Tensor:
    slopes = torch.func.vmap(torch.func.jacrev(lambda row: m.b(torch.tanh(m.a(row)))))(x)
    return m.b(m.a(x)) + slopes.square().sum((1, 2)).mean()


def _laplacian(m: Net, x: Tensor) -> Tensor:
    def energy(row: Tensor) -> Tensor:
        return torch.tanh(m.a(row)).sum()

    second = torch.func.vmap(torch.func.hessian(energy))(x)
    return m.b(m.a(x)) + second.diagonal(dim1=-2, dim2=-1).sum(-1).square().mean()


def _nested(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    nested = torch.nested.as_nested_tensor([h[:3], h[3:]], layout=torch.jagged)
    return m.b(torch.cat((nested * 2).unbind()))


def _dropped_by_mask(m: Net, x: Tensor) -> Tensor:
    keep = (torch.arange(64).view(8, 8) % 5 != 0).double()
    return m.b(m.a(x) * keep / 0.8)


def _deep_supervision(m: Net, x: Tensor) -> Tensor:
    out, h = [], m.a(x)
    for _ in range(3):
        h = F.dropout(torch.tanh(h) + h, 0.3, training=False)
        out.append(m.b(h))
    return sum(w * one for w, one in zip((0.2, 0.3, 0.5), out, strict=True))


def _stop_halves(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    with torch.no_grad():
        scale = h.abs().amax(1, keepdim=True).clamp(min=1e-5)
    left, right = (h / scale).tensor_split(2, 1)
    return m.b(torch.cat([left.detach() * right, right], 1) * scale)


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


POSTED: Cases = {
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
    "mixture_density": forward(_mixture_density),
    "distributions": forward(_distribution),
    "contrastive": forward(_contrastive),
    "triplet": forward(_triplet),
    "focal": forward(_focal),
    "labels_smoothed_and_ignored": forward(_smoothed),
    "dice": forward(_dice),
    "penalties_of_weights": forward(_orthogonal_penalty),
    "diagonal_written": forward(_diagonal_written),
    "masked_assignment": forward(_masked_assignment),
    "rows_by_a_mask": forward(_boolean_rows),
    "ellipsis_and_lists": forward(_ellipsis),
    "negative_steps": forward(_negative_steps),
    "overlapping_frames": forward(_overlapping_views),
    "as_strided": forward(_strided),
    "slices_in_place": forward(_slices_in_place),
    "chained_views": forward(_chained_views),
    "swapped_rows": forward(_swapped_rows),
    "sorted_and_back": forward(_sorted),
    "segments": forward(_segments),
    "one_hot_by_an_eye": forward(_one_hot),
    "pairs_of_a_triangle": forward(_triangle),
    "cell_by_hand": inner(Cell),
    "bidirectional_lstm": inner(
        lambda: nn.LSTM(8, 4, 2, bidirectional=True, batch_first=True), _bidirectional
    ),
    "gru_of_two_layers": inner(lambda: nn.GRU(8, 8, 2), _bidirectional),
    "rnn_with_relu": inner(lambda: nn.RNN(8, 8, nonlinearity="relu"), _bidirectional),
    "lstm_with_projection": inner(lambda: nn.LSTM(8, 12, proj_size=8), _bidirectional),
    "packed_lstm": inner(lambda: nn.LSTM(8, 8, batch_first=True), _packed),
    "lstm_cell_loop": inner(lambda: nn.LSTMCell(8, 8), _cell_loop),
    "gru_cell_truncated": inner(lambda: nn.GRUCell(8, 8), _truncated),
    "states_along_the_batch": extra(_reservoir, w=(8, 8)),
    "selective_state_space": extra(
        _selective, step=(8, 8), rates=(8, 3), write=(8, 3), read=(8, 3)
    ),
    "complex_recurrence": extra(_diagonal_complex, size=(8,), angle=(8,)),
    "one_weight_twice": changed(_tied),
    "spectral_and_weight_norm": changed(_spectral),
    "pruned_and_positive": changed(_pruned),
    "standardized_weights": inner(lambda: Standardized(8, 8)),
    "teacher_without_gradient": inner(Averaged),
    "experts_in_a_list": inner(Experts),
    "hyper_network": inner(Hyper),
    "kan": inner(Kan),
    "random_features_and_transforms": inner(Fourier),
    "ensemble_by_vmap": extra(_ensemble, w=(3, 8, 8), c=(3, 8)),
    "gradients_of_samples": forward(_per_sample_norms),
    "jacobian_penalty": forward(_jacobian_penalty),
    "laplacian": forward(_laplacian),
    "nested_rows": forward(_nested),
    "dropout_by_a_mask": forward(_dropped_by_mask),
    "deep_supervision": forward(_deep_supervision),
    "scaled_without_gradient": forward(_stop_halves),
    "chebyshev_features": forward(_polynomial),
    "patches_and_back": forward(_einops_by_hand),
}
