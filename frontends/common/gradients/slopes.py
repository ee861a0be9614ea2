"""Gradients of operators, in operators that have gradients themselves.

Those of the table stand for operators of one operand, whose own gradient is a single operator.
"""

from collections.abc import Callable, Mapping
from math import inf, pi, sqrt

from shardwright.frontends.common.gradients.terms import Term
from shardwright.operators.info import OperatorInfo
from shardwright.operators.reduction.reduce import reduced_axes

# From the operator, the cotangent, the operand and the result.
Slope = Callable[[OperatorInfo, Term, Term, Term], Term]


def _smooth(slope: Callable[..., Term]) -> Slope:
    """Return the gradient of a function whose slope is given by operand, result and attributes."""
    return lambda info, dy, x, y: dy * slope(x, y, **info.attributes)


def _stepped(slope: Callable[..., Term]) -> Slope:
    """Return the gradient of a function whose slope is one where a condition holds, else zero."""
    return lambda info, dy, x, y: dy.where(slope(x, y, **info.attributes), 0)


def _both(a: Term, b: Term) -> Term:
    return a.apply("logical_and", b)


def _inside(x: Term, low: float, high: float, inside: bool) -> Term:
    over = "greater" if inside and low != -inf else "greater_equal"
    under = "less" if inside and high != inf else "less_equal"
    return _both(x.compare(over, low), x.compare(under, high))


def _leaky(info: OperatorInfo, dy: Term, x: Term, y: Term) -> Term:
    return dy.where(y.compare("greater", 0), dy * info.attributes["slope"])


def _hard_sigmoid(info: OperatorInfo, dy: Term, x: Term, y: Term) -> Term:
    return (dy * info.attributes["alpha"]).where(_inside(y, 0, 1, True), 0)


def _hard_swish(info: OperatorInfo, dy: Term, x: Term, y: Term) -> Term:
    outside = dy.where(x.compare("greater", 0), 0)
    return (dy * (x * (1 / 3) + 0.5)).where(x.apply("abs").compare("less", 3), outside)


def _pow(info: OperatorInfo, dy: Term, x: Term, y: Term) -> Term:
    exponent = float(info.attributes["exponent"])
    if exponent == 0:
        return dy * 0
    return dy * x.apply("pow", exponent=exponent - 1) * exponent if exponent != 1 else dy


def _softmax(info: OperatorInfo, dy: Term, x: Term, y: Term) -> Term:
    axes = reduced_axes(info.attributes["axis"], x.type.rank)
    return y * (dy - (dy * y).sum(axes))


def _log_softmax(info: OperatorInfo, dy: Term, x: Term, y: Term) -> Term:
    axes = reduced_axes(info.attributes["axis"], x.type.rank)
    return dy - y.apply("exp") * dy.sum(axes)


def _extremum(info: OperatorInfo, dy: Term, x: Term, y: Term) -> Term:
    """Share the cotangent among the elements that are the extremum."""
    axes = reduced_axes(info.attributes["axis"], x.type.rank)
    shape = tuple(1 if d in axes else n for d, n in enumerate(x.type.shape))
    chosen = x.apply("equal", y.reshape(shape)).apply("cast", dtype=x.type.dtype)
    return dy.reshape(shape) * (chosen / chosen.sum(axes))


SLOPES: Mapping[str, Slope] = {
    "abs": _smooth(lambda x, y: x.apply("sign")),
    "acos": _smooth(lambda x, y: -(1 - x * x).apply("rsqrt")),
    "acosh": _smooth(lambda x, y: (x * x - 1).apply("rsqrt")),
    "asin": _smooth(lambda x, y: (1 - x * x).apply("rsqrt")),
    "asinh": _smooth(lambda x, y: (x * x + 1).apply("rsqrt")),
    "atan": _smooth(lambda x, y: (x * x + 1).apply("reciprocal")),
    "atanh": _smooth(lambda x, y: (1 - x * x).apply("reciprocal")),
    "clip": _stepped(lambda x, y, low, high, inside: _inside(x, low, high, inside)),
    "cos": _smooth(lambda x, y: -x.apply("sin")),
    "cosh": _smooth(lambda x, y: x.apply("sinh")),
    "erf": _smooth(lambda x, y: (-(x * x)).apply("exp") * (2 / sqrt(pi))),
    "erfc": _smooth(lambda x, y: (-(x * x)).apply("exp") * (-2 / sqrt(pi))),
    "erfcx": _smooth(lambda x, y: x * y * 2.0 - 2 / sqrt(pi)),
    "erfinv": _smooth(lambda x, y: (y * y).apply("exp") * (sqrt(pi) / 2)),
    "exp": _smooth(lambda x, y: y),
    "expm1": _smooth(lambda x, y: y + 1),
    "hard_shrink": _stepped(lambda x, y, bound: x.apply("abs").compare("greater", bound)),
    "hard_sigmoid": _hard_sigmoid,
    "hard_swish": _hard_swish,
    "leaky_relu": _leaky,
    "lgamma": _smooth(lambda x, y: x.apply("polygamma", order=0)),
    "log": _smooth(lambda x, y: x.apply("reciprocal")),
    "log1p": _smooth(lambda x, y: (x + 1).apply("reciprocal")),
    "log_ndtr": _smooth(
        lambda x, y: (x * -sqrt(0.5)).apply("erfcx").apply("reciprocal") * sqrt(2 / pi)
    ),
    "log_softmax": _log_softmax,
    "ndtri": _smooth(lambda x, y: (y * y * 0.5).apply("exp") * sqrt(2 * pi)),
    "polygamma": _smooth(lambda x, y, order: x.apply("polygamma", order=order + 1)),
    "pow": _pow,
    "reciprocal": _smooth(lambda x, y: -(y * y)),
    "reduce_max": _extremum,
    "reduce_min": _extremum,
    "relu": _stepped(lambda x, y: y.compare("greater", 0)),
    "relu6": _stepped(lambda x, y: _inside(y, 0, 6, True)),
    "rsqrt": _smooth(lambda x, y: y * y * y * -0.5),
    "sigmoid": _smooth(lambda x, y: y * (1 - y)),
    "sin": _smooth(lambda x, y: x.apply("cos")),
    "sinh": _smooth(lambda x, y: x.apply("cosh")),
    "soft_shrink": _stepped(lambda x, y, bound: x.apply("abs").compare("greater", bound)),
    "softmax": _softmax,
    "softplus": _smooth(lambda x, y: x.apply("sigmoid")),
    "sqrt": _smooth(lambda x, y: y.apply("reciprocal") * 0.5),
    "square": _smooth(lambda x, y: x * 2.0),
    "tan": _smooth(lambda x, y: y * y + 1),
    "tanh": _smooth(lambda x, y: 1 - y * y),
}
