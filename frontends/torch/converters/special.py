"""Special functions, and functions of several steps."""

from math import inf, pi

from shardwright.frontends.common.call import Operand
from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.torch.aten import converts
from shardwright.frontends.torch.aten_call import Call
from shardwright.ir.graph import Value


@converts("aten.digamma", "aten.special_digamma", "aten.polygamma", "aten.special_polygamma")
def _polygamma(call: Call, x: Value, n: int = 0) -> Value:
    return call.emit("polygamma", call.cast(x, call.result.dtype), order=n)


@converts("aten.igamma", "aten.igammac")
def _incomplete_gamma(call: Call, x: Value, other: Value) -> Value:
    if call.is_trained(x):
        raise UnsupportedError(
            "an incomplete gamma function by its first argument, which has no derivative in "
            "PyTorch,"
        )
    kind, upper = call.result.dtype, "igammac" in call.operator
    a = call.emit("stop_gradient", call.cast(x, kind))
    return call.emit("incomplete_gamma", a, call.cast(other, kind), upper=upper)


@converts("aten.special_zeta")
def _zeta(call: Call, x: Operand, other: Operand) -> Value:
    raise UnsupportedError(
        "the zeta function, whose sum has no operator (of a whole number n of at least 2 it is "
        "`torch.polygamma(n - 1, x)` over the factorial of n - 1, by the sign of (-1)^n)"
    )


@converts("aten.xlogy")
def _xlogy(call: Call, x: Operand, other: Operand) -> Value:
    dtype = call.result.dtype
    return _times_logarithm(call, call.operand(x, dtype), call.operand(other, dtype), "log")


@converts("aten.special_xlog1py")
def _xlog1py(call: Call, x: Operand, other: Operand) -> Value:
    dtype = call.result.dtype
    return _times_logarithm(call, call.operand(x, dtype), call.operand(other, dtype), "log1p")


def _times_logarithm(call: Call, x: Value, y: Value, operator: str) -> Value:
    """Return the product of numbers and logarithms; zero where the number is zero.

    There the gradient by `y` is the quotient of both, as in PyTorch: no number where both are zero.
    """
    kind = x.type.dtype
    least, at_one = (0, 1) if operator == "log" else (-1, 0)
    is_none = call.emit("less_equal", y, call.fill(least, kind))
    is_none = call.emit("logical_and", call.emit("equal", x, call.fill(0, kind)), is_none)
    one = call.fill(at_one, kind)
    found = call.emit("mul", x, call.emit(operator, call.emit("where", is_none, one, y)))
    rest = call.emit(operator, call.emit("where", is_none, y, one))
    none = call.emit("with_gradient_of", call.emit("zeros_like", rest), rest)
    return call.emit("add", found, call.emit("mul", x, none))


@converts("aten.logit", "aten.special_logit")
def _logit(call: Call, x: Value, eps: float | None = None) -> Value:
    x = call.cast(x, call.result.dtype)
    if eps is not None:
        x = call.emit("clip", x, low=float(eps), high=1 - float(eps))
    return call.emit("sub", call.emit("log", x), call.emit("log1p", call.emit("neg", x)))


@converts("aten.sinc")
def _sinc(call: Call, x: Value) -> Value:
    angle = call.scaled(call.cast(x, call.result.dtype), pi)
    is_zero = call.emit("equal", angle, call.fill(0, call.result.dtype))
    one = call.fill(1, call.result.dtype)
    safe = call.emit("where", is_zero, one, angle)
    return call.emit("where", is_zero, one, call.emit("div", call.emit("sin", safe), safe))


@converts("aten.hypot")
def _hypot(call: Call, x: Value, other: Value) -> Value:
    """Return the root of a sum of squares, each relative to the larger one: none overflows."""
    kind = call.result.dtype
    a, b = call.cast(x, kind), call.cast(other, kind)
    unit = call.emit("maximum", *(call.emit("abs", call.emit("stop_gradient", n)) for n in (a, b)))
    is_scale = call.emit("logical_and", call.emit("is_finite", unit), _is_some(call, unit))
    unit = call.emit("where", is_scale, unit, call.fill(1, kind))
    squares = (call.emit("square", call.emit("div", n, unit)) for n in (a, b))
    found = call.emit("mul", unit, call.emit("sqrt", call.emit("add", *squares)))
    # Infinite if one of them is, whatever the other one is.
    is_infinite = call.emit("logical_or", call.emit("is_inf", a), call.emit("is_inf", b))
    value = call.emit("where", is_infinite, call.fill(inf, kind), found)
    return call.emit("with_gradient_of", value, found)


def _is_some(call: Call, x: Value) -> Value:
    return call.emit("not_equal", x, call.fill(0, x.type.dtype))


@converts("aten.copysign")
def _copysign(call: Call, x: Value, other: Operand) -> Value:
    """Return the size of a number with the sign of another one, which zeros have, too."""
    kind = call.result.dtype
    x, sign, zero = call.cast(x, kind), call.operand(other, kind), call.fill(0, kind)
    size = call.emit("abs", x)
    below = call.emit("less", call.emit("reciprocal", sign), zero)
    below = call.emit("logical_and", call.emit("equal", sign, zero), below)
    is_negative = call.emit("logical_or", call.emit("less", sign, zero), below)
    found = call.emit("where", is_negative, call.emit("neg", size), size)
    ratio = call.emit("where", _is_some(call, x), call.emit("div", found, x), zero)
    slope = call.emit("mul", x, call.emit("stop_gradient", ratio))
    return call.emit("with_gradient_of", found, slope)


@converts("aten.ldexp")
def _ldexp(call: Call, x: Value, other: Value) -> Value:
    kind = call.result.dtype
    factor = call.emit("power", call.fill(2, kind), call.cast(other, kind))
    return call.emit("mul", call.cast(x, kind), factor)
