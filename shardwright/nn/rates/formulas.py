"""Schedules that are written as cells, as formulas over the number of the step."""

import ast
from collections.abc import Callable, Mapping, Sequence

from shardwright.ir.attributes import Attributes
from shardwright.ir.errors import ModelError
from shardwright.ir.graph import Node, Value
from shardwright.ir.types import TensorType
from shardwright.nn.cell import Cell
from shardwright.tensor import Tensor, TracedTensor
from shardwright.tracer import Tracer

_PASSED = frozenset(
    {"broadcast_to", "convert", "expand_dims", "identity", "reshape", "squeeze", "stop_gradient"}
)
# What an operator makes of its operands, which are in parentheses.
_WRITTEN: Mapping[str, str] = {
    "abs": "max({0}, -{0})",
    "add": "{0} + {1}",
    "ceil": "ceil({0})",
    "cos": "cos({0})",
    "div": "{0} / {1}",
    "equal": "{0} == {1}",
    "exp": "exp({0})",
    "floor": "floor({0})",
    "floor_div": "floor({0} / {1})",
    "greater": "{0} > {1}",
    "greater_equal": "{0} >= {1}",
    "less": "{0} < {1}",
    "less_equal": "{0} <= {1}",
    "log": "log({0})",
    "logical_and": "{0} and {1}",
    "logical_not": "not {0}",
    "logical_or": "{0} or {1}",
    "maximum": "max({0}, {1})",
    "minimum": "min({0}, {1})",
    "mod": "{0} % {1}",
    "mul": "{0} * {1}",
    "neg": "-{0}",
    "not_equal": "{0} != {1}",
    "power": "{0} ** {1}",
    "reciprocal": "1 / {0}",
    "sin": "sin({0})",
    "sqrt": "sqrt({0})",
    "square": "{0} ** 2",
    "sub": "{0} - {1}",
    "where": "{1} if {0} else {2}",
}


def formula_of(schedule: Cell) -> str:
    """Return the formula of a schedule: trace it once, and write its operators as arithmetic.

    Raises
    ------
    ModelError
        If it returns no scalar, or uses an operator that formulas lack.
    """
    tracer = Tracer(1, {}, {})
    step = tracer.input(Value("step", TensorType("float32", ())))
    with tracer.tracing():
        rate = schedule(TracedTensor(step))
        value = rate.value(tracer) if isinstance(rate, Tensor) else None
    if isinstance(rate, int | float):
        return repr(rate)
    if value is None or value.type.elements != 1:
        found = type(rate).__name__ if value is None else str(value.type)
        raise ModelError(f"the schedule `{_name(schedule)}` returns {found}, expected one number")
    texts = {"step": "step"}
    for name, data in tracer.initial.items():
        if data.size == 1:
            texts[name] = repr(float(data.item()))
    for node in tracer.nodes:
        texts[node.name] = f"({_written(schedule, node, texts)})"
    return ast.unparse(ast.parse(texts[value.name], mode="eval"))


def _written(schedule: Cell, node: Node, texts: Mapping[str, str]) -> str:
    """Return what a node computes.

    Raises
    ------
    ModelError
        If formulas cannot say it.
    """
    known = all(operand in texts for operand in node.operands)
    if known and node.results[0].type.elements == 1:
        operands = [texts[operand] for operand in node.operands]
        if node.operator in _PASSED:
            return operands[0]
        if node.operator in _WRITTEN:
            return _WRITTEN[node.operator].format(*operands)
        if node.operator in _WITH_ATTRIBUTES:
            return _WITH_ATTRIBUTES[node.operator](operands, node)
    raise ModelError(
        f"the schedule `{_name(schedule)}` uses `{node.operator}` with the result "
        f"{node.results[0].type}, expected arithmetic on scalars",
        hint=f"formulas have {', '.join(sorted(_WRITTEN))}",
    )


def _name(schedule: Cell) -> str:
    return type(schedule).__name__


def _cast(operands: Sequence[str], node: Node) -> str:
    """Return a conversion: to integers it rounds towards zero."""
    dtype = node.results[0].type.dtype
    if dtype == "bool":
        return f"{operands[0]} != 0"
    return operands[0] if node.results[0].type.is_float else f"trunc({operands[0]})"


def _nested(operands: Sequence[str], node: Node) -> str:
    """Return the formula of another schedule at a step."""
    formula = str(node.attributes["rate"])
    inner = ast.parse(operands[0], mode="eval").body

    class Inserted(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.AST:
            return inner if name.id == "step" else name

    return ast.unparse(Inserted().visit(ast.parse(formula, mode="eval")))


def _number(attributes: Attributes, name: str, default: float) -> str:
    return f"({attributes.get(name, default)!r})"


_WITH_ATTRIBUTES: Mapping[str, Callable[[Sequence[str], Node], str]] = {
    "add_scalar": lambda x, node: f"{x[0]} + {_number(node.attributes, 'value', 0.0)}",
    "cast": _cast,
    "clip": lambda x, node: (
        f"min(max({x[0]}, {_number(node.attributes, 'low', 0.0)}), "
        f"{_number(node.attributes, 'high', 1.0)})"
    ),
    "fill": lambda x, node: _number(node.attributes, "value", 0.0),
    "learning_rate": _nested,
    "pow": lambda x, node: f"{x[0]} ** {_number(node.attributes, 'exponent', 1.0)}",
    "scale": lambda x, node: f"{x[0]} * {_number(node.attributes, 'factor', 1.0)}",
}
