"""Functions of complex numbers, products of their matrices, and what moves them about."""

from collections.abc import Callable
from math import log
from typing import Any

from shardwright.frontends.common.call import Operand
from shardwright.frontends.common.einsum import emit_einsum, plain_equation
from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.torch.aten import COMPLEX, CONVERTERS, Converter
from shardwright.frontends.torch.aten_call import Call
from shardwright.frontends.torch.converters.complex_numbers import (
    Parts,
    both,
    joined,
    parts_of,
    product_of,
    quotient,
)
from shardwright.frontends.torch.converters.reduction import root
from shardwright.ir.graph import Value
from shardwright.ir.types import TensorType

# Parameters that are written, joined or chosen, beside those that say where.
_DATA = {"x", "other", "value", "values", "src", "source", "tensors"}


def _whole(call: Call, x: Value, argument: str = "x") -> tuple[Value, Value]:
    """Return both parts of an argument, the imaginary one zero where it is real."""
    real, imaginary = parts_of(call, x, argument)
    return real, call.emit("zeros_like", real) if imaginary is None else imaginary


def _size(call: Call, parts: tuple[Value, Value]) -> Value:
    return root(call, call.emit("add", *(call.emit("square", part) for part in parts)))


def _polar(call: Call, size: Value, angle: Value) -> tuple[Value, Value]:
    return (
        call.emit("mul", size, call.emit("cos", angle)),
        call.emit("mul", size, call.emit("sin", angle)),
    )


def _exp(call: Call, x: Parts) -> tuple[Value, Value]:
    real, imaginary = x
    assert imaginary is not None
    return _polar(call, call.emit("exp", real), imaginary)


def _log(call: Call, x: Parts) -> tuple[Value, Value]:
    real, imaginary = x
    assert imaginary is not None
    squares = call.emit("add", call.emit("square", real), call.emit("square", imaginary))
    return call.scaled(call.emit("log", squares), 0.5), call.emit("atan2", imaginary, real)


def _sqrt(call: Call, x: tuple[Value, Value]) -> tuple[Value, Value]:
    angle = call.scaled(call.emit("atan2", x[1], x[0]), 0.5)
    return _polar(call, root(call, _size(call, x)), angle)


def _sinh(call: Call, x: tuple[Value, Value]) -> tuple[Value, Value]:
    real, imaginary = x
    return (
        call.emit("mul", call.emit("sinh", real), call.emit("cos", imaginary)),
        call.emit("mul", call.emit("cosh", real), call.emit("sin", imaginary)),
    )


def _cosh(call: Call, x: tuple[Value, Value]) -> tuple[Value, Value]:
    real, imaginary = x
    return (
        call.emit("mul", call.emit("cosh", real), call.emit("cos", imaginary)),
        call.emit("mul", call.emit("sinh", real), call.emit("sin", imaginary)),
    )


def _tanh(call: Call, x: tuple[Value, Value]) -> tuple[Value, Value]:
    """Return ``(t (1 + s s) + i s (1 - t t)) / (1 + t t s s)`` of tanh ``t`` and tangent ``s``."""
    t, s = call.emit("tanh", x[0]), call.emit("tan", x[1])
    tt, ss = call.emit("square", t), call.emit("square", s)
    below = call.shifted(call.emit("mul", tt, ss), 1)
    real = call.emit("mul", t, call.shifted(ss, 1))
    imaginary = call.emit("mul", s, call.shifted(call.emit("neg", tt), 1))
    return call.emit("div", real, below), call.emit("div", imaginary, below)


def _sigmoid(call: Call, x: tuple[Value, Value]) -> tuple[Value, Value]:
    real, imaginary = _scaled(call, _tanh(call, _scaled(call, x, 0.5)), 0.5)
    return call.shifted(real, 0.5), imaginary


def _times_i(call: Call, x: tuple[Value, Value]) -> tuple[Value, Value]:
    return call.emit("neg", x[1]), x[0]


def _over_i(call: Call, x: tuple[Value, Value]) -> tuple[Value, Value]:
    return x[1], call.emit("neg", x[0])


def _scaled(call: Call, x: tuple[Value, Value], factor: float) -> tuple[Value, Value]:
    return call.scaled(x[0], factor), call.scaled(x[1], factor)


def _reciprocal(call: Call, x: tuple[Value, Value]) -> Parts:
    return quotient(call, (call.fill(1, call.result.dtype), None), x)


def _sgn(call: Call, x: tuple[Value, Value]) -> Parts:
    size, one = _size(call, x), call.fill(1, call.result.dtype)
    is_zero = call.emit("equal", size, call.fill(0, call.result.dtype))
    return quotient(call, x, (call.emit("where", is_zero, one, size), None))


_FUNCTIONS: dict[str, Callable[[Call, tuple[Value, Value]], Parts]] = {
    "exp": _exp,
    "log": _log,
    "log2": lambda call, x: _scaled(call, _log(call, x), 1 / log(2)),
    "log10": lambda call, x: _scaled(call, _log(call, x), 1 / log(10)),
    "sqrt": _sqrt,
    "rsqrt": lambda call, x: _reciprocal(call, _sqrt(call, x)),
    "square": lambda call, x: product_of(call, x, x),
    "reciprocal": _reciprocal,
    "sgn": _sgn,
    "sinh": _sinh,
    "cosh": _cosh,
    "tanh": _tanh,
    "sin": lambda call, x: _over_i(call, _sinh(call, _times_i(call, x))),
    "cos": lambda call, x: _cosh(call, _times_i(call, x)),
    "tan": lambda call, x: _over_i(call, _tanh(call, _times_i(call, x))),
    "sigmoid": _sigmoid,
}


def _of_one(function: Callable[[Call, tuple[Value, Value]], Parts]) -> Callable[..., Value]:
    def convert(call: Call, x: Value) -> Value:
        return joined(call, *function(call, _whole(call, x)))

    return convert


for _name, _function in _FUNCTIONS.items():
    both(_name)(_of_one(_function))


@both("pow")
def _power(call: Call, x: Operand, exponent: Operand) -> Value:
    base = parts_of(call, x, "x")
    is_count = isinstance(exponent, int) or (isinstance(exponent, float) and exponent.is_integer())
    if is_count and exponent >= 1:  # type: ignore[operator]
        found = base
        for digit in f"{int(exponent):b}"[1:]:  # type: ignore[arg-type]
            found = product_of(call, found, found)
            found = product_of(call, found, base) if digit == "1" else found
        return joined(call, *found)
    zero = call.emit("zeros_like", base[0])
    logarithm = _log(call, (base[0], zero if base[1] is None else base[1]))
    real, imaginary = product_of(call, logarithm, parts_of(call, exponent, "exponent"))
    assert imaginary is not None
    return joined(call, *_exp(call, (real, imaginary)))


@both("eq", "ne")
def _equal(call: Call, x: Value, other: Operand) -> Value:
    test = "equal" if ".eq" in call.operator else "not_equal"
    combine = "logical_and" if test == "equal" else "logical_or"
    real = Call(call.emission, call.operator, (_kind_of(x),), call.notes)
    real.complex_arguments = call.complex_arguments
    a, b = _whole(real, x)
    c, d = parts_of(real, other, "other")
    d = call.fill(0, x.type.dtype) if d is None else d
    return call.emit(combine, call.emit(test, a, c), call.emit(test, b, d))


def _kind_of(x: Value) -> TensorType:
    return TensorType(x.type.dtype, x.type.shape[:-1])


@both("isfinite", "isnan", "isinf")
def _tested(call: Call, x: Value) -> Value:
    test = {"isfinite": "is_finite", "isnan": "is_nan", "isinf": "is_inf"}
    name = call.operator.split(".")[1]
    found = call.emit(test[name], x)
    combine = "reduce_all" if name == "isfinite" else "reduce_any"
    return call.emit(combine, found, axis=-1)


def _register(name: str, convert: Callable[..., Any]) -> None:
    """Register a converter that has the parameters of that of real tensors."""
    plain = CONVERTERS[f"aten.{name}"]
    entry = Converter(convert, plain.names, plain.numbers, plain.items)
    CONVERTERS[f"{COMPLEX}aten.{name}"] = entry


def _norm(call: Call, x: Value, **arguments: Any) -> Value:
    plain = CONVERTERS[call.operator.rpartition(".")[0]]
    found: Value = plain.function(call, _size(call, _whole(call, x)), **arguments)
    return found


for _name in ("linalg_vector_norm", "norm"):
    _register(_name, _norm)


# Products


def _real_call(call: Call) -> Call:
    """Return the application of an operator to one part of each argument."""
    kinds = tuple(
        None if kind is None else TensorType(kind.dtype, kind.shape[:-1]) for kind in call.results
    )
    return Call(call.emission, call.operator, kinds, call.notes)


def _product(call: Call, x: Parts, y: Parts, of: Callable[[Value, Value], Value]) -> Parts:
    """Return the parts of what is linear in both of its operands."""

    def times(a: Value | None, b: Value | None) -> Value | None:
        return None if a is None or b is None else of(a, b)

    (a, b), (c, d) = x, y
    real, minus = of(a, c), times(b, d)
    pairs = [one for one in (times(a, d), times(b, c)) if one is not None]
    if minus is not None:
        real = call.emit("sub", real, minus)
    if not pairs:
        return real, None
    return real, call.emit("add", *pairs) if len(pairs) == 2 else pairs[0]


@both("matmul", "mm", "bmm", "mv", "dot")
def _matmul(
    call: Call,
    x: Value,
    other: Value | None = None,
    mat2: Value | None = None,
    tensor: Value | None = None,
    vec: Value | None = None,
) -> Value:
    given = {"other": other, "mat2": mat2, "tensor": tensor, "vec": vec}
    name, right = next((name, item) for name, item in given.items() if item is not None)
    real, plain = _real_call(call), CONVERTERS["aten.matmul"].function
    factors = parts_of(call, x, "x"), parts_of(call, right, name)
    return joined(call, *_product(call, *factors, lambda a, b: plain(real, a, b)))


@both("linear")
def _linear(call: Call, x: Value, weight: Value, bias: Value | None = None) -> Value:
    real, plain = _real_call(call), CONVERTERS["aten.linear"].function
    factors = parts_of(call, x, "x"), parts_of(call, weight, "weight")
    found = joined(call, *_product(call, *factors, lambda a, b: plain(real, a, b)))
    return found if bias is None else call.emit("add", found, bias)


@both("einsum")
def _einsum(call: Call, equation: str, tensors: list[Value], path: Any = None) -> Value:
    if "tensors" not in call.complex_arguments:
        raise UnsupportedError("an einsum of real and complex tensors")
    terms, result = plain_equation(equation, [x.type.rank - 1 for x in tensors])
    parts: list[Parts] = [parts_of(call, x, "tensors") for x in tensors]
    found, term = parts[0], terms[0]
    if len(terms) == 1:
        each = (emit_einsum(call, f"{term}->{result}", [x]) for x in found if x is not None)
        return joined(call, *each)
    for n, (other, factor) in enumerate(zip(terms[1:], parts[1:], strict=True), 2):
        wanted = set(result).union(*terms[n:])
        kept = "".join(dict.fromkeys(c for c in term + other if c in wanted))
        after = result if n == len(terms) else kept
        found = _product(call, found, factor, _summing(call, f"{term},{other}->{after}"))
        term = after
    return joined(call, *found)


def _summing(call: Call, equation: str) -> Callable[[Value, Value], Value]:
    return lambda a, b: emit_einsum(call, equation, [a, b])


# What moves elements, or is linear in them: of the real parts, and of the imaginary ones


def _part(call: Call, name: str, item: Any, at: int) -> Any:
    if isinstance(item, list) and name in call.complex_arguments:
        return [_part(call, name, one, at) for one in item]
    if name not in _DATA:
        return item
    if isinstance(item, Value):
        return _whole(call, item, name)[at]
    if isinstance(item, (int, float, complex)):
        return (complex(item).real, complex(item).imag)[at]
    return item


def _of_parts(name: str) -> None:
    """Register the converter of real tensors for both parts."""
    plain = CONVERTERS[f"aten.{name}"]

    def convert(call: Call, **arguments: Any) -> Any:
        real = _real_call(call)
        found = [
            plain.function(real, **{k: _part(call, k, v, at) for k, v in arguments.items()})
            for at in (0, 1)
        ]
        if isinstance(found[0], list):
            return [joined(call, a, b) for a, b in zip(*found, strict=True)]
        return joined(call, *found)

    _register(name, convert)


for _name in (
    *(
        "cat",
        "stack",
        "where",
        "masked_fill",
        "sum",
        "mean",
        "cumsum",
        "roll",
        "repeat",
        "tril",
        "triu",
    ),
    *("diagonal", "index", "index_select", "gather", "split", "split_with_sizes", "chunk"),
    *("unbind", "slice_scatter", "select_scatter", "copy", "index_put", "scatter", "index_add"),
    *("scatter_add", "t", "numpy_T", "mT", "movedim", "zeros_like", "new_zeros", "ones_like"),
    *("full_like", "fill", "tile", "diff"),
):
    if f"aten.{_name}" in CONVERTERS:
        _of_parts(_name)
