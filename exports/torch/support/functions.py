"""Operators of a plan that are rarer functions of real numbers: special ones, powers, activations.

A function of one variable saves its operand or its result for backward, as its gradient says: `x`
or `y`. Numbers of 16 bits are computed in float32.
"""

from math import pi, sqrt

import torch
from torch import Tensor
from torch.nn import functional

from .shared.elementwise import widened
from .shared.special import *  # noqa: F403
from .shared.special import _times

sinh_gradient, cosh_gradient = _times(torch.cosh), _times(torch.sinh)
asin_gradient = _times(lambda x: torch.rsqrt(1 - x * x))
acos_gradient = _times(lambda x: -torch.rsqrt(1 - x * x))
atan_gradient = _times(lambda x: 1 / (1 + x * x))
asinh_gradient = _times(lambda x: torch.rsqrt(1 + x * x))
acosh_gradient = _times(lambda x: torch.rsqrt(x * x - 1))
atanh_gradient = _times(lambda x: 1 / (1 - x * x))

erfcx = widened(torch.special.erfcx)
erf_gradient = _times(lambda x: 2 / sqrt(pi) * torch.exp(-x * x))
erfc_gradient = _times(lambda x: -2 / sqrt(pi) * torch.exp(-x * x))
erfcx_gradient = _times(lambda x: 2 * x * erfcx(x) - 2 / sqrt(pi))
log_ndtr_gradient = _times(lambda x: sqrt(2 / pi) / erfcx(-x / sqrt(2)))

lgamma_gradient = _times(torch.digamma)


@widened
def incomplete_gamma(a: Tensor, x: Tensor, *, upper: bool = False) -> Tensor:
    return torch.special.gammaincc(a, x) if upper else torch.special.gammainc(a, x)


def prelu(x: Tensor, weight: Tensor) -> Tensor:
    return functional.prelu(x, weight)


def population_count(x: Tensor) -> Tensor:
    count = torch.zeros(x.shape, dtype=torch.uint8, device=x.device)
    for bit in range(8 * x.element_size() if x.dtype != torch.bool else 1):
        count += ((x >> bit) & 1).to(torch.uint8) if x.dtype != torch.bool else x
    return count
