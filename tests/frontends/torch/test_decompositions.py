"""Decompositions of matrices, running logarithms and learned quantization, against autograd."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

import torch_compare as compare  # noqa: E402
from torch import nn  # noqa: E402

from shardwright.frontends.torch import import_module  # noqa: E402
from shardwright.ir.errors import ModelError  # noqa: E402

Function = Callable[..., Any]


class Weighted(nn.Module):
    """The sum of what a function makes of a parameter and samples, each element with its weight."""

    def __init__(self, function: Function, weight: Any) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.as_tensor(weight, dtype=torch.float64))

    def forward(self, x: Any) -> Any:
        found = self.function(self.weight * x)
        results = found if isinstance(found, tuple) else (found,)
        steps = [torch.arange(r.numel(), dtype=r.dtype).view(r.shape) for r in results]
        return sum((r * (0.5 + 0.7 * s % 1)).sum() for r, s in zip(results, steps, strict=True))


def _samples(*shape: int) -> Any:
    generator = torch.Generator().manual_seed(1)
    return 1 + 0.1 * torch.rand(*shape, dtype=torch.float64, generator=generator)


def _agree(function: Function, weight: Any, x: Any) -> None:
    found = compare.gradients_differ(Weighted(function, weight), (x,))
    assert max(found.loss, found.gradient) < 1e-9
    assert not found.missing


def _random(*shape: int) -> Any:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def _symmetric(a: Any) -> Any:
    return a + a.mT


def _without_signs(values: Any, vectors: Any) -> Any:
    return values, vectors.square(), vectors @ (values.sin()[..., None] * vectors.mT)


def _eliminated(a: Any) -> Any:
    p, lower, upper = torch.linalg.lu(a)
    factors, pivots = torch.linalg.lu_factor(a)
    unpacked = torch.lu_unpack(factors, pivots)
    return lower, upper, p @ lower @ upper.sin(), factors, unpacked[2], unpacked[0] @ unpacked[1]


def _by_factors(a: Any) -> Any:
    factors, b = torch.linalg.lu_factor(a), a.cos()[..., :2]
    solve = torch.linalg.lu_solve
    return (
        solve(*factors, b),
        solve(*factors, b, adjoint=True),
        solve(*factors, b.mT, left=False),
        solve(*factors, b.mT, left=False, adjoint=True),
        torch.lu_solve(b, *factors),
    )


def _unsymmetric(a: Any) -> Any:
    values, vectors = torch.linalg.eig(a)
    size = vectors * (values.sin().unsqueeze(-2) * vectors.conj())
    return values.real, values.imag, vectors.abs(), size.imag, torch.linalg.eigvals(a).abs()


def _joined(u: Any, s: Any, vh: Any) -> Any:
    return s, u.square(), vh.square(), u @ (s.sin()[..., None] * vh)


def _twice(function: Function) -> Function:
    def slope(a: Any) -> Any:
        return torch.autograd.grad(function(a).sin().sum(), a, create_graph=True)[0]

    return slope


SQUARE: dict[str, Function] = {
    "det": torch.linalg.det,
    "slogdet": lambda a: torch.linalg.slogdet(a)[1],
    "eigh": lambda a: _without_signs(*torch.linalg.eigh(_symmetric(a))),
    "eigh of a triangle": lambda a: (torch.linalg.eigh(a, "U")[0], torch.linalg.eigvalsh(a)),
    "eig": _unsymmetric,
    "lu_solve": _by_factors,
    "lu twice": _twice(lambda a: torch.linalg.lu_factor(a)[0]),
    "eig twice": _twice(lambda a: torch.linalg.eigvals(a).abs()),
    "powers": lambda a: (torch.linalg.matrix_power(a, 3), torch.linalg.multi_dot([a[0], a[1]])),
    "det twice": _twice(lambda a: torch.linalg.slogdet(a)[1]),
    "eigh twice": _twice(lambda a: torch.linalg.eigvalsh(_symmetric(a))),
    "qr twice": _twice(lambda a: torch.linalg.qr(a)[1]),
}
ANY: dict[str, Function] = {
    "qr": lambda a: tuple(torch.linalg.qr(a)),
    "lu": _eliminated,
    "svd": lambda a: _joined(*torch.linalg.svd(a, full_matrices=False)),
    "old svd": lambda a: _joined(*(x.mT if i == 2 else x for i, x in enumerate(torch.svd(a)))),
    "svdvals": torch.linalg.svdvals,
    "pinv": lambda a: (torch.linalg.pinv(a), torch.pinverse(a), torch.linalg.pinv(a, rtol=1e-3)),
    "lstsq": lambda a: (
        torch.linalg.lstsq(a, a.sin()[..., :2]).solution,
        torch.linalg.lstsq(a, a[..., 0].cos())[0] if a.dim() == 2 else a,
    ),
    "norms": lambda a: (torch.linalg.matrix_norm(a, 2), torch.linalg.matrix_norm(a, "nuc")),
}


@pytest.mark.parametrize("name", SQUARE)
def test_square_matrices(name: str) -> None:
    _agree(SQUARE[name], _random(2, 4, 4), _samples(2, 4, 4))


@pytest.mark.parametrize("shape", [(2, 3, 3), (5, 3), (2, 3, 5)])
@pytest.mark.parametrize("name", ANY)
def test_any_matrices(name: str, shape: tuple[int, ...]) -> None:
    _agree(ANY[name], _random(*shape), _samples(*shape))


def test_singular_matrices_have_gradients_of_determinants_and_pseudo_inverses() -> None:
    ones = torch.ones(4, 3).double()
    matrices = torch.stack([torch.eye(3) * 2, torch.diag(torch.tensor([2.0, 1, 0]))])
    _agree(torch.linalg.det, matrices, ones[:3].expand(2, 3, 3).clone())
    _agree(torch.linalg.pinv, _random(4, 1) @ _random(1, 3), ones)


def test_rows_are_exchanged_as_in_lapack() -> None:
    ones = torch.ones(2, 3, 3).double()
    ties = torch.tensor([[[1.0, 2, 0], [-1, 3, 1], [1, 0, 5]], [[0, 0, 2], [3, 1, 0], [0, 4, 1]]])
    _agree(_eliminated, ties, ones)


def test_equal_eigenvalues_have_gradients_where_vectors_are_not_read() -> None:
    _agree(torch.linalg.eigvalsh, torch.eye(3), torch.ones(3, 3).double())
    _agree(torch.linalg.svdvals, torch.eye(3), torch.ones(3, 3).double())


def test_vectors_whose_signs_are_open_are_told() -> None:
    def told(function: Function) -> bool:
        module = Weighted(function, _random(3, 3))
        return any("signs" in one for one in import_module(module, (_samples(3, 3),)).warnings)

    assert told(lambda a: torch.linalg.eigh(_symmetric(a))[1])
    assert told(lambda a: torch.linalg.svd(a)[2])
    assert told(lambda a: torch.linalg.eig(a)[1].abs())
    assert not told(torch.linalg.svdvals)
    assert not told(lambda a: torch.linalg.eigvalsh(_symmetric(a)))


def test_a_plan_splits_the_matrices_of_a_batch() -> None:
    def projected(a: Any) -> Any:
        values, vectors = torch.linalg.eigh(_symmetric(a))
        r = torch.linalg.qr(a)[1] + torch.linalg.lu_solve(*torch.linalg.lu_factor(a), a.sin())
        r = r + torch.linalg.eigvals(a).abs().diag_embed()
        return torch.linalg.svdvals(vectors @ (values[..., None] * vectors.mT) + r).logcumsumexp(1)

    module = Weighted(projected, _random(4, 3, 3))
    assert max(compare.on_ranks(module, (_samples(4, 3, 3),), 4)) < 1e-9


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (lambda a: torch.linalg.svd(a)[1], "`svd` of 4 by 3 matrices with `full_matrices`"),
        (lambda a: torch.linalg.qr(a, "complete")[0], "`qr` with mode='complete', which has no"),
        (lambda a: torch.linalg.pinv(a.mT @ a, hermitian=True), "`pinv` with `hermitian`, or with"),
    ],
)
def test_what_has_no_gradient_is_refused(function: Function, what: str) -> None:
    with pytest.raises(ModelError, match=f"^{what}"):
        import_module(Weighted(function, _random(4, 3)), (_samples(4, 3),))


class Special(nn.Module):
    """Special functions of a parameter between zero and one, and the sum of their products."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.linspace(0.03, 0.97, 12, dtype=torch.float64).view(4, 3))

    def forward(self, x: Any) -> Any:
        return (self.function(self.weight) * x).sum()


SPECIAL: dict[str, Function] = {
    "erfcx": lambda w: torch.special.erfcx(8 * w - 3),
    "log_ndtr": lambda w: torch.special.log_ndtr(60 * w - 40),
    "ndtri": torch.special.ndtri,
    "gammainc": lambda w: torch.special.gammainc((9 * w).detach(), 20 * w),
    "gammaincc": lambda w: torch.special.gammaincc(torch.full_like(w, 0.5).detach(), 5 * w),
    "rounded": lambda w: w * torch.round(w, decimals=1) + w * torch.round(100 * w, decimals=-1),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_special_functions(name: str) -> None:
    module, inputs = Special(SPECIAL[name]), (_samples(4, 3),)
    found = compare.gradients_differ(module, inputs)
    assert max(found.loss, found.gradient, *compare.on_ranks(module, inputs, 4)) < 1e-9


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (
            lambda w: torch.special.gammainc(w, (2 * w).detach()),
            "an incomplete gamma function by its first argument, which has no derivative in",
        ),
        (lambda w: torch.special.zeta(2.5, 1 + w), "the zeta function, whose sum has no operator"),
    ],
)
def test_special_functions_without_a_derivative(function: Function, what: str) -> None:
    with pytest.raises(ModelError, match=f"^{what}"):
        import_module(Special(function), (_samples(4, 3),))


def test_running_logarithms_of_sums() -> None:
    rows = torch.tensor([[1.0, 2, 800, -900], [-3, -torch.inf, 0, 1], [5, 5, 5, -torch.inf]])
    ones = torch.ones(3, 4).double()
    _agree(lambda a: (a.logcumsumexp(1), a[:, :1].logcumsumexp(0)), rows, ones)


class Learned(nn.Module):
    """Quantization with a trained step and zero; PyTorch has it in float32."""

    def __init__(self, axis: int | None) -> None:
        super().__init__()
        count = 1 if axis is None else 3
        self.step = nn.Parameter(torch.linspace(0.3, 0.1, count))
        self.zero = nn.Parameter(torch.linspace(0.6, -9.0, count))
        self.axis = axis

    def forward(self, x: Any, y: Any) -> Any:
        if self.axis is None:
            found = torch._fake_quantize_learnable_per_tensor_affine(
                x, self.step, self.zero, -8, 7, 0.5
            )
        else:
            found = torch._fake_quantize_learnable_per_channel_affine(
                x, self.step, self.zero, self.axis, -8, 7, 0.5
            )
        return (found * y).sum()


@pytest.mark.parametrize("axis", [None, 1])
def test_learned_quantization(axis: int | None) -> None:
    torch.manual_seed(0)
    inputs = (3 * torch.randn(8, 3), torch.randn(8, 3))
    found = compare.gradients_differ(Learned(axis), inputs)
    assert max(found.loss, found.gradient) < 1e-6
    assert max(compare.on_ranks(Learned(axis), inputs, 4)) < 1e-6
