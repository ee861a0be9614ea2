"""Operators of a plan that are rarer functions of real numbers: special ones, powers, activations.

A function of one variable saves its operand or its result for backward, as its gradient says: `x`
or `y`. Numbers of 16 bits are computed in float32.
"""

from collections.abc import Callable
from math import factorial, pi, sqrt
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .pointwise import widened


def _times(slope: Callable[..., Tensor]) -> Callable[..., Any]:
    """Return the gradient of a function, from its slope at the saved tensor."""

    @widened
    def gradient(dy: Tensor, kept: Tensor, **attributes: Any) -> Tensor:
        return dy * slope(kept, **attributes)

    return gradient


# Trigonometric and hyperbolic functions

tan, sinh, cosh = torch.tan, torch.sinh, torch.cosh
asin, acos, atan = torch.asin, torch.acos, torch.atan
asinh, acosh, atanh = torch.asinh, torch.acosh, torch.atanh
tan_gradient = _times(lambda y: 1 + y * y)
sinh_gradient, cosh_gradient = _times(torch.cosh), _times(torch.sinh)
asin_gradient = _times(lambda x: torch.rsqrt(1 - x * x))
acos_gradient = _times(lambda x: -torch.rsqrt(1 - x * x))
atan_gradient = _times(lambda x: 1 / (1 + x * x))
asinh_gradient = _times(lambda x: torch.rsqrt(1 + x * x))
acosh_gradient = _times(lambda x: torch.rsqrt(x * x - 1))
atanh_gradient = _times(lambda x: 1 / (1 - x * x))

# The error function, and the distribution function of normal numbers

erf, erfc = torch.erf, torch.erfc
erfcx, erfinv = widened(torch.special.erfcx), widened(torch.erfinv)
log_ndtr, ndtri = widened(torch.special.log_ndtr), widened(torch.special.ndtri)
erf_gradient = _times(lambda x: 2 / sqrt(pi) * torch.exp(-x * x))
erfc_gradient = _times(lambda x: -2 / sqrt(pi) * torch.exp(-x * x))
erfcx_gradient = _times(lambda x: 2 * x * erfcx(x) - 2 / sqrt(pi))
erfinv_gradient = _times(lambda y: sqrt(pi) / 2 * torch.exp(y * y))
log_ndtr_gradient = _times(lambda x: sqrt(2 / pi) / erfcx(-x / sqrt(2)))
ndtri_gradient = _times(lambda y: sqrt(2 * pi) * torch.exp(y * y / 2))

# Bessel functions

bessel_i0, bessel_i0e = widened(torch.special.i0), widened(torch.special.i0e)
bessel_i1, bessel_i1e = widened(torch.special.i1), widened(torch.special.i1e)
bessel_i0_gradient = _times(bessel_i1)
bessel_i0e_gradient = _times(lambda x: bessel_i1e(x) - torch.sign(x) * bessel_i0e(x))


@_times
def bessel_i1_gradient(x: Tensor) -> Tensor:
    slope = bessel_i0(x) - bessel_i1(x) / torch.where(x == 0, 1, x)
    return torch.where(x == 0, 0.5, slope)


@_times
def bessel_i1e_gradient(x: Tensor) -> Tensor:
    over = bessel_i1e(x) / torch.where(x == 0, 1, x)
    return torch.where(x == 0, 0.5, bessel_i0e(x) - torch.sign(x) * bessel_i1e(x) - over)


# The gamma function

lgamma = torch.lgamma
lgamma_gradient = _times(torch.digamma)


@widened
def polygamma(x: Tensor, *, order: int = 0) -> Tensor:
    # PyTorch's own function of order 1 has nine digits.
    if order == 0:
        return torch.digamma(x)
    size = factorial(order) * torch.special.zeta(torch.full_like(x, order + 1), x)
    return size if order % 2 else -size


@widened
def polygamma_gradient(dy: Tensor, x: Tensor, *, order: int = 0) -> Tensor:
    return dy * polygamma(x, order=order + 1)


@widened
def incomplete_gamma(a: Tensor, x: Tensor, *, upper: bool = False) -> Tensor:
    return torch.special.gammaincc(a, x) if upper else torch.special.gammainc(a, x)


# Activations


@widened
def selu(x: Tensor, *, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805) -> Any:
    return gamma * torch.where(x > 0, x, alpha * torch.expm1(x.clamp(max=0)))


@widened
def selu_gradient(
    dy: Tensor,
    y: Tensor,
    *,
    alpha: float = 1.6732632423543772,
    gamma: float = 1.0507009873554805,
) -> Tensor:
    return dy * torch.where(y > 0, gamma, y + gamma * alpha)


def hard_shrink(x: Tensor, *, bound: float = 0.5) -> Tensor:
    return torch.where(x.abs() > bound, x, x.new_zeros(()))


@widened
def soft_shrink(x: Tensor, *, bound: float = 0.5) -> Tensor:
    return torch.sign(x) * (x.abs() - bound).clamp(min=0)


def hard_shrink_gradient(dy: Tensor, x: Tensor, *, bound: float = 0.5) -> Tensor:
    return torch.where(x.abs() > bound, dy, dy.new_zeros(()))


soft_shrink_gradient = hard_shrink_gradient


def prelu(x: Tensor, weight: Tensor) -> Tensor:
    return functional.prelu(x, weight)


@widened
def prelu_gradient(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    dx = torch.where(x > 0, dy, dy * weight.reshape(-1, *(1,) * (x.ndim - 2)))
    others = tuple(d for d in range(x.ndim) if d != 1)
    return dx, (dy * x.clamp(max=0)).sum(others)


# Bits of integers

bitwise_and, bitwise_or, bitwise_xor = torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor
left_shift, right_shift = torch.bitwise_left_shift, torch.bitwise_right_shift
invert, gcd = torch.bitwise_not, torch.gcd


def population_count(x: Tensor) -> Tensor:
    count = torch.zeros(x.shape, dtype=torch.uint8, device=x.device)
    for bit in range(8 * x.element_size() if x.dtype != torch.bool else 1):
        count += ((x >> bit) & 1).to(torch.uint8) if x.dtype != torch.bool else x
    return count
