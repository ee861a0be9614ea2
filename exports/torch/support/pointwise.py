"""Operators of a plan that compute point by point.

A function of one variable saves its operand or its result for backward, as its gradient says: `x`
or `y`. Numbers of 16 bits are computed in float32 where there are several steps.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from math import inf
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.weak import WeakTensorKeyDictionary

_LOW = (torch.float16, torch.bfloat16)
_backward = torch.ops.aten  # PyTorch's own gradients, each one kernel


def widened(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compute a function of tensors of 16 bits in float32; each result has the operands' type."""

    @wraps(function)
    def run(*tensors: Tensor, **attributes: Any) -> Any:
        low = next((t.dtype for t in tensors if t.dtype in _LOW), None)
        if low is None:
            return function(*tensors, **attributes)
        found = function(*(t.float() if t.dtype in _LOW else t for t in tensors), **attributes)
        if isinstance(found, tuple):
            return tuple(_narrowed(t, low) for t in found)
        return _narrowed(found, low)

    return run


def _narrowed(tensor: Tensor, low: Any) -> Tensor:
    return tensor.to(low) if tensor.dtype == torch.float32 else tensor


# What is known of a tensor

_KNOWN: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def _once(x: Tensor, name: Any, make: Callable[[Tensor], Any]) -> Any:
    """Return what is made of a tensor, once for all layers that read it."""
    if _is_recorded():
        return make(x)
    own = _KNOWN.setdefault(x, {})
    if own.get("version") != x._version:
        own.clear()
        own["version"] = x._version
    if name not in own:
        own[name] = make(x)
    return own[name]


_COPIES: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def _keep_copy(x: Tensor, copy: Tensor | None) -> None:
    """Keep a copy of a parameter in another type, which is now equal to it, for the next cast."""
    _COPIES[x] = (x._version, copy)


def _is_cast_to(x: Tensor, dtype: torch.dtype) -> bool:
    """Return whether a parameter was cast to a type after its last update."""
    return bool(_COPIES.get(x, (0, None))[1] is dtype)


_devices: list[torch.device] = []  # where the programs that run now have their tensors


@contextmanager
def _on(device: torch.device) -> Iterator[None]:
    """Make tensors of no operands on a device; a context of PyTorch's delays every call."""
    _devices.append(device)
    try:
        yield
    finally:
        _devices.pop()


def _device() -> torch.device | None:
    return _devices[-1] if _devices else None


_recorded: list[str] = []  # the functions whose operators are being recorded


def _is_recorded() -> bool:
    """Return whether what runs now will run again with other tensors, for which nothing is kept."""
    return bool(_recorded) or torch.compiler.is_compiling()


@contextmanager
def _recording(name: str) -> Iterator[None]:
    """Say that the operators inside are recorded."""
    _recorded.append(name)
    try:
        yield
    finally:
        _recorded.pop()


# Arithmetic

add, sub, mul, div = torch.add, torch.sub, torch.mul, torch.div
neg, sign, power, atan2 = torch.neg, torch.sign, torch.pow, torch.atan2
mod = torch.remainder
floor, ceil, trunc = torch.floor, torch.ceil, torch.trunc
round = torch.round
identity = stop_gradient = lambda x: x
zeros_like, ones_like = torch.zeros_like, torch.ones_like


def _number(value: float, like: Tensor) -> Tensor:
    """Return a number of the type of a tensor; on the CPU, since a GPU would be waited for."""
    return torch.tensor(value, dtype=like.dtype, device="cpu")


def with_gradient_of(value: Tensor, source: Tensor) -> Tensor:
    return value


def on_gradient(
    x: Tensor, *others: Tensor, shapes: tuple[tuple[int, ...], ...]
) -> Tensor | tuple[Tensor, ...]:
    made = tuple(x.new_zeros(shape) for shape in shapes)
    return made if len(made) > 1 else made[0]


def scale(x: Tensor, *, factor: float = 1.0) -> Tensor:
    return x * _number(factor, x)


def add_scalar(x: Tensor, *, value: float = 0.0) -> Tensor:
    return x + _number(value, x)


def bias_add(x: Tensor, bias: Tensor, *, axis: int = 1) -> Tensor:
    return x + bias.reshape(-1, *(1,) * (x.ndim - 1 - axis % x.ndim))


def div_no_nan(a: Tensor, b: Tensor) -> Tensor:
    return torch.where(b == 0, torch.zeros_like(a), a / torch.where(b == 0, 1, b))


def floor_div(a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, b, rounding_mode="floor")


def squared_difference(a: Tensor, b: Tensor) -> Tensor:
    return torch.square(a - b)


# Comparisons and types

equal, not_equal = torch.eq, torch.ne
less, less_equal, greater, greater_equal = torch.lt, torch.le, torch.gt, torch.ge
logical_and, logical_or = torch.logical_and, torch.logical_or
logical_xor, logical_not = torch.logical_xor, torch.logical_not
is_nan, is_inf, is_finite = torch.isnan, torch.isinf, torch.isfinite


def where(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.where(condition, a, b)


def mask(x: Tensor, keep: Tensor) -> Tensor:
    return torch.where(keep, x, torch.zeros((), dtype=x.dtype, device=x.device))


def dtype_of(name: str) -> Any:
    """Return the element type of a name: `float32`."""
    return getattr(torch, name)


def cast(x: Tensor, *, dtype: str = "float32", reduce: str = "", accumulate: str = "") -> Tensor:
    own, copy = dtype_of(dtype), None
    if x in _COPIES:
        version, copy = _COPIES[x]
        _COPIES[x] = (version, own)  # a copy is given away: it takes memory until its last reader
        if not isinstance(copy, Tensor) or copy.dtype != own or version != x._version:
            copy = None
    return x.to(own) if copy is None else copy


def convert(x: Tensor, *, dtype: str = "float32") -> Tensor:
    return x.to(dtype_of(dtype))


def fill(*, shape: Sequence[int], dtype: str = "float32", value: float = 0.0) -> Tensor:
    number = torch.full((), value, dtype=dtype_of(dtype), device=_device())
    return number.expand(tuple(shape))


# Functions of one variable, and their gradients

exp, expm1, log, log1p = torch.exp, torch.expm1, torch.log, torch.log1p
sin, cos, tanh = torch.sin, torch.cos, torch.tanh
abs, square, rsqrt = torch.abs, torch.square, torch.rsqrt
sqrt = torch.sqrt
reciprocal, sigmoid = torch.reciprocal, torch.sigmoid
relu, relu6, silu, mish = functional.relu, functional.relu6, functional.silu, functional.mish
softsign = functional.softsign
exp_gradient = torch.mul


def pow(x: Tensor, *, exponent: float = 1.0) -> Tensor:
    return torch.pow(x, exponent)


def maximum(a: Tensor, b: Tensor, *, halves: bool = False, both: bool = False) -> Tensor:
    return torch.maximum(a, b)


def minimum(a: Tensor, b: Tensor, *, halves: bool = False, both: bool = False) -> Tensor:
    return torch.minimum(a, b)


def clip(x: Tensor, *, low: float = 0.0, high: float = 1.0, inside: bool = False) -> Tensor:
    return torch.clamp(x, low, high)


def gelu(x: Tensor, *, approximate: bool = True) -> Tensor:
    return functional.gelu(x, approximate="tanh" if approximate else "none")


def leaky_relu(x: Tensor, *, slope: float = 0.01) -> Tensor:
    return functional.leaky_relu(x, slope)


def elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return functional.elu(x, alpha)


@widened
def fast_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


@widened
def softplus(x: Tensor) -> Tensor:
    return torch.logaddexp(x, torch.zeros_like(x))


@widened
def hard_sigmoid(x: Tensor, *, alpha: float = 1 / 6, beta: float = 0.5) -> Tensor:
    return torch.clamp(alpha * x + beta, 0, 1)


@widened
def hard_swish(x: Tensor) -> Tensor:
    return x * torch.clamp(x / 6 + 0.5, 0, 1)


@widened
def expm1_gradient(dy: Tensor, y: Tensor) -> Tensor:
    return dy * (y + 1)


@widened
def log_gradient(dy: Tensor, x: Tensor) -> Tensor:
    return dy / x


@widened
def log1p_gradient(dy: Tensor, x: Tensor) -> Tensor:
    return dy / (1 + x)


@widened
def sin_gradient(dy: Tensor, x: Tensor) -> Tensor:
    return dy * torch.cos(x)


@widened
def cos_gradient(dy: Tensor, x: Tensor) -> Tensor:
    return -dy * torch.sin(x)


def tanh_gradient(dy: Tensor, y: Tensor) -> Tensor:
    return _backward.tanh_backward(dy, y)


@widened
def abs_gradient(dy: Tensor, x: Tensor) -> Tensor:
    return dy * torch.sign(x)


@widened
def square_gradient(dy: Tensor, x: Tensor) -> Tensor:
    return dy * 2 * x


@widened
def sqrt_gradient(dy: Tensor, y: Tensor) -> Tensor:
    return dy * 0.5 / y


@widened
def rsqrt_gradient(dy: Tensor, y: Tensor) -> Tensor:
    return dy * -0.5 * y * y * y


@widened
def reciprocal_gradient(dy: Tensor, y: Tensor) -> Tensor:
    return -dy * y * y


@widened
def pow_gradient(dy: Tensor, x: Tensor, *, exponent: float = 1.0) -> Tensor:
    return dy * exponent * torch.pow(x, exponent - 1 if exponent else 0)


def sigmoid_gradient(dy: Tensor, y: Tensor) -> Tensor:
    return _backward.sigmoid_backward(dy, y)


def relu_gradient(dy: Tensor, y: Tensor) -> Tensor:
    return torch.where(y > 0, dy, dy.new_zeros(()))


def relu6_gradient(dy: Tensor, y: Tensor) -> Tensor:
    return torch.where((y > 0) & (y < 6), dy, dy.new_zeros(()))


def leaky_relu_gradient(dy: Tensor, y: Tensor, *, slope: float = 0.01) -> Tensor:
    return torch.where(y > 0, dy, dy * slope)


@widened
def elu_gradient(dy: Tensor, y: Tensor, *, alpha: float = 1.0) -> Tensor:
    return torch.where(y > 0, dy, dy * (y + alpha))


def clip_gradient(
    dy: Tensor, x: Tensor, *, low: float = 0.0, high: float = 1.0, inside: bool = False
) -> Tensor:
    over = x > low if inside and low != -inf else x >= low
    passes = over & (x < high if inside and high != inf else x <= high)
    return torch.where(passes, dy, dy.new_zeros(()))


@widened
def softplus_gradient(dy: Tensor, x: Tensor) -> Tensor:
    return dy * torch.sigmoid(x)


def silu_gradient(dy: Tensor, x: Tensor) -> Tensor:
    return _backward.silu_backward(dy, x)


@widened
def fast_gelu_gradient(dy: Tensor, x: Tensor) -> Tensor:
    gate = torch.sigmoid(1.702 * x)
    return dy * gate * (1 + 1.702 * x * (1 - gate))


def gelu_gradient(dy: Tensor, x: Tensor, *, approximate: bool = True) -> Tensor:
    return _backward.gelu_backward(dy, x, approximate="tanh" if approximate else "none")


@widened
def mish_gradient(dy: Tensor, x: Tensor) -> Tensor:
    gate = torch.tanh(softplus(x))
    return dy * (gate + x * (1 - gate * gate) * torch.sigmoid(x))


@widened
def softsign_gradient(dy: Tensor, y: Tensor) -> Tensor:
    return dy * torch.square(1 - torch.abs(y))


@widened
def hard_sigmoid_gradient(
    dy: Tensor, y: Tensor, *, alpha: float = 1 / 6, beta: float = 0.5
) -> Tensor:
    return dy * alpha * ((y > 0) & (y < 1))


@widened
def hard_swish_gradient(dy: Tensor, x: Tensor) -> Tensor:
    return dy * torch.where(torch.abs(x) < 3, x / 3 + 0.5, (x > 0).to(x.dtype))
