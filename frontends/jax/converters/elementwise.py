"""Primitives point by point: arithmetic, functions, comparison, logic, types."""

from math import inf, isfinite

from shardwright.frontends.common.call import COMPARISONS, FUNCTIONS
from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.jax.jax_types import dtype_of
from shardwright.frontends.jax.primitive_call import Call
from shardwright.frontends.jax.primitives import converts
from shardwright.ir.graph import Value

_UNARY = {
    **{
        name: name
        for name in (
            *FUNCTIONS,
            *("bessel_i0e", "bessel_i1e", "ceil", "erfc", "expm1", "floor", "is_finite", "lgamma"),
            *("log1p", "neg", "population_count", "rsqrt", "sign", "square", "stop_gradient"),
        )
    },
    "digamma": "polygamma",
    "erf_inv": "erfinv",
    "logistic": "sigmoid",
}
_BINARY = {"atan2": "atan2", **COMPARISONS}
# Each operand gets a half of the gradient where they are equal.
_EXTREMA = {"max": "maximum", "min": "minimum"}
_BITS = {"and": "and", "or": "or", "xor": "xor"}


def _unary(name: str, ours: str) -> None:
    def convert(call: Call) -> Value:
        return call.emit(ours, call.at(0))

    converts(name)(convert)


def _binary(name: str, ours: str) -> None:
    def convert(call: Call) -> Value:
        return call.emit(ours, *call.values())

    converts(name)(convert)


def _extremum(name: str, ours: str) -> None:
    def convert(call: Call) -> Value:
        kept = _kept(call)
        return call.emit(ours, *call.values(), halves=True) if kept is None else kept

    converts(name)(convert)


def _kept(call: Call) -> Value | None:
    """Return the operand of a maximum with minus infinity, or a minimum with infinity."""
    nothing = -inf if call.primitive == "max" else inf
    for one, other in ((0, 1), (1, 0)):
        kept = call.operands[other]
        if not isinstance(kept, Value) or kept.type != call.result:
            continue
        if call.number(one) == nothing:
            return kept
    return None


def _bits(name: str, ours: str) -> None:
    def convert(call: Call) -> Value:
        kind = "logical" if call.result.dtype == "bool" else "bitwise"
        return call.emit(f"{kind}_{ours}", *call.values())

    converts(name)(convert)


def _total(name: str, ours: str) -> None:
    """Convert a comparison in which what is no number is equal to itself and above all else."""

    def convert(call: Call) -> Value:
        left, right = call.values()
        found = call.emit(ours, left, right)
        if not left.type.is_float:
            return found
        is_last = call.emit("is_nan", right)
        if name != "le_to":
            first = call.emit("is_nan", left)
            first = first if name == "eq_to" else call.emit("logical_not", first)
            is_last = call.emit("logical_and", first, is_last)
        return call.emit("logical_or", found, is_last)

    converts(name)(convert)


for _name, _ours in {"eq_to": "equal", "le_to": "less_equal", "lt_to": "less"}.items():
    _total(_name, _ours)
for _name, _ours in _UNARY.items():
    _unary(_name, _ours)
for _name, _ours in _BINARY.items():
    _binary(_name, _ours)
for _name, _ours in _EXTREMA.items():
    _extremum(_name, _ours)
for _name, _ours in _BITS.items():
    _bits(_name, _ours)


@converts("abs")
def _abs(call: Call) -> Value:
    """Convert the absolute value; JAX's gradient is 1 at zero."""
    x = call.at(0)
    if not x.type.is_float:
        return call.emit("abs", x)
    return call.emit("mul", x, _sign(call, x))


@converts("add", "add_any")
def _add(call: Call) -> Value:
    for one, other in ((0, 1), (1, 0)):
        number = call.number(one)
        if number is not None and call.result.is_float and isfinite(number):
            x = call.at(other)
            if x.type == call.result:
                return call.shifted(x, number)
    return call.emit("logical_or" if call.result.dtype == "bool" else "add", *call.values())


@converts("sub")
def _sub(call: Call) -> Value:
    number = call.number(1)
    x = call.at(0)
    if number is not None and x.type == call.result and x.type.is_float and isfinite(number):
        return call.shifted(x, -number)
    return call.emit("sub", x, call.at(1))


@converts("mul")
def _mul(call: Call) -> Value:
    for one, other in ((0, 1), (1, 0)):
        number = call.number(one)
        if number is not None and call.result.is_float and call.at(other).type == call.result:
            return call.scaled(call.at(other), number)
    return call.emit("logical_and" if call.result.dtype == "bool" else "mul", *call.values())


@converts("div")
def _div(call: Call) -> Value:
    a, b = call.values()
    if not call.result.is_float:
        # JAX rounds towards zero.
        sign = call.emit("mul", call.emit("sign", a), call.emit("sign", b))
        size = call.emit("floor_div", call.emit("abs", a), call.emit("abs", b))
        return call.emit("mul", sign, size)
    number = call.number(1)
    if number and isfinite(number) and isfinite(1 / number) and a.type == call.result:
        return call.scaled(a, 1 / number)
    if call.number(0) == 1 and b.type == call.result:
        return call.emit("reciprocal", b)
    return call.emit("div", a, b)


@converts("rem")
def _rem(call: Call) -> Value:
    return call.remainder(*call.values())


@converts("integer_pow")
def _integer_pow(call: Call) -> Value:
    exponent, x = call.params["y"], call.at(0)
    if exponent == 2:
        return call.emit("square", x)
    if exponent == -1 and x.type.is_float:
        return call.emit("reciprocal", x)
    if not x.type.is_float:
        if exponent < 1:
            raise UnsupportedError(f"an integer to the power {exponent}")
        found = x
        for _ in range(exponent - 1):
            found = call.emit("mul", found, x)
        return found
    return call.emit("pow", x, exponent=float(exponent))


@converts("pow")
def _pow(call: Call) -> Value:
    number, x = call.number(1), call.at(0)
    if number is not None and x.type == call.result:
        return call.emit("pow", x, exponent=float(number))
    exponent = call.cast(call.at(1), x.type.dtype)
    return call.emit("power", x, exponent)


@converts("exp2")
def _exp2(call: Call) -> Value:
    return call.emit("exp", call.scaled(call.at(0), 0.6931471805599453))


@converts("cbrt")
def _cbrt(call: Call) -> Value:
    """Convert the cube root, whose gradient is infinite at zero."""
    x = call.at(0)
    sign = _sign(call, x)
    size = call.emit("pow", call.emit("mul", x, sign), exponent=1 / 3)
    return call.emit("mul", sign, size)


def _sign(call: Call, x: Value) -> Value:
    """Return -1 for negative elements and 1 for others, zero among them."""
    is_negative = call.emit("less", x, call.fill(0, x.type.dtype))
    negative, one = (call.fill(n, x.type.dtype) for n in (-1, 1))
    return call.emit("where", is_negative, negative, one)


@converts("round")
def _round(call: Call) -> Value:
    if int(call.params["rounding_method"]) != 1:
        raise UnsupportedError("rounding away from zero")
    return call.emit("round", call.at(0))


@converts("not")
def _not(call: Call) -> Value:
    return call.emit("logical_not" if call.result.dtype == "bool" else "invert", call.at(0))


@converts("shift_left")
def _shift_left(call: Call) -> Value:
    return call.emit("left_shift", *call.values())


@converts("select_n")
def _select(call: Call) -> Value:
    which, *cases = call.values()
    if which.type.shape != call.result.shape:
        which = call.broadcast(which, call.result.shape)
    if which.type.dtype == "bool":
        return call.emit("where", which, cases[1], cases[0])
    found = cases[-1]
    for i, case in reversed(list(enumerate(cases[:-1]))):
        found = call.emit(
            "where", call.emit("equal", which, call.fill(i, which.type.dtype)), case, found
        )
    return found


@converts("clamp")
def _clamp(call: Call) -> Value:
    low, x, high = call.values()
    least, most = call.number(0), call.number(2)
    if x.type.is_float and least is not None and most is not None:
        return call.emit("clip", x, low=float(least), high=float(most), inside=True)
    limited = call.emit("minimum", call.emit("maximum", x, low), high)
    if not x.type.is_float:
        return limited
    if call.known(0) is None or call.known(2) is None:
        raise UnsupportedError("`clamp` with limits that are not constants")
    # The gradient is zero at the limits, too.
    inside = call.emit("logical_and", call.emit("greater", x, low), call.emit("less", x, high))
    return call.emit("where", inside, x, call.emit("stop_gradient", limited))


@converts("convert_element_type")
def _convert(call: Call) -> Value:
    x, dtype = call.at(0), dtype_of(call.params["new_dtype"])
    if dtype == "bool" and x.type.dtype != "bool":
        return call.emit("not_equal", x, call.fill(0, x.type.dtype))
    return call.cast(x, dtype)


@converts("reduce_precision")
def _reduce_precision(call: Call) -> Value:
    x = call.at(0)
    asked = (call.params["exponent_bits"], call.params["mantissa_bits"])
    known = {"bfloat16": (8, 7), "float16": (5, 10), "float32": (8, 23), "float64": (11, 52)}
    if asked == known.get(x.type.dtype):
        return x
    coarse = next((name for name, bits in known.items() if bits == asked), None)
    if coarse is None:
        raise UnsupportedError(f"`reduce_precision` to {asked[0]} and {asked[1]} bits")
    return call.cast(call.cast(x, coarse), x.type.dtype)


@converts(
    *("copy", "copy_p", "optimization_barrier", "pvary", "name", "reshard", "sharding_constraint")
)
def _same(call: Call) -> list[Value]:
    return list(call.values())
