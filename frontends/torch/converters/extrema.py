"""Extrema of two tensors, and bounds.

Versions of PyTorch differ in the gradients of numbers that are equal, or at a bound. A module is
trained to what the installed PyTorch makes of it, so they are measured, and not told by a version.
"""

from collections.abc import Callable
from functools import cache
from math import inf, nan

import torch

from shardwright.frontends.common.call import Operand
from shardwright.frontends.torch.aten import converts
from shardwright.frontends.torch.aten_call import Call
from shardwright.ir.graph import Value


@cache
def _slope(function: Callable[..., torch.Tensor]) -> float:
    """Return PyTorch's gradient of a function of a number at 1."""
    with torch.enable_grad():
        x = torch.ones(1, requires_grad=True)
        function(x).sum().backward()
    assert x.grad is not None
    return x.grad.item()


def _numbers_share(x: torch.Tensor) -> torch.Tensor:
    return torch.fmax(x, torch.ones(1))


def _nothing_shares(x: torch.Tensor) -> torch.Tensor:
    return torch.fmax(torch.ones(1), x + nan)


def _bounds_share(x: torch.Tensor) -> torch.Tensor:
    return torch.clamp(x, min=torch.ones(1))


def _bounds_stop(x: torch.Tensor) -> torch.Tensor:
    return torch.clamp(x, min=1.0)


@converts("aten.maximum", "aten.minimum")
def _extremum(call: Call, x: Value, other: Value) -> Value:
    a, b = (call.cast(one, call.result.dtype) for one in (x, other))
    return _shared(call, call.operator.split(".")[1], a, b)


def _shared(call: Call, ours: str, a: Value, b: Value) -> Value:
    """Return an extremum whose operands have a half of the gradient each where they are equal.

    Where one is no number both have all of it.
    """
    return call.emit(ours, a, b, halves=True, both=True)


@converts("aten.fmax", "aten.fmin")
def _number(call: Call, x: Value, other: Value) -> Value:
    """Return an extremum, the other operand where one is no number."""
    a, b = (call.cast(one, call.result.dtype) for one in (x, other))
    ours = {"fmax": "maximum", "fmin": "minimum"}[call.operator.split(".")[1]]
    if not a.type.is_float:
        return call.emit(ours, a, b)
    halves = _slope(_numbers_share) == 0.5
    known = call.emit("where", call.emit("is_nan", a), b, a)
    found = call.emit(ours, known, b, **({"halves": True} if halves else {}))
    found = call.emit("where", call.emit("is_nan", b), a, found)
    if _slope(_nothing_shares) == 1:
        return call.emit("with_gradient_of", found, _shared(call, ours, a, b))
    return found


@converts("aten.hardtanh")
def _hardtanh(call: Call, x: Value, min_val: float = -1.0, max_val: float = 1.0) -> Value:
    if (min_val, max_val) == (0, 6):
        return call.emit("relu6", x)
    return call.emit("clip", x, low=float(min_val), high=float(max_val), inside=True)


@converts("aten.clamp", "aten.clip", "aten.clamp_min", "aten.clamp_max")
def _clamp(call: Call, x: Value, min: Operand | None = None, max: Operand | None = None) -> Value:
    x = call.cast(x, call.result.dtype)
    if x.type.is_float and not isinstance(min, Value) and not isinstance(max, Value):
        low = -inf if min is None else float(min)
        high = inf if max is None else float(max)
        return call.emit("clip", x, low=low, high=high, inside=_slope(_bounds_stop) == 0)
    lower, upper = (None if b is None else call.operand(b, x.type.dtype) for b in (min, max))
    if x.type.is_float and _slope(_bounds_share) == 0.5:
        return _clamped(call, x, lower, upper)
    x = x if lower is None else call.emit("maximum", x, lower)
    return x if upper is None else call.emit("minimum", x, upper)


def _clamped(call: Call, x: Value, low: Value | None, high: Value | None) -> Value:
    """Return a number between bounds that shares the gradient with one that it is equal to.

    At two bounds it has the whole gradient, and an upper bound below the lower one has it. What is
    no number is neither below nor above.
    """
    if low is None and high is None:
        return x
    if low is None or high is None:
        ours, bound = ("minimum", high) if low is None else ("maximum", low)
        return _shared(call, ours, x, bound)  # type: ignore[arg-type]
    x, low, high = (call.broadcast(one, call.result.shape) for one in (x, low, high))
    emit = call.emit
    below, above = emit("less", x, low), emit("greater", x, high)
    ordered, apart = emit("less_equal", low, high), emit("less", low, high)
    at_low, at_high = (emit("logical_and", emit("equal", x, b), apart) for b in (low, high))
    inside = emit("logical_not", emit("logical_or", below, above))
    at_one = emit("logical_or", at_low, at_high)
    from_above = emit("logical_and", above, ordered)
    parts = (
        (x, emit("logical_and", inside, emit("logical_not", at_one)), at_one),
        (low, emit("logical_and", below, ordered), at_low),
        (high, emit("logical_or", from_above, emit("greater", low, high)), at_high),
    )
    total = call.fill(0, x.type.dtype)
    for operand, has_all, has_half in parts:
        total = emit("add", total, emit("mask", operand, has_all))
        total = emit("add", total, call.scaled(emit("mask", operand, has_half), 0.5))
    return emit("with_gradient_of", emit("minimum", emit("maximum", x, low), high), total)
