"""Operators of a plan on matrices: equations, factors, decompositions, products of reflections."""

from functools import lru_cache

import torch
from torch import Tensor

from .dynamic_tree import SHARING, values_of
from .shared.elementwise import widened
from .shared.matrices import *  # noqa: F403


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
def pseudo_inverse(a: Tensor, *, relative: float = 0.0, absolute: float = 0.0) -> Tensor:
    return torch.linalg.pinv(a, atol=absolute, rtol=relative)


@widened
def eig(a: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.view_as_real(found) for found in torch.linalg.eig(a))


@widened
def eigh(a: Tensor, *, upper: bool = False) -> tuple[Tensor, ...]:
    return tuple(torch.linalg.eigh(a, "U" if upper else "L"))


def lu_pivots(a: Tensor) -> Tensor:
    return torch.linalg.lu_factor_ex(a.float() if a.element_size() < 4 else a)[1].long() - 1


def pivots_to_permutation(pivots: Tensor, *, rows: int = 1) -> Tensor:
    order = torch.arange(rows, device=pivots.device).repeat(*pivots.shape[:-1], 1)
    for k in range(pivots.shape[-1]):
        pair = torch.stack([torch.full_like(pivots[..., k], k), pivots[..., k]], -1)
        order = order.scatter(-1, pair.flip(-1), order.gather(-1, pair))
    return order


@widened
def lu(a: Tensor) -> Tensor:
    # PyTorch has the elimination without exchanges on GPUs alone.
    rows, columns = (torch.arange(n, device=a.device) for n in a.shape[-2:])
    for k in range(min(a.shape[-2:])):
        head, column = a[..., k : k + 1, k : k + 1], a[..., k : k + 1]
        factor = torch.where(head == 0, column, column / torch.where(head == 0, 1, head))
        below = rows[:, None] > k
        rest = torch.where(below & (columns > k), a - factor * a[..., k : k + 1, :], a)
        a = torch.where(below & (columns == k), factor, rest)
    return a


# Weights of 4 bits

_NORMAL = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)


@lru_cache(maxsize=2)
def _tables(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the values of codes of 4 bits, and of 8."""
    return torch.tensor(_NORMAL, device=device), torch.from_numpy(values_of(True)).to(device)


def nf4_matmul(
    x: Tensor,
    codes: Tensor,
    scales: Tensor,
    nested: Tensor,
    offset: Tensor,
    *,
    transposed: bool = False,
    start_o: int = 0,
    start_n: int = 0,
    whole_n: int,
) -> Tensor:
    """Unpack a weight in the order of bitsandbytes, and multiply by it."""
    four, eight = _tables(x.device)
    outputs, blocks = scales.shape
    rows = torch.arange(start_o, start_o + outputs, device=x.device)[:, None]
    places = rows * whole_n + torch.arange(start_n, start_n + blocks, device=x.device)
    own = nested.view(torch.float32)[places // SHARING]
    scale = eight[scales.int()] * own + offset.view(torch.float32)
    pairs = torch.stack([codes >> 4, codes & 15], -1).flatten(-2)
    weight = (four[pairs.int()] * scale[..., None]).flatten(1).to(x.dtype)
    return x @ (weight if transposed else weight.mT)
