"""Parametrizations of PyTorch: what they compute, their buffers, and their gradients."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

import torch_compare as compare  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.utils import parametrizations, spectral_norm  # noqa: E402

import shardwright  # noqa: E402
from shardwright.frontends.torch import import_module  # noqa: E402
from shardwright.ir.errors import OptionError  # noqa: E402


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


class Orthogonal(nn.Module):
    """Layers whose weights are orthogonal: square, wide and high, with a base and without."""

    def __init__(self, by: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.Linear(n, m, dtype=torch.float64) for n, m in ((4, 6), (6, 6), (6, 3))]
        self.layers = nn.ModuleList(
            parametrizations.orthogonal(layer, orthogonal_map=by, use_trivialization=has_base)
            for layer, has_base in zip(layers, (True, False, False), strict=True)
        )

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x).tanh()
        return x.square().mean()


@pytest.mark.parametrize("by", ["householder", "matrix_exp", "cayley"])
def test_orthogonal_parametrizations_are_pytorchs(by: str) -> None:
    inputs = (torch.randn(8, 4, dtype=torch.float64),)
    found = compare.gradients_differ(Orthogonal(by), inputs)
    assert max(found.loss, found.gradient) < 1e-12
    assert found.missing == found.extra == []
    assert max(compare.on_ranks(Orthogonal(by), inputs, 4)) < 1e-12


class Algebra(nn.Module):
    """Equations with matrices, general, triangular and positive; determinants."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.matrix = nn.Parameter(torch.randn(4, 4, dtype=torch.float64))
        self.reflections = nn.Parameter(torch.randn(6, 4, dtype=torch.float64))
        self.factors = nn.Parameter(torch.randn(3, dtype=torch.float64))

    def forward(self, x: Any) -> Any:
        linalg, one = torch.linalg, torch.eye(4, dtype=x.dtype)
        a, high = self.matrix + 4 * one, x.mT
        found = [linalg.solve(a, x), linalg.solve(a, high, left=False), linalg.solve(a, x[0, :, 0])]
        found.append(linalg.solve(a + x[..., :4], x[..., 0]))
        for upper, unit in ((True, False), (False, True)):
            for left in (True, False):
                how = {"upper": upper, "left": left, "unitriangular": unit}
                found.append(linalg.solve_triangular(a, x if left else high, **how))
        positive = a @ a.T
        factor = linalg.cholesky(positive)
        uneven = linalg.cholesky(positive + torch.triu(x[0, :, :4], 1), upper=False)
        found += [factor @ x, uneven, linalg.cholesky(positive, upper=True)]
        found += [torch.cholesky_solve(x, factor), torch.cholesky_inverse(factor), linalg.inv(a)]
        found += [torch.logdet(positive), linalg.slogdet(a + x[..., :4])[1]]
        found += [linalg.matrix_exp(9 * self.matrix).tanh(), linalg.matrix_exp(x[..., :4] @ a / 99)]
        found.append(linalg.householder_product(self.reflections, self.factors))
        return sum(one.square().mean() for one in found)


def test_linear_algebra_is_pytorchs() -> None:
    inputs = (torch.randn(8, 4, 6, dtype=torch.float64),)
    found = compare.gradients_differ(Algebra(), inputs)
    assert max(found.loss, found.gradient) < 1e-11
    assert max(compare.on_ranks(Algebra(), inputs, 4)) < 1e-11


class Filtered(nn.Module):
    """Equations of each sample by themselves, under `vmap`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.matrix = nn.Parameter(torch.randn(4, 4, dtype=torch.float64))

    def forward(self, x: Any) -> Any:
        def each(v: Any) -> Any:
            positive = torch.outer(v, v) + self.matrix @ self.matrix.T + 2 * torch.eye(4)
            factor = torch.linalg.cholesky(positive)
            found = torch.linalg.solve(positive, v), torch.linalg.inv(positive) @ v, factor @ v
            return torch.stack(found)

        return torch.func.vmap(each)(x).tanh().square().mean()


def test_equations_under_vmap_are_pytorchs() -> None:
    inputs = (torch.randn(8, 4, dtype=torch.float64),)
    found = compare.gradients_differ(Filtered(), inputs)
    assert max(found.loss, found.gradient) < 1e-12
    assert max(compare.on_ranks(Filtered(), inputs, 4)) < 1e-12


def test_a_spectral_norm_that_moves_has_no_micro_batches() -> None:
    torch.manual_seed(0)
    module = parametrizations.spectral_norm(nn.Linear(6, 3).double())
    inputs = (torch.randn(8, 6, dtype=torch.float64),)
    options = {"example_inputs": inputs, "loss": "mean", "micro_batches": 2}
    with pytest.raises(OptionError) as refused:
        shardwright.compile(module, 2, **options)
    assert str(refused.value) == (
        "the state `parametrizations.weight.0._u` moves once in a step, and once for each "
        "micro-batch where gradients are accumulated; train with one micro-batch"
    )
    shardwright.compile(module.eval(), 2, **options)
