"""PyTorch at ties, zeros, bounds, infinities and NaN: results and gradients are autograd's."""

from collections.abc import Callable
from math import inf, nan
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

import torch_compare as compare  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from shardwright.dataflow.cotangents import gradient_name  # noqa: E402
from shardwright.frontends.torch import import_module  # noqa: E402
from shardwright.ir.errors import ModelError  # noqa: E402
from shardwright.passes.canonicalize import Canonicalize  # noqa: E402
from shardwright.passes.differentiate import Differentiate  # noqa: E402

Function = Callable[..., Any]
Array = np.ndarray


class Weighted(nn.Module):
    """The sum of the results of a function of parameters, each element with its weight."""

    def __init__(self, function: Function, *arrays: Any) -> None:
        super().__init__()
        self.function = function
        self.operands = nn.ParameterList(torch.as_tensor(a, dtype=torch.float64) for a in arrays)

    def forward(self, x: Any) -> Any:
        found = self.function(*self.operands)
        results = list(found) if isinstance(found, tuple) else [found]
        floats = [r for r in results if r.is_floating_point()]
        weights = [torch.arange(r.numel(), dtype=torch.float64).view(r.shape) for r in floats]
        total = sum((r * (0.7 * w % 1 + 0.5)).sum() for r, w in zip(floats, weights, strict=True))
        return total + x, *results


def agree(function: Function, *arrays: Any) -> None:
    """Check all results of a function, and the gradients by its arrays."""
    module, x = Weighted(function, *arrays), torch.zeros((), dtype=torch.float64)
    right = module(x)
    right[0].backward()
    imported = import_module(module, (x,), loss="none", outputs=True)
    names = list(imported.graph.outputs)
    graph = Differentiate().run(Canonicalize().run(imported.graph))
    trained = [name for name, _ in module.named_parameters()]
    gradients = [name for name in map(gradient_name, trained) if name in graph.values]
    feed = compare.arrays_of(imported, (x,))
    with np.errstate(all="ignore"):
        found = compare.run(imported.graph, imported.initial, feed, names)
        found |= compare.run(graph, imported.initial, feed, gradients)
    for name, result in zip(names[1:], right[1:], strict=True):
        close(found[name], result.detach().numpy(), name)
    for name, parameter in module.named_parameters():
        none = np.zeros(parameter.shape)
        expected = none if parameter.grad is None else parameter.grad.numpy()
        close(found.get(gradient_name(name), none), expected, name)


def close(found: Array, expected: Array, name: str) -> None:
    assert found.dtype == expected.dtype, name
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12, err_msg=name)


TIES = np.array([[1.0, 2, 2, 0], [3, 3, 3, 3], [-1, 0, 0, -1]])
GAPS = np.array([[1.0, nan, 2, nan], [3, 3, 3, 3], [-1, 0, 0, inf]])
ROWS = torch.tensor([[0, 1, 0, 2], [1, 1, 0, 0], [0, 2, 2, 0]])
COLUMNS = torch.tensor([[0, 1, 0, 3], [1, 1, 0, 0], [0, 2, 2, 3]])
ALL = np.array([-inf, -1e5, -1000, -50, -6, -3, -1, -0.5, 0, 0.5, 1, 3, 6, 50, 1000, 1e5, inf])
EMPTY = np.array([[-inf, -inf, -inf], [1, -inf, 2]])
LABEL, LABELS = torch.tensor([0, 1, 2]), torch.tensor([[0, 1, -1, 2], [3, 0, 2, 1], [-1] * 4])


def _scattered(axis: int, how: str, include_self: bool) -> Function:
    index = COLUMNS if axis else ROWS
    return lambda x, src: x.scatter_reduce(axis, index, src, how, include_self=include_self)


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("how", ["amax", "amin"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("x", [TIES, GAPS], ids=["ties", "gaps"])
def test_scattered_extrema(x: Array, axis: int, how: str, include_self: bool) -> None:
    agree(_scattered(axis, how, include_self), x, x[::-1].copy())


EXTREMA: dict[str, Function] = {
    "medians": lambda x: (x.median(), *x.median(1), *x.median(0)),
    "all": lambda x: (x.max(), x.min()),
    "along": lambda x: (*x.max(1), *x.min(0), x.argmax(1), x.argmin()),
    "shared": lambda x: (x.amax(1), x.amin(0), x.amax((0, 1)), *x.aminmax(dim=0)),
    "running": lambda x: (*x.cummax(1), *x.cummin(0)),
    "sorted": lambda x: (*torch.sort(x, stable=True), *torch.sort(x, descending=True, stable=True)),
    "values": lambda x: (x.topk(2, 1).values.detach(), x.kthvalue(2, 1).values.detach(), x),
    "pairs": lambda x: (torch.maximum(x, x.flip(1)), torch.minimum(x, x[:1]), torch.max(x, x)),
    "numbers": lambda x: (torch.fmax(x, x.flip(1)), torch.fmin(x, x), torch.fmax(x[:1], x)),
    "bounds": lambda x: (x.clamp(min=x.flip(0)), x.clamp(max=x[0]), x.clamp(x.flip(1), 2 * x)),
    "pools": lambda x: (F.max_pool1d(x[None], 3, 1, 1), F.max_pool2d(x[None], 2, 1)),
}


@pytest.mark.parametrize("x", [TIES, GAPS], ids=["ties", "gaps"])
@pytest.mark.parametrize("name", EXTREMA)
def test_extrema(name: str, x: Array) -> None:
    agree(EXTREMA[name], x)


def test_quantiles() -> None:
    # Which of equal elements has the gradient PyTorch leaves open: of these none are.
    agree(lambda x: x.quantile(0.4, dim=1), np.array([[1.0, -2, 3, 0], [4, nan, -1, 2]]))


NUMBERS = np.array(np.meshgrid(*[[0.0, 1, 2, nan]] * 3)).reshape(3, -1)


def test_numbers_at_bounds() -> None:
    x, low, high = NUMBERS
    agree(lambda x, a, b: x.clamp(a, b), x, low, high)
    agree(lambda x: (x.clamp(1, 2), x.clamp(min=1), x.clamp_max(1), F.hardtanh(x, 0, 1)), x)
    agree(lambda x, a: (x.clamp(min=a), x.clamp(max=a), torch.fmax(x, a), torch.fmin(x, a)), x, low)
    agree(lambda x, a: (x[:, None].clamp(a[:5], x[0]), x.clamp(x.new_ones(()), a)), x, low)


def _distances(x: Any) -> Any:
    return tuple(torch.cdist(x, x.flip(1), p=p) for p in (0, 3, inf))


POINTS: dict[str, tuple[Any, ...]] = {
    "distances": (_distances, TIES),
    "distances of many": (lambda x: torch.cdist(x, x.flip(0)), np.tile(TIES, (9, 1))),
    "samples at borders": (
        lambda x, at: tuple(
            F.grid_sample(x[None, None], at[None, None], "bilinear", padding, align_corners=True)
            for padding in ("zeros", "border", "reflection")
        ),
        TIES,
        [[-1.0, -1], [1, 1], [0, -1], [0.5, 2]],
    ),
    "distances with gaps": (_distances, np.minimum(GAPS, 5)),
    "celu": (lambda x: (F.celu(x), F.celu(x, 2.0), F.celu(x, -1.5)), ALL[1:-1]),
    "celu of infinity": (F.celu, ALL),
    "elu": (lambda x: (F.elu(x), F.selu(x), F.elu(x, -0.3)), ALL),
    "logarithm of a sigmoid": (lambda x: (x.sigmoid().log(), F.logsigmoid(x)), ALL[1:-3]),
    "corners": (lambda x: (F.relu6(x), F.hardtanh(x), F.hardswish(x), F.hardshrink(x)), ALL),
    "rounding": (lambda x: (x.round(), x.floor(), x % -2, x.fmod(2)), ALL[1:-1] / 2),
    "hypot": (torch.hypot, [0.0, -3, inf, 1e200, nan], [0.0, 4, 1, 1e200, inf]),
    "copysign": (torch.copysign, [0.0, -3, 2, -inf, 1], [-0.0, -0.0, 0, 3, -inf]),
    "digamma": (torch.digamma, np.array([-1.5, -0.0, 0, 0.5, 2, 1e9])),
    "polygamma": (lambda x: torch.polygamma(3, x), np.array([-1.5, 0.5, 2, 30])),
    "lgamma": (torch.lgamma, np.array([-inf, -2, -1.5, -1, -0.0, 0, 0.5, 1, 2, inf])),
    "lerp": (lambda a, b: a.lerp(b, 1.0), [1e10, 3, -inf], [1e-10, 4, 2.0]),
    "lerp by weights": (
        lambda a, b, w: a.lerp(b, w),
        [1e10, 1e10, 3, -inf],
        [1e-10, 1e-10, 5, 2],
        [1.0, 0, 0.25, 1],
    ),
    "softmax of nothing": (lambda x: torch.ops.aten._safe_softmax(x, 1), EMPTY),
    "pool of infinity": (lambda x: F.max_pool1d(x[None], 3, 1, 1), EMPTY),
    "norms of zero": (lambda x: tuple((x * 0).norm(p, 1) for p in (0.5, 1, 2, 3, inf)), TIES),
    "products of zeros": (lambda x: (x.prod(1), x.prod(), x.cumprod(0), x.cumprod(1)), TIES),
    "powers": (lambda a, b: (a.abs() ** b, a**0, a**2, a**3), [0.0, 0, 0, 2], [0.0, 0.5, 3, 0]),
    "logarithms of zero": (
        lambda a, b: (torch.xlogy(a, b), torch.special.xlog1py(a, b - 1)),
        [0.0, 0, 0, 2, 0, nan],
        [0.0, 1, -1, 0, nan, 0],
    ),
    "corner of a distance": (
        lambda a, b: (
            F.huber_loss(a, b, delta=2.0, reduction="none"),
            F.smooth_l1_loss(a, b, beta=2.0, reduction="none"),
        ),
        [0.0, 1, 2, 3],
        [0.0, 3, 0, 0],
    ),
    "no labels": (lambda x: F.cross_entropy(x, LABEL * 0 - 100), TIES),
    "labels of no weight": (
        lambda x: F.cross_entropy(x, LABEL, x.new_zeros(4), reduction="sum"),
        TIES,
    ),
    "margins": (
        lambda x: (F.multi_margin_loss(x, LABEL), F.multi_margin_loss(x, LABEL, p=2)),
        TIES,
    ),
    "margins and weights": (
        lambda x: F.multi_margin_loss(x, LABEL, margin=0, weight=x.new_full((4,), 2.0)),
        TIES,
    ),
    "margins of labels": (lambda x: F.multilabel_margin_loss(x, LABELS), 1.3 * TIES),
    "margins of each label": (
        lambda x: F.multilabel_margin_loss(x, LABELS, reduction="none"),
        TIES,
    ),
    "margins of one": (lambda x: F.multi_margin_loss(x[0], LABEL[1]), TIES),
}


@pytest.mark.parametrize("name", POINTS)
def test_points(name: str) -> None:
    function, *arrays = POINTS[name]
    agree(function, *arrays)


class Tied(nn.Module):
    """Operators that share gradients, of equal elements in parameters and samples."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randint(0, 3, (8, 4), dtype=torch.float64))

    def forward(self, x: Any, index: Any) -> Any:
        y = x * self.weight
        found = y.scatter_reduce(1, index, y.flip(1), "amax", include_self=False)
        found = found + self.weight.scatter_reduce(0, index, y, "amin")
        distances = torch.cdist(y, self.weight, p=inf)
        return found.square().sum() + distances.sum() + y.median() + y.max() + y.median(1)[0].sum()


def test_shared_gradients_of_a_plan_of_four_ranks() -> None:
    torch.manual_seed(0)
    x = torch.randint(0, 3, (8, 4), dtype=torch.float64)
    index = torch.randint(0, 4, (8, 4))
    assert max(compare.on_ranks(Tied(), (x, index), 4)) < 1e-9
    assert max(compare.on_ranks(Tied(), (x, index), 4, mesh="4")) < 1e-9


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("floor_divide", lambda w: (w // 0.3) * w),
        ("remainder", lambda w: 5.0 % w),
        ("heaviside", lambda w: torch.heaviside(w, w) * w),
    ],
)
def test_operators_without_a_derivative_are_refused(name: str, function: Function) -> None:
    x = torch.zeros((), dtype=torch.float64)
    with pytest.raises(RuntimeError, match="not implemented"):
        Weighted(function, TIES)(x)[0].backward()
    message = f"`{name}` has no derivative in PyTorch, and a parameter is trained through it"
    with pytest.raises(ModelError, match=message):
        import_module(Weighted(function, TIES), (x,))
    frozen = Weighted(function, TIES).requires_grad_(requires_grad=False)
    import_module(frozen, (x,), loss="none")
    agree(lambda w: function(w.detach()) + w, TIES)
    agree(lambda w: function(w).long() * w, TIES)


def test_a_trained_weight_of_margins_is_refused() -> None:
    module = Weighted(lambda x, w: F.multi_margin_loss(x, LABEL, weight=w), TIES, [1.0, 2, 3, 4])
    with pytest.raises(ModelError, match="a trained weight of `multi_margin_loss`"):
        import_module(module, (torch.zeros((), dtype=torch.float64),))
