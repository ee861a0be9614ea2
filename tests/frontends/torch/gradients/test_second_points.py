"""Second gradients at ties, zeros, bounds and infinities are autograd's, in float64.

Where autograd's is NaN, such as that of a norm at zero, there is nothing to compare.
"""

from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

import torch_compare as compare  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

from shardwright.dataflow.cotangents import gradient_name  # noqa: E402
from shardwright.frontends.torch import import_module  # noqa: E402
from shardwright.passes.canonicalize import Canonicalize  # noqa: E402
from shardwright.passes.differentiate import Differentiate  # noqa: E402

Function = Callable[..., Any]
Array = np.ndarray


def _weights(x: Any, step: float) -> Any:
    return 0.5 + step * torch.arange(x.numel(), dtype=x.dtype).view(x.shape) % 1


class Twice(nn.Module):
    """The sum of the gradients of a function by all of its operands, each with its weight."""

    def __init__(self, function: Function, *arrays: Any) -> None:
        super().__init__()
        self.function = function
        self.operands = nn.ParameterList(torch.as_tensor(a, dtype=torch.float64) for a in arrays)

    def forward(self, x: Any) -> Any:
        operands = [one + x for one in self.operands]
        found = self.function(*operands)
        results = [
            r for r in (found if isinstance(found, tuple) else [found]) if r.dtype.is_floating_point
        ]
        total = sum((r * _weights(r, 0.7)).sum() for r in results)
        slopes = torch.autograd.grad(total, operands, create_graph=True, materialize_grads=True)
        steps = (0.3, 0.43, 0.61)
        curves = sum((s * _weights(s, step)).sum() for s, step in zip(slopes, steps, strict=False))
        return curves + total * 0.125, *slopes


def agree(function: Function, *arrays: Any) -> None:
    """Check the first and the second gradients of a function."""
    module, x = Twice(function, *arrays), torch.zeros((), dtype=torch.float64)
    right = module(x)
    right[0].backward()
    imported = import_module(module, (x,), loss="none", outputs=True)
    graph = Differentiate().run(Canonicalize().run(imported.graph))
    expected = dict(zip(imported.graph.outputs, right, strict=True))
    expected |= {gradient_name(name): p.grad for name, p in module.named_parameters()}
    feed = compare.arrays_of(imported, (x,))
    found = compare.run(graph, imported.initial, feed, [n for n in expected if n in graph.values])
    found |= compare.run(imported.graph, imported.initial, feed, list(imported.graph.outputs))
    for name, tensor in expected.items():
        if not tensor.shape:
            continue  # infinite, where an element is
        array = (tensor.detach() + 0).numpy()
        given = np.where(np.isnan(array), np.nan, found.get(name, np.zeros(array.shape)))
        np.testing.assert_allclose(given, array, rtol=1e-8, atol=1e-11, err_msg=name)


REALS = np.array([-1000.0, -50, -20, -6, -3, -2, -1, -0.5, -0.1, 0, 0.1, 0.5, 1, 2, 3, 6, 20, 50])
SHARES = np.array([0, 1e-300, 1e-14, 1e-12, 1e-6, 0.25, 0.5, 0.75, 1 - 1e-9, 1 - 2**-53, 1])
TIES = np.array([[1.0, 2, 2, 0], [3, 3, 3, 3], [-1, 0, 0, -1]])
ROWS = np.concatenate([TIES, [[0.1, 0.2, -0.3, 0.4], [0, 0, 0, 0], [1, 1, 1, 1]]])
LABEL = torch.tensor([0, 1, 2, 3, 0, 1])
PLACES = torch.tensor([[0, 1, 0, 2], [3, 0, 2, 1], [0, 0, 1, 1]]).repeat(2, 1)


def _all(names: str, owner: Any) -> Function:
    return lambda x: tuple(getattr(owner, name)(x) for name in names.split())


def test_activations() -> None:
    names = "relu relu6 elu selu celu gelu silu softplus logsigmoid hardswish hardtanh hardshrink"
    agree(_all(names + " softshrink softsign tanhshrink sigmoid tanh", F), REALS)
    agree(F.mish, REALS[1:])


def test_activations_with_parameters() -> None:
    agree(lambda x: (F.elu(x, 2.0), F.elu(x, -0.3), F.celu(x, 2.0), F.celu(x, -1.5)), REALS)
    agree(
        lambda x: (F.leaky_relu(x, 0.2), F.leaky_relu(x, -0.2), F.gelu(x, approximate="tanh")),
        REALS,
    )
    agree(
        lambda x: (F.softplus(x, 2.0, 6.0), F.softplus(x, 1.0, 0.0), F.threshold(x, 0.5, 3.0)),
        REALS,
    )
    agree(lambda x, w: (F.prelu(x, w), F.prelu(x[0], w), F.prelu(x[:, :, None], w)), TIES, [0.25])
    agree(F.prelu, TIES, [0.25, 0, -0.1, 1])


def test_functions() -> None:
    agree(_all("abs exp expm1 sin cos sinh atan asinh erf erfc square tan", torch), REALS / 10)
    agree(_all("sqrt rsqrt reciprocal log log1p log2", torch), [1e-8, 0.5, 1, 2, 1e5, inf])
    agree(_all("asin acos atanh erfinv", torch), [-1 + 1e-9, -0.5, 0, 0.5, 1 - 1e-9])
    agree(lambda x: (x.logit(), x.logit(1e-6)), SHARES[2:-1])


def test_powers() -> None:
    exponents = (0, 1, 2, 3, -1, -2)
    agree(lambda x: tuple(x**exponent for exponent in exponents), [0.5, 1, 2, -1, -2])
    agree(lambda x: (x**2, x**3, x**2.5, x**2.0), [0.0, 1, 2])
    agree(lambda a, b: a**b, [2.0, 2, 1, 0.5, 3], [3.0, 0, -1, 5, 0])


def test_bounds() -> None:
    agree(lambda x: (x.clamp(-1, 1) * x, x.clamp(min=0.5) * x, x.clamp(max=0.5) * x), REALS)
    agree(lambda x: (x.clamp(min=0.5), x.clamp(max=0.5), x * x), [-inf, 0.5, inf])
    agree(
        lambda x, a, b: x.clamp(a, b) * x, [0.0, 1, 2, 3, 1], [0.0, 1, 3, 1, 2], [1.0, 1, 1, 3, 0]
    )
    names = "maximum minimum fmax fmin"
    agree(
        lambda a, b: tuple(getattr(torch, name)(a * a, b * a) for name in names.split()),
        [0.0, 1, 2, 3],
        [0.0, 1, 1, 4],
    )


REDUCTIONS: dict[str, Function] = {
    "extrema": lambda x: (x.amax(1), (x * x + x).amin(0), (x * x).amax((0, 1)).exp()),
    "chosen": lambda x: ((x * x).max(), (x * x).min(), *(x * x).max(1), *(x * x).min(0)),
    "running": lambda x: (*(x * x).cummax(1), *(x * x).cummin(0), (x * x).cumsum(1)),
    "medians": lambda x: ((x * x).median(), *(x * x).median(1), *torch.sort(x * x, stable=True)),
    "sums of exponentials": lambda x: (x.logsumexp(1), x.softmax(1), x.log_softmax(0)),
    "variances": lambda x: (x.var(1), x.var(0, unbiased=False)),
    "norms": lambda x: tuple(
        torch.linalg.vector_norm(x * x + 1, p, 1) for p in (0.5, 1, 2, 3, inf)
    ),
    "distances": lambda x: tuple(torch.cdist(x, x.flip(1) + 0.1, p=p) for p in (1, 2, 3, inf)),
    "normalized": lambda x: (F.layer_norm(x, (4,)), F.rms_norm(x, (4,)), F.group_norm(x, 2)),
    "batch": lambda x: (F.batch_norm(x, None, None, training=True), F.instance_norm(x[None])),
    "pools": lambda x: (F.max_pool1d((x * x)[None], 3, 1, 1), F.max_pool2d((x * x)[None], 2, 1)),
    "scattered": lambda x: tuple(
        (x * x).scatter_reduce(1, PLACES, x.flip(1) * x, how) for how in ("amax", "mean", "sum")
    ),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str) -> None:
    agree(REDUCTIONS[name], ROWS)


def test_the_last_of_numbers_that_are_none_is_the_largest_of_a_window() -> None:
    agree(lambda x: F.max_pool1d(x[None], 3, 1, 1), [[1.0, np.nan, 2, np.nan], [3, 3, 3, inf]])


# Losses


@pytest.mark.parametrize("label", [0.0, 0.3, 1.0])
def test_entropies_of_probabilities(label: float) -> None:
    def entropies(x: Any) -> Any:
        labels = torch.full_like(x, label).detach()
        kinds = ("none", "mean", "sum")
        return tuple(F.binary_cross_entropy(x, labels, reduction=kind) for kind in kinds)

    agree(entropies, SHARES)


@pytest.mark.parametrize("labels", [SHARES, SHARES[::-1].copy()])
def test_entropies_by_trained_labels(labels: Array) -> None:
    agree(lambda x, y: F.binary_cross_entropy(x, y, weight=_weights(x, 0.3)), SHARES, labels)
    agree(F.binary_cross_entropy_with_logits, REALS[: len(labels)], labels)


def test_first_gradients_by_labels_that_depend_on_the_input() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(3, 3).double()

        def forward(self, x: Any) -> Any:
            x = x.detach().requires_grad_()
            loss = F.binary_cross_entropy_with_logits(self.a(x), torch.sigmoid(x))
            (slope,) = torch.autograd.grad(loss, x, retain_graph=True)
            return (self.a(x) * slope).sum()

    found = compare.gradients_differ(Own(), (torch.randn(4, 3, dtype=torch.float64),))
    assert max(found.loss, found.gradient) < 1e-9


LOSSES: dict[str, Function] = {
    "cross entropy": lambda x: (
        F.cross_entropy(x, LABEL),
        F.cross_entropy(x, LABEL, label_smoothing=0.1),
        F.cross_entropy(x, LABEL.where(LABEL > 0, -100)),
        F.cross_entropy(x, (x * 0.5).softmax(1)),
    ),
    "margins": lambda x: (
        F.soft_margin_loss(x, torch.ones_like(x).detach()),
        F.triplet_margin_loss(x, x.flip(0) + 1, x.flip(1)),
        F.hinge_embedding_loss(x * x, 2 * (x.detach() > 0).double() - 1),
    ),
    "distances": lambda x: (
        F.l1_loss(x, x.flip(1) * x),
        F.smooth_l1_loss(x, 0 * x, beta=2.0),
        F.huber_loss(x, 0 * x, delta=2.0),
        F.poisson_nll_loss(x, torch.ones_like(x).detach()),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str) -> None:
    agree(LOSSES[name], ROWS)


def test_variances_below_the_least_one_have_gradients() -> None:
    agree(
        lambda x, v: F.gaussian_nll_loss(x, x.detach() * 0.5, v, full=True, eps=1e-3),
        [0.0, 1, 2, 3, -1],
        [0.0, 1e-4, 1e-3, 0.5, 3],
    )


def _attended(x: Any, mask: Any) -> Any:
    with sdpa_kernel(SDPBackend.MATH):  # the others have no second gradient in PyTorch
        return F.scaled_dot_product_attention(*(y[None, None] for y in (x, x * x, x)), mask)


def test_queries_without_keys() -> None:
    seen = torch.tensor([[True, False, True], [False] * 3, [True] * 3]).repeat(2, 2)
    agree(lambda x: _attended(x, seen), ROWS)
    agree(lambda x: _attended(x, torch.zeros(6, 6).double().masked_fill(~seen, -inf)), ROWS)
    agree(lambda x, bias: _attended(x, bias), ROWS, np.zeros((6, 6)))
