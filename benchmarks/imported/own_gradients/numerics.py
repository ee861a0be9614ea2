"""Derivatives, solvers, decompositions, spectra and densities in a forward pass."""

from typing import Any

import torch
from torch import Tensor
from torch.func import jacfwd, linearize, vmap
from torch.nn import functional as F  # noqa: N812

from own_gradients.layers import Cases, Extra, Net, extra, forward


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


def _jacobian_forward(m: Net, x: Tensor) -> Tensor:
    found = vmap(jacfwd(lambda row: torch.tanh(m.a(row))))(x)
    return m.b(m.a(x)) + found.square().mean()


def _linearized(m: Net, x: Tensor) -> Tensor:
    value, push = linearize(lambda v: m.a(v).tanh(), x)
    return m.b(value + push(x.cos()))


def _functional_jacobian(m: Net, x: Tensor) -> Tensor:
    found = torch.autograd.functional.jacobian(lambda v: m.a(v).tanh().sum(0), x, create_graph=True)
    return m.b(m.a(x)) + found.square().mean()


def _functional_products(m: Net, x: Tensor) -> Tensor:
    _, found = torch.autograd.functional.hvp(
        lambda v: m.a(v).sin().sum(), x, x.cos(), create_graph=True
    )
    return m.b(m.a(x)) + found.mean()


def _score_matching(m: Net, x: Tensor) -> Tensor:
    """Sliced score matching: a divergence by a product with fixed directions."""
    x = x.detach().requires_grad_()
    v = torch.ones_like(x).cumsum(1) / 6
    score = torch.tanh(m.a(x)) @ m.a.weight
    (moved,) = torch.autograd.grad((score * v).sum(), x, create_graph=True)
    return m.b(m.a(x)) + (moved * v).sum(1).mean() + 0.5 * score.square().sum(1).mean()


def _natural_flow(m: Net, x: Tensor) -> Tensor:
    """A coupling layer with its log-determinant."""
    left, right = m.a(x).chunk(2, 1)
    scale = torch.tanh(left @ m.b.weight[:, :4].T @ m.b.weight[:, 4:])
    return m.b(torch.cat([left, right * scale.exp()], 1)) - scale.sum(1, keepdim=True).mean()


def _runge_kutta(m: Net, x: Tensor) -> Tensor:
    def slope(t: float, y: Tensor) -> Tensor:
        return torch.tanh(F.linear(y, m.a.weight @ m.a.weight.T)) - t * y

    y, h = m.a(x), 0.25
    for i in range(4):
        t = i * h
        k1 = slope(t, y)
        k2 = slope(t + h / 2, y + h / 2 * k1)
        k3 = slope(t + h / 2, y + h / 2 * k2)
        k4 = slope(t + h, y + h * k3)
        y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return m.b(y)


def _low_rank(m: Net, x: Tensor) -> Tensor:
    u, s, vh = torch.linalg.svd(m.a.weight, full_matrices=False)
    return m.b(F.linear(x, (u[:, :3] * F.softshrink(s[:3], 0.1)) @ vh[:3], m.a.bias))


def _whitened(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    centred = h - h.mean(0)
    cover = centred.T @ centred / 8 + 0.1 * torch.diag(torch.arange(1.0, 9)).double()
    values, vectors = torch.linalg.eigh(cover)
    return m.b(centred @ vectors @ torch.diag(values.rsqrt()) @ vectors.T)


def _gaussian_process(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    kernel = torch.exp(-torch.cdist(h, h).square()) + 0.1 * torch.eye(8).double()
    factor = torch.linalg.cholesky(kernel)
    solved = torch.cholesky_solve(x[:, :1], factor)
    fit = (x[:, :1] * solved).sum() + 2 * factor.diagonal().log().sum()
    return (
        m.b(h)
        + 0.1 * fit
        + torch.distributions.MultivariateNormal(x[0, :6] * 0, kernel[:6, :6]).log_prob(h[0, :6])
    )


def _spectrum(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    z = torch.fft.fft2(h.view(2, 4, 8), norm="ortho")
    z = torch.fft.fftshift(
        z * torch.view_as_complex(torch.stack([h.view(2, 4, 8), h.view(2, 4, 8).sin()], -1))
    )
    power = (
        z.abs().square()
        + z.angle() * 0
        + torch.fft.irfft(torch.fft.rfft(h, dim=0), n=8, dim=0).view(2, 4, 8)
    )
    return m.b(power.view(8, 8) + torch.fft.hfft(z.view(8, 8)[:, :5], 8))


def _complex_layer(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    z = torch.complex(h[:, :4], h[:, 4:])
    z = (
        z * z.conj().roll(1, 1) / (1 + z.abs())
        + z.exp() * 0.1j
        - (2 + 1j) * z.square()
        + torch.polar(z.abs() + 1, z.angle())
    )
    return m.b(torch.cat([z.real, z.imag.neg()], 1))


def _window(m: Net, x: Tensor) -> Tensor:
    h = m.a(x).reshape(2, 32)
    z = torch.stft(h, 8, 4, window=torch.hann_window(8).double(), return_complex=True)
    back = torch.istft(z * 0.5, 8, 4, window=torch.hann_window(8).double(), length=32)
    return m.b(back.view(8, 8)) + z.abs().clamp(min=1e-5).log().mean()


def _soft_sorted(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    ranks = torch.sigmoid((h[:, :, None] - h[:, None]) / 0.1).sum(-1)
    return m.b(ranks * h + torch.softmax(-(ranks[:, :, None] - torch.arange(8)).abs(), 1).mean(2))


def _grad_of_norm(m: Net, x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    norm = m.a(x * 0).sub(m.a.bias).norm(dim=1)
    return m.b(m.a(x)) + norm.sum()


def _log_prob_mix(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    beta = torch.distributions.Beta(h[:, :1].exp(), h[:, 1:2].exp())
    gamma = torch.distributions.Gamma(F.softplus(h[:, 2:3]), 2.0)
    student = torch.distributions.StudentT(3.0, h[:, 3:4], 0.5)
    cat = torch.distributions.Categorical(logits=h)
    bern = torch.distributions.Bernoulli(logits=h[:, 4:5])
    total = (
        beta.log_prob(torch.tensor(0.3))
        + gamma.log_prob(torch.tensor(1.7))
        + student.log_prob(x[:, :1])
    )
    return (
        m.b(h)
        - total.mean()
        - cat.log_prob(torch.arange(8)).mean()
        + cat.entropy().mean()
        + bern.entropy().mean()
    )


NUMERICS: Cases = {
    "ensemble_by_vmap": extra(_ensemble, w=(3, 8, 8), c=(3, 8)),
    "gradients_of_samples": forward(_per_sample_norms),
    "jacobian_penalty": forward(_jacobian_penalty),
    "laplacian": forward(_laplacian),
    "jacobian_forward": forward(_jacobian_forward),
    "linearized": forward(_linearized),
    "functional_jacobian": forward(_functional_jacobian),
    "functional_hessian_product": forward(_functional_products),
    "score_matching": forward(_score_matching),
    "coupling_flow": forward(_natural_flow),
    "runge_kutta": forward(_runge_kutta),
    "low_rank_weights": forward(_low_rank),
    "whitened": forward(_whitened),
    "gaussian_process": forward(_gaussian_process),
    "spectrum": forward(_spectrum),
    "complex_features": forward(_complex_layer),
    "short_time_transform": forward(_window),
    "soft_sorted": forward(_soft_sorted),
    "norm_of_zero_features": forward(_grad_of_norm),
    "densities": forward(_log_prob_mix),
}
