"""Mixtures of which every expert computes every token, times a weight that is zero for most."""

from collections.abc import Iterator, Mapping

import numpy as np

from shardwright.frontends.common.mixtures.probes import Run, UnknownError, choices
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.rounding import EQUAL
from shardwright.operators.info import Array

_NEAR = 12  # operators after a choice in which its weights are spread over all experts
_MOVING = ("reshape", "transpose", "cast", "slice", "split", "expand_dims", "squeeze", "identity")
_PRODUCTS = ("matmul", "einsum")


def dense_mixtures(graph: Graph, data: Mapping[str, Array]) -> Iterator[str]:
    """Yield a sentence for each layer whose experts compute all tokens, with what that costs."""
    for node in graph.nodes:
        if node.operator != "top_k":
            continue
        experts, count = _experts(graph, node), node.results[1].type.shape[-1]
        if count < experts and _is_spread(graph, data, node, experts):
            where = f" in `{node.scope}`" if node.scope else ""
            yield (
                f"every expert computes every token{where}: {experts / count:.3g} times the needed "
                "operations"
            )


def _experts(graph: Graph, node: Node) -> int:
    return graph.values[node.operands[0]].type.shape[-1]


def _is_spread(graph: Graph, data: Mapping[str, Array], node: Node, experts: int) -> bool:
    """Return whether a weight for each expert and token is made of those of the choices."""
    chosen, near = node.results[1], _after(graph, node)
    if any(one.operator == "combine" for one in near):
        return False
    tokens, count = chosen.type.elements // chosen.type.shape[-1], chosen.type.shape[-1]
    values = [result for one in near for result in one.results if result.type.is_float]
    weights = [node.results[0], *(v for v in values if v.type.elements == chosen.type.elements)]
    size = tokens * experts
    spread = [v for v in values if v.type.elements == size and _weighs(graph, v)]
    return any(
        _spreads(graph, data, (chosen, one), value, choices(tokens, experts, count)[0])
        for value in spread
        for one in weights
        if one.name != value.name
    )


def _weighs(graph: Graph, value: Value) -> bool:
    """Return whether a value is read as the weights of rows of features."""
    todo, seen = [value], {value.name}
    while todo:
        one = todo.pop()
        for reader, at in graph.uses.get(one.name, ()):
            if reader.operator in _MOVING:
                todo += [result for result in reader.results if result.name not in seen]
                seen.update(result.name for result in reader.results)
            elif reader.operator == "mul":
                if reader.results[0].type.elements > one.type.elements:
                    return True
            elif reader.operator in _PRODUCTS:
                others = [v for i, v in enumerate(graph.operand_values(reader)) if i != at]
                if any(_are_rows(other, one) for other in others):
                    return True
    return False


def _are_rows(other: Value, weights: Value) -> bool:
    """Return whether a value has features for each weight."""
    size = weights.type.elements
    return other.type.elements > size and other.type.elements % size == 0


def _after(graph: Graph, node: Node) -> list[Node]:
    """Return the nodes that follow from a choice, a few steps far."""
    found, ends = dict[str, Node](), [result.name for result in node.results]
    for _ in range(_NEAR):
        made = [one for name in ends for one, _ in graph.uses.get(name, ())]
        made = [one for one in made if one.name not in found]
        found |= {one.name: one for one in made}
        ends = [result.name for one in made for result in one.results]
    return [one for one in graph.nodes if one.name in found]


def _spreads(
    graph: Graph,
    data: Mapping[str, Array],
    routes: tuple[Value, Value],
    value: Value,
    chosen: Array,
) -> bool:
    """Return whether a value has the weight of each choice at its expert, and zeros elsewhere."""
    drawn = np.random.default_rng(0).normal(size=chosen.shape)
    given = {
        one.name: array.reshape(one.type.shape)
        for one, array in zip(routes, (chosen, drawn), strict=True)
    }
    try:
        found = Run(graph, data, given).value(value.name)
    except UnknownError:
        return False
    expected = np.zeros((len(chosen), value.type.elements // len(chosen)))
    np.put_along_axis(expected, chosen, drawn, 1)
    rows = found.reshape(-1)
    return any(
        rows.size == one.size and bool(np.abs(rows - one.reshape(-1)).max() < EQUAL)
        for one in (expected, expected.T)
    )
