"""Modules of PyTorch that compute, or write, where gradients are off."""

from copy import deepcopy
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

import torch_compare as compare  # noqa: E402
from torch import nn  # noqa: E402

from shardwright.frontends.torch import import_module  # noqa: E402
from shardwright.ir.errors import ModelError  # noqa: E402


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


class Stopped(nn.Module):
    """A layer that is computed without gradients too, in a program with writes or without."""

    def __init__(self, mode: Any, writes: bool) -> None:
        super().__init__()
        self.layer, self.mode, self.writes = nn.Linear(4, 4), mode, writes

    def forward(self, x: Any) -> Any:
        with self.mode():
            y = self.layer(x) * 2
            with torch.enable_grad():
                y = y * self.layer(x).tanh()
            y = y.exp()
        y = y.clone()  # a tensor with gradients, after the mode for inference
        if self.writes:
            y[:, 0] = x[:, 1]
        return (y * self.layer(x)).square().mean()


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_gradients_stop_where_they_are_off(mode: Any, writes: bool) -> None:
    x = torch.randn(3, 4, dtype=torch.float64)
    found = compare.gradients_differ(Stopped(mode, writes).double(), (x,))
    assert max(found.loss, found.gradient) < 1e-12


class Averaged(nn.BatchNorm1d):
    """A mean that is updated, and a table that is written, where gradients are off."""

    def forward(self, x: Any) -> Any:
        y, table = x * self.weight, x + 1
        with torch.no_grad():
            self.running_mean.mul_(0.9).add_(y.mean(0))
            table[:, 0] = y[:, 1]
        return (y * table - self.running_mean).square().mean()


def test_what_is_written_where_gradients_are_off_has_none() -> None:
    module, x = Averaged(4).double(), torch.randn(3, 4, dtype=torch.float64)
    imported = import_module(module, (x,))
    found = compare.gradients_differ(deepcopy(module), (x,), imported)
    assert max(found.loss, found.gradient) < 1e-12
    assert "running_mean" in dict(imported.graph.updates)


class Clamped(nn.Linear):
    """A layer whose results are changed in place, without a gradient of that."""

    def forward(self, x: Any) -> Any:
        y = super().forward(x)
        with torch.no_grad():
            y[:, 0].clamp_(0)
        return y.square().mean()


def test_writes_where_gradients_are_off_are_refused_with_their_line() -> None:
    with pytest.raises(ModelError, match=r"`linear` is written to where .*clamp_.*; write where"):
        import_module(Clamped(4, 4), torch.randn(3, 4))


class Hidden(nn.Linear):
    """A layer whose result is changed through a tensor that hides the change from its gradient."""

    def forward(self, x: Any) -> Any:
        y = super().forward(x)
        y[1:].detach()[0].mul_(2)
        return y.square().mean()


def test_writes_through_detached_tensors_are_refused_with_their_line() -> None:
    with pytest.raises(ModelError, match=r"`linear` is written to through `detach`.*mul_.*; write"):
        import_module(Hidden(4, 4), torch.randn(3, 4))


class DetachedInPlace(nn.Linear):
    """A layer whose result is detached after a first reader, and a copy that is written to."""

    def forward(self, x: Any) -> Any:
        y = super().forward(x)
        first, copy = y.tanh(), y.detach().clone()
        y.detach_().add_(1)
        copy[0] = 2.0
        return (first * y * copy).square().mean()


def test_tensors_that_are_detached_in_place_have_no_gradient_from_then_on() -> None:
    x = torch.randn(3, 4, dtype=torch.float64)
    found = compare.gradients_differ(DetachedInPlace(4, 4).double(), (x,))
    assert max(found.loss, found.gradient) < 1e-12


class WrittenDetached(nn.Linear):
    """A layer times a detached tensor, to which a parameter is added in place."""

    def __init__(self, made: Any) -> None:
        super().__init__(4, 4)
        self.made, self.table = made, nn.Parameter(torch.ones(3, 4))

    def forward(self, x: Any) -> Any:
        y = super().forward(x)
        made = self.made(y)
        made += self.table
        made[:, 0].mul_(y[:, 1])
        return (y * made).square().mean()


def _without_gradients(y: Any) -> Any:
    with torch.no_grad():
        return y * 2


_DETACHED = {
    "a constant": lambda y: torch.arange(12, dtype=y.dtype).view(3, 4).detach(),
    "a view": lambda y: torch.ones(12, dtype=y.dtype).detach().view(3, 4),
    "a result": lambda y: (y * 2).detach(),
    "twice": lambda y: (y * 2).detach().detach(),
    "of a mode": _without_gradients,
}


@pytest.mark.parametrize("case", _DETACHED)
def test_what_is_written_to_a_detached_tensor_has_a_gradient(case: str) -> None:
    x = torch.randn(3, 4, dtype=torch.float64)
    found = compare.gradients_differ(WrittenDetached(_DETACHED[case]).double(), (x,))
    assert max(found.loss, found.gradient) < 1e-12


class WrittenBesides(nn.Linear):
    """A layer whose result is written to, and through a detached tensor besides."""

    def forward(self, x: Any) -> Any:
        y = super().forward(x).exp()
        made = y.detach()
        y.add_(1)
        return made.add_(self.weight[:3]).square().mean()


def test_a_tensor_that_is_written_to_besides_its_detached_one_is_refused() -> None:
    with pytest.raises(ModelError, match=r"`exp` is written to through `detach`.*add_.*; write"):
        import_module(WrittenBesides(4, 4), torch.randn(3, 4))


class Routed(nn.Linear):
    """A layer whose result is looked at without gradients, as it is, and read afterwards."""

    def __init__(self, look: Any, writes: bool) -> None:
        super().__init__(4, 4)
        self.look, self.writes = look, writes

    def forward(self, x: Any) -> Any:
        y = super().forward(x)
        with torch.no_grad():
            seen = self.look(y)
            chosen = super().forward(seen)
        if self.writes:
            chosen[:, 0] = 1.0
        return (y.tanh() * chosen + seen.exp()).square().mean()


_LOOKS = {
    "to": lambda y: y.to(y.dtype),
    "double": lambda y: y.double(),
    "type_as": lambda y: y.type_as(y).contiguous(),
    "dropout": lambda y: nn.functional.dropout(y, 0.5, training=False),
    "copy": lambda y: y.to(y.dtype, copy=True),
    "view": lambda y: y.view(3, 4),
    "turned": lambda y: y.t().contiguous().t(),
}


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize("look", _LOOKS)
def test_what_is_looked_at_without_gradients_keeps_its_own(look: str, writes: bool) -> None:
    x = torch.randn(3, 4, dtype=torch.float64)
    found = compare.gradients_differ(Routed(_LOOKS[look], writes).double(), (x,))
    assert max(found.loss, found.gradient) < 1e-12
