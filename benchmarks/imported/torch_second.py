"""Small modules that differentiate inside of their forward pass, or choose what they compute.

Each factory returns a module and its inputs; all are compared with autograd in float64.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel

Case = tuple[nn.Module, tuple[Tensor, ...]]


class Critic(nn.Module):
    """The loss of a critic with a penalty on the norm of its gradient by the input.

    Gulrajani et al., "Improved training of Wasserstein GANs", 2017.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, real: Tensor, fake: Tensor) -> Tensor:
        """Return the loss."""
        mixed = (0.3 * real + 0.7 * fake).requires_grad_()
        scores = self.net(mixed)
        (slope,) = torch.autograd.grad(
            outputs=scores,
            inputs=mixed,
            grad_outputs=torch.ones_like(scores),
            create_graph=True,
            retain_graph=True,
        )
        penalty = ((slope.flatten(1).norm(2, dim=1) - 1) ** 2).mean()
        return self.net(fake).mean() - self.net(real).mean() + 10 * penalty


def _convolutional(activation: nn.Module, *, norm: bool = False) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1),
        nn.GroupNorm(2, 4) if norm else nn.Identity(),
        activation,
        nn.Conv2d(4, 4, 3, padding=1),
        activation,
        nn.Flatten(),
        nn.Linear(64, 1),
    )


def _images(net: nn.Module) -> Case:
    return Critic(net), (torch.randn(4, 2, 8, 8), torch.randn(4, 2, 8, 8))


class ForceField(nn.Module):
    """Energies of atoms from their distances; forces are minus the gradient by positions."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(4, width)
        self.filters = nn.Sequential(nn.Linear(6, width), nn.SiLU(), nn.Linear(width, width))
        self.energy = nn.Sequential(nn.Linear(width, width), nn.Softplus(), nn.Linear(width, 1))
        self.register_buffer("centers", torch.linspace(0, 3, 6))

    def forward(self, kinds: Tensor, positions: Tensor, energy: Tensor, forces: Tensor) -> Tensor:
        """Return the loss of energies and forces."""
        positions = positions.detach().clone()
        positions.requires_grad = True
        apart = positions[:, :, None] - positions[:, None]
        others = ~torch.eye(positions.shape[1], dtype=torch.bool)
        squares = torch.where(others, apart.square().sum(-1), torch.ones(()))
        smeared = torch.exp(-((squares.sqrt()[..., None] - self.centers) ** 2))
        messages = self.filters(smeared) * others[..., None]
        states = self.embed(kinds)
        states = states + torch.einsum("bijf,bjf->bif", messages, states)
        found = self.energy(states).sum((1, 2))
        (slope,) = torch.autograd.grad(found.sum(), positions, create_graph=True)
        return F.mse_loss(found, energy) + 10 * F.mse_loss(-slope, forces)


def _force_field() -> Case:
    kinds, places = torch.randint(4, (4, 5)), torch.randn(4, 5, 3)
    return ForceField(), (kinds, places, torch.randn(4), torch.randn(4, 5, 3))


class MetaLearner(nn.Module):
    """The loss after inner steps of descent on its own parameters (Finn et al., "MAML", 2017)."""

    def __init__(self, net: nn.Module, *, steps: int = 2, first_order: bool = False) -> None:
        super().__init__()
        self.net, self.steps, self.first_order = net, steps, first_order
        self.rate = nn.Parameter(torch.tensor(0.1))

    def forward(self, support: Tensor, wanted: Tensor, query: Tensor, label: Tensor) -> Tensor:
        """Return the loss of the adapted parameters."""
        weights = dict(self.net.named_parameters())
        for _ in range(self.steps):
            found = torch.func.functional_call(self.net, weights, (support,))
            loss = F.mse_loss(found, wanted)
            slopes = torch.autograd.grad(
                loss, list(weights.values()), create_graph=not self.first_order
            )
            weights = {
                name: weight - self.rate * slope
                for (name, weight), slope in zip(weights.items(), slopes, strict=True)
            }
        return F.mse_loss(torch.func.functional_call(self.net, weights, (query,)), label)


def _learner(net: nn.Module, **options: Any) -> Case:
    return MetaLearner(net, **options), tuple(torch.randn(4, n) for n in (3, 2, 3, 2))


def _perceptron(
    *, inputs: int = 3, outputs: int = 2, between: type[nn.Module] = nn.Tanh
) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 8), between(), nn.Linear(8, outputs))


class Net(nn.Module):
    """A module whose loss is a function of its network, an input, and a target."""

    def __init__(self, net: nn.Module, loss: Callable[[nn.Module, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.net, self.loss = net, loss

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss."""
        return self.loss(self.net, x, y)


def of_loss(
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor], net: nn.Module | None = None
) -> Case:
    """Return a module with a loss of a small network, and its inputs."""
    return Net(net or _perceptron(), loss), (torch.randn(4, 3), torch.randn(4, 2))


def hessian_vector(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Use a product of the Hessian by the input with a vector."""
    x = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(F.mse_loss(net(x), y), x, create_graph=True)
    (product,) = torch.autograd.grad((slope * torch.cos(x.detach())).sum(), x, create_graph=True)
    return product.square().sum()


def constant_slope(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Weight a loss by a gradient that is a constant to the outer one."""
    x = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(net(x).square().sum(), x)
    return ((net(x) - y).square().sum(-1) * slope.norm(dim=-1)).mean()


def unused(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Take gradients of which one is not there."""
    x, other = x.detach().requires_grad_(), torch.zeros(3).requires_grad_()
    found = net(x).square().sum()
    slope, none = torch.autograd.grad(found, [x, other], create_graph=True, allow_unused=True)
    assert none is None
    zeros = torch.autograd.grad(found, [other], create_graph=True, materialize_grads=True)[0]
    return (slope + zeros).square().mean() + F.mse_loss(net(x), y)


def by_features(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Take the gradient by features between layers."""
    features = net[1](net[0](x))
    scores = net[2](features)
    (slope,) = torch.autograd.grad(scores, features, y, create_graph=True)
    return (slope * features).sum(-1).square().mean() + F.mse_loss(scores, y)


def late_requirement(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Require a gradient after the tensor has been read: that reading has none."""
    x = x.detach()
    before = net(x) * x.sum()
    x.requires_grad_()
    (slope,) = torch.autograd.grad((net(x) * before).sum(), x, create_graph=True)
    return (slope - x).square().mean() + F.mse_loss(before, y)


def constant_input(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Take the gradient at points that are known: collocation of a differential equation."""
    points = torch.linspace(-1, 1, 12).reshape(4, 3).requires_grad_()
    twin = torch.linspace(-1, 1, 12).reshape(4, 3)
    found = net(points + 0 * twin)
    (slope,) = torch.autograd.grad(found.sum(), points, create_graph=True)
    (curve,) = torch.autograd.grad(slope.sum(), points, create_graph=True)
    return (curve + slope * twin).square().mean() + F.mse_loss(net(x), y)


def third_order(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Take the third derivative by a number."""
    t = torch.zeros(()).requires_grad_()
    found = (net(x + t) * y).sum()
    for _ in range(3):
        (found,) = torch.autograd.grad(found, t, create_graph=True)
    return found.square()


def per_sample(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Clip the gradient of every sample, as training with differential privacy does."""

    def loss(weights: Any, v: Tensor, w: Tensor) -> Tensor:
        return F.mse_loss(torch.func.functional_call(net, weights, (v[None],)), w[None])

    weights = dict(net.named_parameters())
    slopes = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, x, y)
    norms = torch.stack([one.flatten(1).norm(dim=1) for one in slopes.values()]).norm(dim=0)
    shares = (1 / norms).clamp(max=1.0)
    mean = {name: torch.einsum("n,n...->...", shares, one) for name, one in slopes.items()}
    moved = {name: weight - 0.1 * mean[name] for name, weight in weights.items()}
    return F.mse_loss(torch.func.functional_call(net, moved, (x,)), y)


def laplacian(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Use the trace of the Hessian of every sample."""

    def trace(v: Tensor) -> Tensor:
        return torch.func.hessian(lambda w: net(w).square().sum())(v).diagonal().sum()

    return torch.func.vmap(trace)(x).square().mean()


def tangent_kernel(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Use products of the Jacobians of samples by the parameters."""
    weights = dict(net.named_parameters())

    def applied(weights: Any, v: Tensor) -> Tensor:
        return torch.func.functional_call(net, weights, (v[None],))[0]

    slopes = torch.func.vmap(torch.func.jacrev(applied), (None, 0))(weights, x)
    flat = [one.flatten(2) for one in slopes.values()]
    kernel = torch.stack([torch.einsum("naf,maf->nm", one, one) for one in flat]).sum(0)
    return kernel.square().mean()


def directional(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Use a product with the Hessian, forward over reverse."""
    slope = torch.func.grad(lambda v: net(v).square().sum())
    found, moved = torch.func.jvp(slope, (x,), (x.cos(),))
    return (found * moved).sum()


def branches(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Choose a loss by data; the gradient of the one that is not taken is no number."""
    size = net(x).square().sum()
    found = torch.cond(size >= 0, torch.sqrt, lambda s: (-s).sqrt() + torch.log(s - s), (size,))
    assert isinstance(found, Tensor)
    return found + F.mse_loss(net(x), y)


class Pinn(nn.Module):
    """The residual of Burgers' equation at points (Raissi et al., "Physics-informed ...", 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)
        )

    def forward(self, t: Tensor, x: Tensor) -> Tensor:
        """Return the mean squared residual."""
        t, x = t.detach().clone().requires_grad_(), x.detach().clone().requires_grad_()
        u = self.net(torch.stack([t, x], -1)).squeeze(-1)
        ones = torch.ones_like(u)
        u_t, u_x = torch.autograd.grad(u, (t, x), ones, create_graph=True)
        (u_xx,) = torch.autograd.grad(u_x, x, ones, create_graph=True)
        return (u_t + u * u_x - 0.01 * u_xx).square().mean()


def _with(layer: Callable[[], nn.Module]) -> Callable[[], Case]:
    """Return a penalty on the gradient of a network with a layer in it."""

    def make() -> Case:
        net = nn.Sequential(nn.Linear(6, 8), layer(), nn.Tanh(), nn.Linear(8, 1))
        return Critic(net), (torch.randn(4, 6), torch.randn(4, 6))

    return make


class Attention(nn.Module):
    """Attention of a few heads over the features of a sample."""

    def __init__(self, *, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal
        self.project = nn.Linear(2, 12)

    def forward(self, x: Tensor) -> Tensor:
        """Return the attended features in the shape of the input."""
        rows = self.project(x.reshape(len(x), 4, 2)).reshape(len(x), 4, 2, 6).transpose(1, 2)
        q, k, v = rows.chunk(3, -1)
        with sdpa_kernel(SDPBackend.MATH):  # the others have no second gradient in PyTorch
            found = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return found.transpose(1, 2).reshape(len(x), -1)[:, :8]


_LAYERS: Mapping[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": lambda: nn.LeakyReLU(0.2),
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "gelu_tanh": lambda: nn.GELU("tanh"),
    "silu": nn.SiLU,
    "mish": nn.Mish,
    "softplus": nn.Softplus,
    "sigmoid": nn.Sigmoid,
    "hardswish": nn.Hardswish,
    "prelu": nn.PReLU,
    "softmax": lambda: nn.Softmax(-1),
    "log_softmax": lambda: nn.LogSoftmax(-1),
    "layer_norm": lambda: nn.LayerNorm(8),
    "rms_norm": lambda: nn.RMSNorm(8),
    "batch_norm": lambda: nn.BatchNorm1d(8),
    "batch_norm_eval": lambda: nn.BatchNorm1d(8).eval(),
    "attention": Attention,
    "causal_attention": lambda: Attention(causal=True),
    "glu": lambda: nn.Sequential(nn.Linear(8, 16), nn.GLU()),
}

CASES: Mapping[str, Callable[[], Case]] = {
    "penalty_conv": lambda: _images(_convolutional(nn.LeakyReLU(0.2))),
    "penalty_conv_norm": lambda: _images(_convolutional(nn.SiLU(), norm=True)),
    "force_field": _force_field,
    "maml": lambda: _learner(_perceptron()),
    "maml_relu": lambda: _learner(_perceptron(between=nn.ReLU), steps=1),
    "maml_first_order": lambda: _learner(_perceptron(), first_order=True),
    "pinn": lambda: (Pinn(), (torch.rand(8), torch.rand(8))),
    "hessian_vector": lambda: of_loss(hessian_vector),
    "constant_slope": lambda: of_loss(constant_slope),
    "unused": lambda: of_loss(unused),
    "by_features": lambda: of_loss(by_features),
    "late_requirement": lambda: of_loss(late_requirement),
    "constant_input": lambda: of_loss(constant_input),
    "third_order": lambda: of_loss(third_order),
    "per_sample": lambda: of_loss(per_sample),
    "laplacian": lambda: of_loss(laplacian),
    "tangent_kernel": lambda: of_loss(tangent_kernel),
    "directional": lambda: of_loss(directional),
    "branches": lambda: of_loss(branches),
    **{f"penalty_{name}": _with(layer) for name, layer in _LAYERS.items()},
}
