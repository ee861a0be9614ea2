"""Activation functions.

Each saves one tensor for backward: the result if it determines the slope, since the next operator
mostly saves it anyway, else the operand.
"""

from math import inf, pi, sqrt

import numpy as np

from shardwright.operators.elementwise.functions import define
from shardwright.operators.elementwise.mathematics import erf
from shardwright.operators.info import (
    Array,
    Emitter,
    Example,
    Gradients,
    Linearization,
    OperatorInfo,
    register,
)
from shardwright.operators.notation import resolve
from shardwright.operators.rule import Rule, ShardView


def sigmoid(x: Array) -> Array:
    """Return the logistic function, with all digits where it is small; of halves, in single."""
    x = x.astype(np.float32) if x.dtype == np.float16 else x
    with np.errstate(over="ignore"):  # the result is zero there
        return 1 / (1 + np.exp(-x))


def _gelu_inner(x: Array) -> Array:
    return np.tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x))


def _gelu(x: Array, approximate: bool) -> Array:
    return 0.5 * x * (1 + (_gelu_inner(x) if approximate else erf(x / sqrt(2))))


def _gelu_slope(x: Array, approximate: bool) -> Array:
    if approximate:
        inner = _gelu_inner(x)
        steepness = sqrt(2 / pi) * (1 + 3 * 0.044715 * x * x)
        return 0.5 * (1 + inner) + 0.5 * x * (1 - inner * inner) * steepness
    density = np.exp(-0.5 * x * x) / sqrt(2 * pi)
    return 0.5 * (1 + erf(x / sqrt(2))) + x * density


def _silu_slope(x: Array) -> Array:
    gate = sigmoid(x)
    return gate * (1 + x * (1 - gate))


def _fast_gelu_slope(x: Array) -> Array:
    gate = sigmoid(1.702 * x)
    return gate * (1 + 1.702 * x * (1 - gate))


def softplus(x: Array) -> Array:
    """Return log(1 + exp(x)); it does not overflow."""
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _mish(x: Array) -> Array:
    return x * np.tanh(softplus(x))


def _mish_slope(x: Array) -> Array:
    gate = np.tanh(softplus(x))
    return gate + x * (1 - gate * gate) * sigmoid(x)


def _between(x: Array, low: float, high: float, inside: bool) -> Array:
    """Return where numbers are between bounds; one that is infinite is none."""
    over = x > low if inside and low != -inf else x >= low
    return over & (x < high if inside and high != inf else x <= high)


define(
    "relu",
    "Positive part.",
    lambda x: np.maximum(x, 0),
    lambda y: y > 0,
    keeps="result",
    of_reals=False,
)
define(
    "relu6",
    "Positive part, at most six.",
    lambda x: np.clip(x, 0, 6),
    lambda y: (y > 0) & (y < 6),
    keeps="result",
    domain=(-9.0, 9.0),
    of_reals=False,
)
define(
    "leaky_relu",
    "The operand, times ``slope`` (not negative) where negative.",
    lambda x, slope: np.where(x > 0, x, slope * x),
    lambda y, slope: np.where(y > 0, 1.0, slope),
    keeps="result",
    defaults={"slope": 0.01},
    example={"slope": 0.1},
    not_negative=("slope",),
)
define(
    "elu",
    "The operand, ``alpha (exp(x) - 1)`` where negative.",
    lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))),
    lambda y, alpha: np.where(y > 0, 1.0, y + alpha),
    keeps="result",
    defaults={"alpha": 1.0},
    example={"alpha": 1.5},
    flops=10.0,
    not_negative=("alpha",),
)
define(
    "clip",
    "The operand from ``low`` to ``high``; with ``inside``, the gradient is zero at both.",
    lambda x, low, high, inside: np.clip(x, low, high),
    _between,
    defaults={"low": 0.0, "high": 1.0, "inside": False},
    example={"low": -0.5, "high": 1.0, "inside": True},
    of_reals=False,
    bounds=("low", "high"),
)
define("sigmoid", "Logistic function.", sigmoid, lambda y: y * (1 - y), keeps="result", flops=10.0)
define("tanh", "Hyperbolic tangent.", np.tanh, lambda y: 1 - y * y, keeps="result", flops=10.0)
define(
    "softplus",
    "Smooth positive part, ``log(1 + exp(x))``.",
    softplus,
    sigmoid,
    flops=20.0,
)
define("silu", "The operand times its sigmoid.", lambda x: x * sigmoid(x), _silu_slope, flops=11.0)
define(
    "fast_gelu",
    "The operand times the sigmoid of 1.702 times it, which is near its gelu.",
    lambda x: x * sigmoid(1.702 * x),
    _fast_gelu_slope,
    flops=12.0,
)
define(
    "gelu",
    "The operand times the normal distribution function, or its ``approximate`` form by tanh.",
    _gelu,
    _gelu_slope,
    defaults={"approximate": True},
    example={"approximate": False},
    flops=20.0,
)
define(
    "hard_sigmoid",
    "A line of the slope ``alpha`` through ``beta`` at zero, kept between zero and one.",
    lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1),
    lambda y, alpha, beta: alpha * ((y > 0) & (y < 1)),
    keeps="result",
    defaults={"alpha": 1 / 6, "beta": 0.5},
    example={"alpha": 0.4, "beta": 0.5},
    flops=3.0,
)
define(
    "hard_swish",
    "The operand times its hard sigmoid.",
    lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    lambda x: np.where(np.abs(x) < 3, x / 3 + 0.5, x > 0),
    domain=(-5.0, 5.0),
    flops=4.0,
)
define(
    "softsign",
    "The operand over one more than its size.",
    lambda x: x / (1 + np.abs(x)),
    lambda y: np.square(1 - np.abs(y)),
    keeps="result",
    domain=(-0.9, 0.9),
    flops=3.0,
)
define("mish", "The operand times the tanh of its softplus.", _mish, _mish_slope, flops=40.0)
define(
    "selu",
    "The operand, ``alpha (exp(x) - 1)`` where negative; all times ``gamma``.",
    lambda x, alpha, gamma: gamma * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))),
    lambda y, alpha, gamma: np.where(y > 0, gamma, y + gamma * alpha),
    keeps="result",
    defaults={"alpha": 1.6732632423543772, "gamma": 1.0507009873554805},
    flops=11.0,
)
define(
    "hard_shrink",
    "The operand, zero where its size is not over ``bound``.",
    lambda x, bound: np.where(np.abs(x) > bound, x, 0),
    lambda x, bound: np.abs(x) > bound,
    defaults={"bound": 0.5},
)
define(
    "soft_shrink",
    "The operand less ``bound`` towards zero; zero where its size is not over it.",
    lambda x, bound: np.sign(x) * np.maximum(np.abs(x) - bound, 0),
    lambda x, bound: np.abs(x) > bound,
    defaults={"bound": 0.5},
)


def _channel_rule(notation: str, rank: int) -> str:
    """Expand ``*`` to the dimensions of a tensor whose dimension 1 is ``c``."""
    names = ["c" if i == 1 else f"d{i}+" for i in range(rank)]
    return notation.replace("*", " ".join(names))


def _per_channel(weight: Array, rank: int) -> Array:
    return weight.reshape(-1, *(1,) * (rank - 2))


@register
class PRelu(OperatorInfo):
    """The first operand, times the weight of its channel (dimension 1) where negative."""

    name = "prelu"
    examples = (Example(("f64[4, 6]", "f64[6]")), Example(("f64[2, 4, 3]", "f64[4]")))

    def make_rule(self) -> Rule:
        """Share the channels."""
        shapes = [operand.shape for operand in self.operand_types]
        notation = _channel_rule("*, c -> *", len(shapes[0])).replace("+", "")
        return resolve(notation, shapes)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Scale where negative."""
        x, weight = operands
        return np.where(x > 0, x, x * _per_channel(weight, x.ndim))

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Save the operand and the weight for backward."""
        return build.emit_all("prelu_gradient", at.cotangents[0], *at.operands)


@register
class PReluGradient(OperatorInfo):
    """The gradients of `prelu` by its operand and by the weights of the channels."""

    name = "prelu_gradient"
    linear = ((0,),)
    flops_per_point = 3.0
    examples = (
        Example(("f64[4, 6]", "f64[4, 6]", "f64[6]")),
        Example(("f64[2, 4, 3]", "f64[2, 4, 3]", "f64[4]")),
    )

    def make_rule(self) -> Rule:
        """Contract all but the channels in the second result."""
        shapes = [operand.shape for operand in self.operand_types]
        return resolve(_channel_rule("*, *, c -> *, c", len(shapes[0])), shapes)

    def kernel(self, view: ShardView, *operands: Array) -> tuple[Array, Array]:
        """Scale, and sum, where negative."""
        dy, x, weight = operands
        dx = np.where(x > 0, dy, dy * _per_channel(weight, x.ndim))
        others = tuple(i for i in range(x.ndim) if i != 1)
        return dx, np.asarray((dy * np.minimum(x, 0)).sum(axis=others))

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Count a zero as positive: PyTorch's second gradients do, and its first ones do not."""
        (dy, x, weight), (of_x, of_weight), emit = at.operands, at.cotangents, build.emit
        shape = (-1, *(1,) * (x.type.rank - 2))
        weight, of_weight = (emit("reshape", one, shape=shape) for one in (weight, of_weight))
        is_below = emit("logical_not", emit("greater_equal", x, emit("zeros_like", x)))
        steep = emit("add", emit("mul", weight, of_x), emit("mul", x, of_weight))
        to_cotangent = emit("where", is_below, steep, of_x)
        to_x = emit("mask", emit("mul", of_weight, dy), is_below)
        others = tuple(i for i in range(x.type.rank) if i != 1)
        products = emit("mask", emit("mul", of_x, dy), is_below)
        return [to_cotangent, to_x, emit("reduce_sum", products, axis=others)]
