"""Element types that meet, whole numbers, and products by equations."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from own_gradients.layers import Cases, Net, between, forward

_SIGNED = torch.tensor([-7, -3, -1, 0, 1, 2, 5, 9])
_DIVISORS = torch.tensor([3, -2, 4, -5, 2, -1, -3, 4])
Function = Callable[[Tensor], Tensor]


def weighted(function: Callable[[Tensor, Tensor], Tensor]) -> Any:
    """Return a case whose features are weighted by a function of whole numbers."""

    def use(m: Net, x: Tensor) -> Tensor:
        whole = (x[:, 0] * 5).long()
        found = function(whole + _SIGNED, _DIVISORS)
        return m.b(m.a(x) * (found.view(8, -1) * 0.1 + 1))

    return forward(use)


def _promoted(h: Tensor) -> Tensor:
    half = torch.tensor([0.1, 0.2], dtype=torch.float16).sum()
    wide = torch.tensor(3) / torch.tensor(2) + torch.tensor(True)
    return h * half + h * wide + h * torch.ones(8, dtype=torch.int32) + torch.ones(8).cumsum(0) * h


def _narrowed(h: Tensor) -> Tensor:
    return h + (h.float() * torch.tensor(0.1)).double() + h.to(torch.bfloat16).double() * 0.1


def _truths(h: Tensor) -> Tensor:
    over = h > 0
    count = over.sum(1, keepdim=True) + over.any(0) + over.all() + (over & ~over).sum()
    return h * count + h * over.float().mean() + (over * 2 - 1) * h + h * (over ^ (h > 0.3))


def _steps(h: Tensor) -> Tensor:
    grid = torch.arange(0, 1, 0.125, dtype=h.dtype) + torch.linspace(-1, 1, 8, dtype=h.dtype)
    grid = grid + torch.logspace(0, -1, 8, base=2.0, dtype=h.dtype) + torch.arange(8, 0, -1)
    return h * grid + torch.eye(8)[:, [7, 1, 2, 3, 4, 5, 6, 0]].double() @ h


def _buckets(h: Tensor) -> Tensor:
    edges = torch.tensor([-0.5, 0.0, 0.0, 0.4]).double()
    left, right = torch.bucketize(h, edges), torch.bucketize(h, edges, right=True)
    return h * (left + right) + torch.searchsorted(edges, torch.zeros(1).double(), side="right") * h


def _rounded(h: Tensor) -> Tensor:
    exact = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 0.25, 2.675, -2.5]).double()
    return h * (exact.round() + exact.round(decimals=1) + exact.floor() - exact.trunc())


def _signs_of_zero(h: Tensor) -> Tensor:
    none = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.0, -0.0, 2.0, -2.0]).double()
    return h * (torch.signbit(none) + torch.copysign(torch.ones(8).double(), none) + none.sgn())


def _wrapped(whole: Tensor, by: Tensor) -> Tensor:
    small = (whole * 100).to(torch.int8)  # over the range of bytes
    return small.double() / 64 + whole.to(torch.uint8).double() / 64


# Equations


def _diagonals(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    diagonal = torch.einsum("ii->i", h) + torch.einsum("ii", h)
    return m.b(
        torch.einsum("ij,i->ji", h, diagonal)
        + torch.einsum("jii->ij", h.view(1, 8, 8).tile(8, 1, 1))
    )


def _equations(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    found = torch.einsum("b...,c...->bc", h.view(8, 2, 4), h.view(8, 2, 4))
    found = found + torch.einsum(h, [0, 1], h, [2, 1], [0, 2]) + torch.einsum("i,j->ij", h[0], h[1])
    wide = torch.einsum("...ij,...jk,k->...i", h.view(2, 4, 8), h.view(1, 8, 8), h[3])
    return m.b(found + wide.view(8, 1))


def _broadcast_equation(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    one = torch.einsum("ij,ij->ij", h[:1], h)
    return m.b(one + torch.einsum("b i j -> b", h.view(8, 2, 4))[:, None] + torch.einsum("ij->", h))


def _tensors(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    found = torch.tensordot(h.view(2, 4, 8), h.view(4, 2, 8), ([0, 2], [1, 2]))
    found = torch.kron(found, torch.eye(2).double()) + torch.outer(h[0], h[1]) + torch.inner(h, h)
    return m.b(found + torch.block_diag(h[:3, :5], h[3:, 5:]) + torch.vdot(h[0], h[1]))


def _added_products(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    deep = h.view(2, 4, 8)
    found = torch.baddbmm(deep[:1], deep, h.expand(2, 8, 8), beta=0.5, alpha=2).view(8, 8)
    found = torch.addmm(found, h, h.T, beta=0, alpha=-1) + torch.addr(h, h[0], h[1], alpha=3)
    found = torch.addcmul(found, h, h, value=0.3) + torch.addcdiv(h, h, h.exp(), value=-2)
    return m.b(found + torch.addbmm(h[:4], deep[:, :, :4], deep[:, :, :8], alpha=0.1).repeat(2, 1))


def _vectors(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    found = (
        torch.matmul(h[0], h) + torch.matmul(h, h[1]) + torch.matmul(h[0], h[1]) + torch.mv(h, h[2])
    )
    found = found + torch.matmul(h[0], h.view(2, 8, 4).transpose(1, 2).mT)[0].repeat(2)
    return m.b(h * found + torch.chain_matmul(h, h.T, h)) + torch.linalg.multi_dot(
        [h[0], h, h.T, h[1]]
    )


def _bilinear(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    return m.b(F.bilinear(h, x, h.view(8, 8, 1)[:, :, :1].expand(8, 8, 6) * 0.3, h[0]))


def _crosses(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    turned = torch.linalg.cross(h[:, :3], h[:, 3:6]) + torch.cross(h[:, :3], x[:, 3:], dim=1)
    return m.b(torch.cat([turned, h[:, :5]], 1).rot90(1, (0, 1)))


def _sums(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    found = (
        torch.trapezoid(h, dx=0.3, dim=1)[:, None]
        + torch.cumulative_trapezoid(h, x[0, 0].exp() * torch.arange(8))[:, :1]
    )
    found = found + h.diff(n=2, prepend=h[:, :1], append=h[:, :1]) + torch.gradient(h, dim=1)[0]
    return m.b(found + torch.cov(h) + torch.corrcoef(h))


def _powers(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    found = torch.vander(x[:, 0], 4, increasing=True).repeat(1, 2) + torch.float_power(
        h.abs() + 1, 2
    )
    found = (
        found
        + torch.linalg.matrix_power(h * 0.3, 3)
        + torch.linalg.matrix_power(h + 3 * torch.eye(8), -2)
    )
    return m.b(
        found
        + torch.linalg.vecdot(h, h.flip(0))[:, None]
        + h ** torch.tensor([2, 3, 0, 1, 2, 2, 3, 1])
    )


def _selected_products(m: Net, x: Tensor) -> Tensor:
    h = m.a(x)
    pairs = torch.cartesian_prod(h[0, :2], h[1, :4])
    two = torch.combinations(h[2, :4], 2)
    return m.b(h + pairs.prod(1) + F.pad(two.prod(1), (0, 2)))


NUMBERS: Cases = {
    "whole_remainders": weighted(lambda a, b: a % b + torch.fmod(a, b) + a // b),
    "whole_divisions": weighted(
        lambda a, b: torch.div(a, b, rounding_mode="trunc") + torch.div(a, b, rounding_mode="floor")
    ),
    "whole_true_divisions": weighted(
        lambda a, b: a.double() / b + torch.true_divide(a.double(), 3) + b.double().mean()
    ),
    "whole_powers": weighted(lambda a, b: a**2 + (-2) ** torch.arange(8) + a.pow(3) // 7),
    "whole_bits": weighted(lambda a, b: (a & b) + (a | b) - (a ^ b) + (~a) + (a >> 1) + (b << 2)),
    "whole_bounds": weighted(
        lambda a, b: a.clamp(-2, 3) + torch.maximum(a, b) + a.abs() + a.sign()
    ),
    "whole_sums": weighted(lambda a, b: a.cumsum(0) + a.sum() + a.prod() * 0 + (a > b).cumsum(0)),
    "whole_common_divisors": weighted(lambda a, b: torch.gcd(a, b) + torch.lcm(a, b)),
    "whole_numbers_wrapped": weighted(_wrapped),
    "negative_remainders": between(
        lambda h: h % -0.7 + torch.remainder(-h, 0.3) + torch.fmod(h, -0.7) + h.detach() // -0.5 * h
    ),
    "remainders_by_features": between(
        lambda h: (
            torch.remainder(h, h.roll(1, 0).exp()) + torch.fmod(h, 0.3 + h.roll(1, 1).square())
        )
    ),
    "remainder_of_a_number": between(
        lambda h: torch.remainder(3.0, h.detach().exp()) * h + 2 // h.exp().detach() * h
    ),
    "types_promoted": between(_promoted),
    "types_narrowed": between(_narrowed),
    "truths_counted": between(_truths),
    "steps_and_grids": between(_steps),
    "buckets_with_equal_edges": between(_buckets),
    "rounded_halves": between(_rounded),
    "signs_of_zero": between(_signs_of_zero),
    "truncated_to_whole": between(lambda h: h * (h * 10).long() + h * (h * 3).int().float()),
    "equation_of_diagonals": forward(_diagonals),
    "equations_with_ellipsis": forward(_equations),
    "equation_broadcasts": forward(_broadcast_equation),
    "products_of_tensors": forward(_tensors),
    "products_added": forward(_added_products),
    "products_of_vectors": forward(_vectors),
    "bilinear": forward(_bilinear),
    "cross_products": forward(_crosses),
    "sums_along_curves": forward(_sums),
    "powers_of_matrices": forward(_powers),
    "products_of_pairs": forward(_selected_products),
}
