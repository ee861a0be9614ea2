"""Linear recurrences that PyTorch traces step by step: one operator, with the same gradients."""

from collections import Counter
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

import torch_compare as compare  # noqa: E402
from torch import nn  # noqa: E402

from shardwright.frontends.torch import import_module  # noqa: E402

BATCH, STEPS, FEATURES, STATE = 4, 6, 6, 4


class Selective(nn.Module):
    """The loop of a state space model, with a state of several numbers for each feature."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.rand(FEATURES, STATE))
        self.of_step = nn.Linear(FEATURES, FEATURES)
        self.b, self.c = nn.Linear(FEATURES, STATE), nn.Linear(FEATURES, STATE)

    def forward(self, x: Any) -> Any:
        step = nn.functional.softplus(self.of_step(x)).transpose(1, 2)
        factors = torch.exp(-self.a[None, :, None, :] * step[..., None])
        terms = step[..., None] * self.b(x)[:, None] * x.transpose(1, 2)[..., None]
        read, outputs = self.c(x), []
        state = torch.zeros(len(x), FEATURES, STATE, dtype=x.dtype)
        for i in range(x.shape[1]):
            state = factors[:, :, i] * state + terms[:, :, i]
            outputs.append(torch.matmul(state, read[:, i, :].unsqueeze(-1))[:, :, 0])
        y = torch.stack(outputs, dim=-1)
        return (y * y.cos()).sum() / len(x), y, state


class Gated(nn.Module):
    """A minimal gated unit from a learned state, whose gates every step makes; then backward."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.new = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
        self.start = nn.Parameter(torch.randn(FEATURES))

    def forward(self, x: Any) -> Any:
        gates, new = self.gate(x), self.new(x)
        state, forward = self.start.expand(len(x), -1), []
        for z, n in zip(gates.unbind(1), new.unbind(1), strict=True):
            z = z.sigmoid()
            state = (1 - z) * state + z * n
            forward.append(state.tanh())
        y, back = torch.stack(forward, dim=1), []
        state = torch.zeros(len(x), FEATURES, dtype=x.dtype)
        for i in reversed(range(x.shape[1])):
            state = y[:, i] + state * y[:, i].cos()
            back.append(state)
        z = torch.stack(back[::-1], dim=0)
        return (z * z.cos()).mean(), z


class Fading(nn.Module):
    """A decay that is the same in every step, along the first dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.rand(FEATURES))

    def forward(self, x: Any) -> Any:
        state, found = torch.zeros_like(x[0]), []
        for one in x:
            state = self.decay * state + one
            found.append(state)
        y = torch.stack(found, dim=2)
        return (y * y.cos()).mean(), y, found[3]


class Mixing(nn.Module):
    """States of two dimensions, each multiplied by several matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(2, FEATURES, 3))
        self.first = nn.Linear(FEATURES, FEATURES)

    def forward(self, x: Any) -> Any:
        x = self.first(x).transpose(0, 1)
        state, found, turned = x[0], [], []
        for one in x:
            state = one.sin() * state + one
            found.append(torch.matmul(state, self.weights))
            turned.append(torch.matmul(self.weights.mT, state.T))
        y, z = torch.stack(found, dim=1), torch.stack(turned, dim=-1)
        return (y * y.cos()).mean() + (z * z.sin()).mean(), y, z


MODULES = {
    "selective": (Selective, 1),
    "gated": (Gated, 2),
    "fading": (Fading, 1),
    "mixing": (Mixing, 1),
}


def made(name: str) -> tuple[Any, Any]:
    """Return a module in float64, and its inputs."""
    torch.manual_seed(0)
    return MODULES[name][0]().double(), (torch.randn(BATCH, STEPS, FEATURES).double(),)


@pytest.mark.parametrize("name", MODULES)
def test_a_loop_is_one_operator_with_the_gradients_of_autograd(name: str) -> None:
    module, inputs = made(name)
    assert compare.outputs_differ(module, inputs) < 1e-12
    found = compare.gradients_differ(module, inputs)
    assert max(found.loss, found.gradient) < 1e-9
    assert not found.missing
    operators = Counter(node.operator for node in found.imported.graph.nodes)
    assert operators["linear_recurrence"] == MODULES[name][1]
    assert not operators["stack"]


@pytest.mark.parametrize("name", MODULES)
def test_four_ranks_compute_what_autograd_does(name: str) -> None:
    module, inputs = made(name)
    assert max(compare.on_ranks(module, inputs, 4)) < 1e-9


@pytest.mark.parametrize("name", ["selective", "gated"])
def test_as_many_nodes_for_any_number_of_steps(name: str) -> None:
    module, _ = made(name)
    counts = [
        len(import_module(module, (torch.randn(2, steps, FEATURES).double(),)).graph)
        for steps in (4, 17)
    ]
    assert counts[0] == counts[1]


class Reading(nn.Module):
    """Steps whose terms read the state before: no linear recurrence."""

    def forward(self, x: Any) -> Any:
        state, found = torch.zeros_like(x[:, 0]), []
        for i in range(x.shape[1]):
            state = x[:, i] * state + (state + x[:, i]).tanh()
            found.append(state)
        return torch.stack(found, dim=1).square().mean()


class Skipping(nn.Module):
    """Steps that do not follow each other in the tensor."""

    def forward(self, x: Any) -> Any:
        state = torch.zeros_like(x[:, 0])
        for i in (0, 2, 1, 4):
            state = x[:, i] * state + x[:, i]
        return state.square().mean()


class Scaled(nn.Module):
    """Layers with a scale of their own: a chain of the same form, of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(FEATURES, FEATURES) for _ in range(4))
        self.scales = nn.ParameterList(torch.rand(FEATURES) for _ in range(4))

    def forward(self, x: Any) -> Any:
        for layer, scale in zip(self.layers, self.scales, strict=True):
            x = x * scale + layer(x)
        return x.square().mean()


@pytest.mark.parametrize("kind", [Reading, Skipping, Scaled])
def test_other_chains_stay_as_they_are(kind: Any) -> None:
    torch.manual_seed(0)
    module, x = kind().double(), torch.randn(BATCH, STEPS, FEATURES).double().requires_grad_()
    weighted = nn.Linear(FEATURES, FEATURES).double()

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.rest = weighted, module

        def forward(self, x: Any) -> Any:
            return self.rest(self.first(x))

    found = compare.gradients_differ(Whole(), (x.detach(),))
    assert max(found.loss, found.gradient) < 1e-9
    operators = {node.operator for node in found.imported.graph.nodes}
    assert "linear_recurrence" not in operators
