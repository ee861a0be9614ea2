"""Operators of a plan on matrices: equations, factors, decompositions, products of reflections."""

import torch
from torch import Tensor

from .pointwise import widened


@widened
def solve_triangular(
    a: Tensor,
    b: Tensor,
    *,
    lower: bool = True,
    transposed: bool = False,
    unit_diagonal: bool = False,
) -> Tensor:
    a, upper = (a.mT, lower) if transposed else (a, not lower)
    return torch.linalg.solve_triangular(a, b, upper=upper, unitriangular=unit_diagonal)


@widened
def solve(a: Tensor, b: Tensor, *, transposed: bool = False) -> Tensor:
    a, b = (a.mT if transposed else a), b.expand(*_leading(a, b), *b.shape[-2:])
    return torch.linalg.solve(a, b)


def _leading(a: Tensor, b: Tensor) -> torch.Size:
    return torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])


@widened
def inverse(a: Tensor) -> Tensor:
    return torch.linalg.inv(a)


@widened
def log_determinant(a: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.linalg.slogdet(a))


@widened
def cholesky(a: Tensor) -> Tensor:
    return torch.linalg.cholesky((a + a.mT) / 2)


@widened
def matrix_exponential(a: Tensor) -> Tensor:
    return torch.linalg.matrix_exp(a)


@widened
def householder_product(a: Tensor, factors: Tensor) -> Tensor:
    return torch.linalg.householder_product(a, factors)


@widened
def householder_product_gradient(g: Tensor, a: Tensor, factors: Tensor) -> tuple[Tensor, ...]:
    with torch.enable_grad():
        own = [x.detach().requires_grad_() for x in (a, factors)]
        found = torch.linalg.householder_product(*own)
    return torch.autograd.grad(found, own, g)


@widened
def determinant(a: Tensor) -> Tensor:
    return torch.linalg.det(a)


@widened
def qr(a: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.linalg.qr(a))


@widened
def pseudo_inverse(a: Tensor, *, relative: float = 0.0, absolute: float = 0.0) -> Tensor:
    return torch.linalg.pinv(a, atol=absolute, rtol=relative)
