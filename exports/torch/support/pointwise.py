"""Operators of a plan that compute point by point.

A function of one variable saves its operand or its result for backward, as its gradient says: `x`
or `y`. Numbers of 16 bits are computed in float32 where there are several steps.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.weak import WeakTensorKeyDictionary

from .shared.arrays import dtype_of
from .shared.elementwise import *  # noqa: F403
from .shared.elementwise import softplus, widened

_backward = torch.ops.aten  # PyTorch's own gradients, each one kernel


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
neg, equal = torch.neg, torch.eq
identity = stop_gradient = lambda x: x


def floor_div(a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, b, rounding_mode="floor")


# Types


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

rsqrt, sigmoid = torch.rsqrt, torch.sigmoid
relu, relu6, silu, mish = functional.relu, functional.relu6, functional.silu, functional.mish
softsign = functional.softsign


def gelu(x: Tensor, *, approximate: bool = True) -> Tensor:
    return functional.gelu(x, approximate="tanh" if approximate else "none")


def leaky_relu(x: Tensor, *, slope: float = 0.01) -> Tensor:
    return functional.leaky_relu(x, slope)


def elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return functional.elu(x, alpha)


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
def square_gradient(dy: Tensor, x: Tensor) -> Tensor:
    return dy * 2 * x


def sigmoid_gradient(dy: Tensor, y: Tensor) -> Tensor:
    return _backward.sigmoid_backward(dy, y)


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
