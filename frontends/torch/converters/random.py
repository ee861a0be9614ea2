"""Random numbers: functions of the step and of the place of an element."""

from collections.abc import Sequence
from math import pi
from typing import Any

from shardwright.frontends.common.call import Operand
from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.torch.aten import converts
from shardwright.frontends.torch.aten_call import Call
from shardwright.ir.graph import Value
from shardwright.ir.types import numpy_dtype, unit_roundoff


def uniform(call: Call, shape: Sequence[int], dtype: str) -> Value:
    """Return random numbers in [0, 1), others in every step."""
    key = call.build.unique_name(f"{call.build.scope}/random".lstrip("/"))
    like = call.fill(0, dtype, shape)
    return call.emit("random_uniform", like, call.emission.step(), key=key)


def _of_result(call: Call) -> Value:
    return uniform(call, call.result.shape, call.result.dtype)


def _normal(call: Call) -> Value:
    """Return standard normal numbers (Box and Muller, 1958)."""
    logarithm = call.emit("log1p", call.emit("neg", _of_result(call)))
    radius = call.emit("sqrt", call.scaled(logarithm, -2.0))
    return call.emit("mul", radius, call.emit("cos", call.scaled(_of_result(call), 2 * pi)))


@converts("aten.rand", "aten.rand_like")
def _rand(call: Call, x: Value | None = None, size: Any = None, dtype: Any = None) -> Value:
    return _of_result(call)


@converts("aten.uniform")
def _uniform(call: Call, x: Value, begin: float = 0.0, to: float = 1.0) -> Value:
    return call.shifted(call.scaled(_of_result(call), to - begin), begin)


@converts("aten.randn", "aten.randn_like")
def _randn(call: Call, x: Value | None = None, size: Any = None, dtype: Any = None) -> Value:
    return _normal(call)


@converts("aten.normal_functional")
def _normal_of(call: Call, x: Value, mean: float = 0.0, std: float = 1.0) -> Value:
    return call.shifted(call.scaled(_normal(call), std), mean)


@converts("aten.exponential")
def _exponential(call: Call, x: Value, lambd: float = 1.0) -> Value:
    """Return exponential numbers; none is zero, since logarithms are taken of them."""
    kind = call.result.dtype
    drawn = call.emit("neg", call.emit("log1p", call.emit("neg", _of_result(call))))
    least = call.fill(unit_roundoff(numpy_dtype(kind)), kind)
    return call.scaled(call.emit("maximum", drawn, least), 1 / lambd)


@converts("aten.bernoulli")
def _bernoulli(call: Call, x: Value, p: Operand | None = None) -> Value:
    """Return ones with a probability: `p`, or the elements."""
    kind = call.result.dtype
    inner = kind if call.result.is_float else "float32"
    rate = x if p is None else call.operand(p, inner)
    drawn = call.emit("less", uniform(call, call.result.shape, inner), call.cast(rate, inner))
    return call.cast(drawn, kind)


@converts("aten.randint", "aten.randint_like")
def _randint(
    call: Call,
    high: int,
    x: Value | None = None,
    size: Any = None,
    low: int = 0,
    dtype: Any = None,
) -> Value:
    if call.result.is_float:
        raise UnsupportedError("random integers of a floating-point type")
    drawn = uniform(call, call.result.shape, "float64")
    return call.shifted(
        call.cast(call.emit("floor", call.scaled(drawn, high - low)), call.result.dtype), low
    )


@converts("aten.randperm")
def _randperm(call: Call, n: int, dtype: Any = None) -> Value:
    _, places = call.emit_all("sort", uniform(call, (n,), "float64"), axis=0)
    return call.cast(places, call.result.dtype)
