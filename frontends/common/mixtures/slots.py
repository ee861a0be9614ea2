"""Mixtures whose tokens go to slots of experts and back by products with masks.

A mask of ones for each token, expert and slot sends tokens to slots, and another one with weights
brings back what experts compute of them (Lepikhin et al., 2020; Fedus et al., 2021). The experts
are products of as many matrices; what they compute has a row for each expert and slot.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from shardwright.frontends.common.mixtures.lifting import Lifting, Names, constants_of
from shardwright.frontends.common.mixtures.masks import sizes_of
from shardwright.frontends.common.mixtures.mixture import CHOOSING, Candidate, Lifted, Mixture
from shardwright.frontends.common.mixtures.probes import Run
from shardwright.frontends.common.patterns.matches import attribute_of
from shardwright.ir.graph import Graph, Node, Value
from shardwright.operators.builder import Builder
from shardwright.operators.elementwise.functions import Binary, Unary
from shardwright.operators.info import Array, operator_class


def slots_of(graph: Graph, data: Mapping[str, Array]) -> Iterator[Mixture]:
    """Yield the mixtures of a program whose tokens go to slots."""
    if not any(node.operator in CHOOSING for node in graph.nodes):
        return
    constant = constants_of(graph)
    for starts, end, axis in _chains(graph, constant):
        value = graph.values[end]
        experts = value.type.shape[axis]
        choice = _choice(graph, starts[0], experts)
        x = "" if choice is None else _tokens(graph, starts[0], choice)
        if choice is None or not x:
            continue
        shape, rows = graph.values[x].type.shape, value.type.elements // value.type.shape[-1]
        slots, rest = divmod(rows // experts, shape[0] if len(shape) == 3 else 1)
        if rest or len(shape) not in (2, 3):
            continue
        lift = _lift(graph, {*starts}, end, axis, experts, constant)
        parts = [(end, starts[0], _experts_of(value, axis))]
        chosen = choice.results[-1].name
        candidate = Candidate(graph, data, chosen, experts, x, parts, lift, capacity=slots)
        if (found := candidate.mixture()) is not None:
            yield found


def _chains(graph: Graph, constant: Mapping[str, bool]) -> Iterator[tuple[list[str], str, int]]:
    """Yield the rows that experts read first, their last result, and the dimension of experts."""
    starts, last = dict[str, set[str]](), dict[str, tuple[str, int]]()
    for node in graph.nodes:
        axis = _axis(graph, node, constant)
        read = set[str]().union(*(starts.get(name, set()) for name in node.operands))
        if axis is not None:
            read = read or {node.operands[0]}
            last |= dict.fromkeys(read, (node.name, axis))
        elif read and _is_by_row(node) and any(constant.get(name) for name in node.operands):
            last |= {name: (node.name, last[name][1]) for name in read}  # a bias of what comes out
        if axis is not None or _is_by_row(node):
            starts |= dict.fromkeys((result.name for result in node.results), read)
    for end, axis in dict.fromkeys(last.values()):
        first = sorted(name for name, one in last.items() if one[0] == end)
        if len({graph.values[name].type.shape[:-1] for name in (*first, end)}) == 1:
            yield first, end, axis


def _is_by_row(node: Node) -> bool:
    is_plain = node.operator in ("reshape", "split", "slice")
    return is_plain or issubclass(operator_class(node.operator), Unary | Binary)


def _axis(graph: Graph, node: Node, constant: Collection[str]) -> int | None:
    """Return the dimension of the experts in a product with a matrix for each; None if none."""
    if node.operator not in ("matmul", "einsum") or len(node.operands) != 2:
        return None
    rows, matrices = (graph.values[name].type for name in node.operands)
    is_inner = node.operands[0] not in constant and node.operands[1] in constant
    if not is_inner or matrices.rank != 3 or matrices.shape[0] < 2:
        return None
    if node.operator == "matmul":
        return (
            None
            if rows.rank != 3
            or rows.shape[0] != matrices.shape[0]
            or attribute_of(node, "transpose_a")
            else 0
        )
    inputs, _, result = str(attribute_of(node, "equation")).replace(" ", "").partition("->")
    of_rows, of_matrices = inputs.split(",")
    ends = {of_rows[-1] + result[-1:], result[-1:] + of_rows[-1]}
    fits = of_matrices[1:] in ends and result[:-1] == of_rows[:-1]
    return of_rows.index(of_matrices[0]) if fits and of_matrices[0] in of_rows[:-1] else None


def _choice(graph: Graph, start: str, experts: int) -> Node | None:
    """Return the last choice of experts that rows follow from."""
    needed = {start}
    for node in reversed(graph.nodes):
        if any(result.name in needed for result in node.results):
            if node.operator in CHOOSING and sizes_of(graph, node)[1] == experts:
                return node
            needed.update(node.operands)
    return None


def _tokens(graph: Graph, start: str, choice: Node) -> str:
    """Return the last tokens that rows follow from, not by the choice; empty if there are none."""
    width, tokens = graph.values[start].type.shape[-1], sizes_of(graph, choice)[0]
    chosen = {result.name for result in choice.results}
    needed, behind = {start}, _behind(graph, chosen)
    values: list[tuple[Value, tuple[str, ...]]] = [(value, ()) for value in graph.inputs]
    values += [(result, node.operands) for node in graph.nodes for result in node.results]
    for value, operands in reversed(values):
        if value.name not in needed or value.name in chosen:
            continue
        needed.update(operands)
        is_tokens = value.type.shape[-1:] == (width,) and value.type.elements == tokens * width
        if is_tokens and value.type.is_float and value.name not in behind:
            return value.name
    return ""


def _behind(graph: Graph, names: set[str]) -> set[str]:
    """Return values, and those that follow from them."""
    found = set(names)
    for node in graph.nodes:
        if not found.isdisjoint(node.operands):
            found.update(result.name for result in node.results)
    return found


def _experts_of(end: Value, axis: int) -> Callable[[Run], Array]:
    """Return the function that gives the expert of each row."""
    shape = end.type.shape[:-1]
    numbers = np.indices(shape)[axis]
    return lambda run: numbers


def _lift(
    graph: Graph,
    starts: set[str],
    end: str,
    axis: int,
    experts: int,
    constant: Mapping[str, bool],
) -> Lifted:
    def lift(build: Builder, rows: Value) -> Value | None:
        made = _Slots(graph, build, rows, starts, constant, axis=axis, count=experts)
        return made.lifted((end,))

    return lift


@dataclass
class _Slots(Lifting):
    """What experts compute on slots, emitted on rows of experts.

    Parameters
    ----------
    axis : int
        The dimension of the experts in the rows.
    count : int
        How many there are.
    """

    axis: int = 0
    count: int = 1

    def _product(self, first: Node, operands: list[Names]) -> Value | None:
        if _axis(self.graph, first, self.constant) != self.axis:
            return None
        rows, matrices = self.lifted(operands[0]), self.graph.values[operands[1][0]]
        if rows is None:
            return None
        if first.operator == "matmul":
            is_turned = bool(attribute_of(first, "transpose_b"))
        else:
            equation = str(attribute_of(first, "equation")).replace(" ", "")
            is_turned = equation.partition("->")[0][-1] != equation[-1]
        return self.build.emit("grouped_matmul", rows, matrices, transposed=is_turned)

    def _same_rows(self, first: Node, names: Names) -> Value | None:
        """Return rows whose order a reshape leaves as it is, experts first."""
        before, after = (self.graph.values[name].type.shape for name in (names[0], first.name))
        is_kept = before[-1] == after[-1]
        if self.axis == 0:
            is_kept = is_kept and before[0] == after[0] == self.count
        else:
            is_kept = before == after
        return self.lifted(names) if is_kept else None

    def _operand(self, names: Names, first: Node) -> Value | None:
        """Return an operand beside rows; also features of each expert."""
        value = self.graph.values[names[0]]
        shape, rank = value.type.shape, self.graph.values[first.name].type.rank
        at = self.axis - rank + len(shape)
        each = tuple(self.count if d == at else 1 for d in range(len(shape) - 1))
        if value.name not in self.constant or self.count not in each or shape[:-1] != each:
            return super()._operand(names, first)
        ones = (1,) * (self.rows.type.rank - 2)
        return self.build.emit("reshape", value, shape=(self.count, *ones, shape[-1]))
