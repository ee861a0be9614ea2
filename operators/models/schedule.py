"""Learning rates that follow the number of the step: formulas, tuples, and their operator.

A formula is arithmetic over ``step``, the number of steps before, in float64:
``0.1 * 0.5 ** floor(step / 30)``. A tuple has the rate of each step; the last one stays.
"""

import ast
import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import ClassVar, Final

import numpy as np

from shardwright.ir.attributes import Attribute
from shardwright.ir.errors import IRError, OptionError
from shardwright.ir.values import NOT_NEGATIVE, wrong_value
from shardwright.operators.info import Array, Example, OperatorInfo, register
from shardwright.operators.rule import Rule, ShardView

FUNCTIONS: Final[Mapping[str, Callable[..., float]]] = {
    "ceil": math.ceil,
    "cos": math.cos,
    "exp": math.exp,
    "floor": math.floor,
    "log": math.log,
    "max": max,
    "min": min,
    "sin": math.sin,
    "sqrt": math.sqrt,
    "trunc": math.trunc,
}
"""The functions of formulas."""
_EXPECTED = "a number of at least 0, a formula such as `0.1 * 0.5 ** (step / 100)`, or a tuple"
_SYNTAX = (
    ast.Expression,
    *(ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.IfExp, ast.Load, ast.operator),
    *(ast.USub, ast.UAdd, ast.Not, ast.And, ast.Or, ast.cmpop),
)
_REFUSED = (ast.MatMult, ast.BitAnd, ast.BitOr, ast.BitXor, ast.LShift, ast.RShift)
_REFUSED_COMPARISONS = (ast.In, ast.NotIn, ast.Is, ast.IsNot)
_FAILURES = (ArithmeticError, ValueError, TypeError)


def check_rate(name: str, rate: object) -> None:
    """Refuse anything but a rate: a number, a formula, or a tuple of numbers.

    Raises
    ------
    OptionError
        If it is something else, or its first value is not a number of at least 0.
    """
    if isinstance(rate, str):
        _function(rate)
        rate_at(rate, 0)
    elif isinstance(rate, tuple) and rate:
        for step, number in enumerate(rate):
            NOT_NEGATIVE.check(name, number, f"at step {step}")
    elif isinstance(rate, int | float):
        NOT_NEGATIVE.check(name, rate)
    else:
        raise wrong_value(name, rate, _EXPECTED)


def is_schedule(rate: Attribute) -> bool:
    """Return whether a rate follows the number of the step."""
    return isinstance(rate, str | tuple)


def rate_at(rate: Attribute, step: int) -> float:
    """Return the rate of a step, counted from 0.

    Raises
    ------
    OptionError
        If a formula gives no finite number of at least 0.

    Examples
    --------
    >>> rate_at("0.1 * 0.5 ** floor(step / 2)", 5), rate_at((0.3, 0.2), 7)
    (0.025, 0.2)
    """
    if isinstance(rate, tuple):
        return float(rate[min(step, len(rate) - 1)])  # type: ignore[arg-type]
    if not isinstance(rate, str):
        return float(rate)  # type: ignore[arg-type]
    try:
        found = _function(rate)(float(step))
    except _FAILURES as error:
        raise OptionError(
            f"the learning rate `{rate}` has no value at step {step}: {error}"
        ) from None
    if not isinstance(found, int | float) or not 0 <= found < math.inf:
        raise OptionError(
            f"the learning rate `{rate}` is {found} at step {step}, expected a number of at least 0"
        )
    return float(found)


@cache
def _function(formula: str) -> Callable[[float], float]:
    """Return a formula as a function of the step.

    Raises
    ------
    OptionError
        If the text is no formula.
    """
    try:
        tree = ast.parse(formula.strip(), mode="eval")
        for node in ast.walk(tree):
            _check_node(node, formula)
        code = compile(_Floats().visit(tree), "formula", "eval")
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        raise wrong_value("learning_rate", formula, _EXPECTED) from None
    names = {"__builtins__": {}, **FUNCTIONS}
    return lambda step: eval(code, names, {"step": step})


def _check_node(node: ast.AST, formula: str) -> None:
    """Refuse syntax that formulas do not have."""
    if isinstance(node, ast.Name) and node.id not in ("step", *FUNCTIONS):
        what = f"the learning rate `{formula}` names `{node.id}`"
        raise OptionError(what, hint=f"a formula has `step` and {', '.join(FUNCTIONS)}")
    if isinstance(node, ast.Call):
        known = isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS
        allowed = known and not node.keywords
    elif isinstance(node, ast.Constant):
        allowed = type(node.value) in (int, float)
    else:
        refused = (*_REFUSED, *_REFUSED_COMPARISONS)
        allowed = isinstance(node, (*_SYNTAX, ast.Name)) and not isinstance(node, refused)
    if not allowed:
        raise wrong_value("learning_rate", formula, _EXPECTED)


class _Floats(ast.NodeTransformer):
    """Makes all numbers float64: powers of integers would grow without limit."""

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.copy_location(ast.Constant(float(node.value)), node)  # type: ignore[arg-type]


@register
class LearningRate(OperatorInfo):
    """The learning rate of a step; the operand is the number of steps before.

    ``rate`` is a formula over ``step``, or a tuple of numbers, whose last one stays.
    """

    name = "learning_rate"
    notation = "->"
    result_dtype = "float64"
    defaults: ClassVar = {"rate": 0.01}
    examples = (
        Example(("i64[]",), {"rate": "0.1 * 0.5 ** floor(step / 3)"}, {0: (0, 9)}),
        Example(("i64[]",), {"rate": (0.3, 0.2, 0.1)}, {0: (0, 5)}),
    )

    def make_rule(self) -> Rule:
        """Refuse what is no rate."""
        try:
            check_rate("rate", self.attributes["rate"])
        except OptionError as error:
            raise IRError(error.what, hint=error.hint) from None
        return super().make_rule()

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Compute the rate."""
        return np.asarray(rate_at(self.attributes["rate"], int(operands[0])), np.float64)
