"""Whether a program can run on the filled rows of experts alone.

Rows that are not filled are read by nothing, but for sums over the rows of an expert: there they
have to be zeros, as they are behind a `dispatch` and what is linear in it.
"""

from collections.abc import Sequence

from shardwright.ir.graph import Graph, Node
from shardwright.operators.info import OperatorInfo, info_of
from shardwright.operators.models.routing import (
    Combine,
    Dispatch,
    GroupedMatMul,
    GroupedOuter,
    RoutingWeightGradient,
)

ROUTING = tuple(
    kind.name for kind in (Dispatch, Combine, GroupedMatMul, GroupedOuter, RoutingWeightGradient)
)
OWN_FORMS = (*ROUTING, "pad", "reduce_sum", "slice")
"""Operators that have a form of their own on filled rows."""


def runs_on_rows(program: Graph) -> bool:
    """Return whether all that reads or makes the rows of experts can do with the filled ones.

    Parameters
    ----------
    program : Graph
        A partitioned program.
    """
    if any(value.type.ragged is not None for value in program.inputs):
        return False
    zeros: set[str] = set()  # the values whose other rows are zeros
    found = False
    kept = set(program.kept())
    for node in program.nodes:
        if not touches_rows(program, node):
            continue
        info = info_of(program, node)
        if not _is_supported(program, node, info) or kept & {v.name for v in node.results}:
            return False
        if _sums_rows(node) and not zeros & set(node.operands):
            return False
        if _leaves_zeros(node, info, zeros):
            zeros.update(value.name for value in node.results)
        found = True
    return found


def touches_rows(program: Graph, node: Node) -> bool:
    """Return whether a node reads or makes the rows of experts."""
    values = (*program.operand_values(node), *node.results)
    return any(value.type.ragged is not None for value in values)


def _sums_rows(node: Node) -> bool:
    return node.operator in (GroupedOuter.name, "reduce_sum")


def _leaves_zeros(node: Node, info: OperatorInfo, zeros: set[str]) -> bool:
    """Return whether a result is zero in the rows that are not filled."""
    if node.operator == Dispatch.name:
        return True
    if node.operator in (GroupedMatMul.name, "all_to_all", "all_reduce"):
        return node.operands[0] in zeros
    return any(all(node.operands[i] in zeros for i in linear) for linear in info.linear_sets)


def _is_supported(program: Graph, node: Node, info: OperatorInfo) -> bool:
    operands = [value.type for value in program.operand_values(node)]
    marked = [kind.ragged is not None for kind in operands]
    if node.operator in ROUTING:
        wanted = {
            Dispatch.name: (False, False, False),
            Combine.name: (True, False, False),
            GroupedMatMul.name: (True, False),
            GroupedOuter.name: (True, True),
            RoutingWeightGradient.name: (False, True, False),
        }
        return tuple(marked) == wanted[node.operator][: len(marked)]
    first = operands[marked.index(True)] if any(marked) else None
    if first is None or first.ragged is None:
        return False
    ragged, last = first.ragged, first.rank - 1
    tokens = tuple(range(1, last))
    if ragged.dimension != 0 or ragged.rows != tokens:
        return False
    if node.operator == "all_reduce":  # of ranks that have the same rows
        return True
    if node.operator == "all_to_all":
        moved = [node.attributes.get(f"{name}_dimension", 0) for name in ("split", "concat")]
        return last not in moved
    if node.operator in ("pad", "slice"):  # of features
        return node.results[0].type.shape[:-1] == first.shape[:-1]
    if node.operator == "reduce_sum":
        axis = node.attributes.get("axis")
        return isinstance(axis, tuple) and axis == tokens
    return _is_by_element(info, marked)


def _is_by_element(info: OperatorInfo, marked: Sequence[bool]) -> bool:
    """Return whether an operator works on single elements, beside one row an expert or features."""
    rule = info.rule
    if any(kind != "parallel" for kind in rule.kinds.values()) or len(rule.results) != 1:
        return False
    (result,) = rule.results
    for dims, is_marked in zip(rule.operands, marked, strict=True):
        if is_marked and dims != result:
            return False
        if not is_marked and len(dims) > 1 and (len(dims) != len(result) or any(dims[1:-1])):
            return False
    return True
