"""Parametrizations of PyTorch: what they compute, their buffers, and their gradients."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

import torch_compare as compare  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.utils import parametrizations, spectral_norm  # noqa: E402

from shardwright.frontends.torch import import_module  # noqa: E402


class Critic(nn.Module):
    """A convolution and a layer whose weights are divided by their largest singular value."""

    def __init__(self, normalized: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = normalized(nn.Conv2d(3, 4, 3, dtype=torch.float64))
        layer = nn.Linear(16, 3, dtype=torch.float64)
        self.last = normalized(layer, n_power_iterations=2)

    def forward(self, x: Any) -> Any:
        return self.last(self.first(x).tanh().flatten(1)).square().mean()


def images() -> tuple[Any, ...]:
    torch.manual_seed(1)
    return (torch.randn(8, 3, 4, 4, dtype=torch.float64),)


@pytest.mark.parametrize("normalized", [spectral_norm, parametrizations.spectral_norm])
def test_spectral_norms_and_their_vectors_are_pytorchs(normalized: Any) -> None:
    imported = import_module(Critic(normalized), images())
    module = Critic(normalized)
    found = compare.gradients_differ(module, images(), imported)
    assert max(found.loss, found.gradient) < 1e-12
    assert found.missing == found.extra == []
    updates = dict(imported.graph.updates)
    assert len(updates) == 4
    arrays = compare.arrays_of(imported, images())
    updated = compare.run(imported.graph, imported.initial, arrays, list(updates.values()))
    for name, following in updates.items():
        assert compare.difference(updated[following], module.get_buffer(name).numpy()) < 1e-12


@pytest.mark.parametrize("normalized", [spectral_norm, parametrizations.spectral_norm])
def test_spectral_norms_on_four_ranks(normalized: Any) -> None:
    assert max(compare.on_ranks(Critic(normalized), images(), 4)) < 1e-12
