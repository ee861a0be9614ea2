"""Fusion of decomposed patterns into one operator.

Until recently ONNX had no operator for a layer normalization, a gelu or attention. A single
operator saves less for backward, and gives the search fewer choices.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import isclose, pi, sqrt

from shardwright.frontends.common.patterns.attention import match_attention, match_repeated_heads
from shardwright.frontends.common.patterns.matches import Matches, attribute_of
from shardwright.frontends.common.patterns.parts import match_turned_part
from shardwright.frontends.common.patterns.products import (
    match_parted_columns,
    match_turned_columns,
)
from shardwright.frontends.common.patterns.rotary import match_rotary
from shardwright.ir.graph import Graph, Node, Value, renamed_result
from shardwright.operators.info import Array


def fuse(graph: Graph, data: Mapping[str, Array]) -> Graph:
    """Return the graph with patterns replaced; dead nodes are not removed.

    Parameters
    ----------
    graph : Graph
        The imported program.
    data : mapping of str to array
        Initial values of its parameters.
    """
    found = Matches(graph, data)
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes.extend(_replacement(found, node))
    return replace(graph, nodes=tuple(nodes))


def _replacement(found: Matches, node: Node) -> list[Node]:
    """Return the replacement of a node; the node itself if no pattern ends there."""
    found.build.nodes, found.build.scope = [], node.scope
    for pattern in _PATTERNS.get(node.operator, ()):
        made = pattern(found, node)
        if made is None:
            continue
        emitted = found.build.nodes
        values = made if isinstance(made, tuple) else (made,)
        for value, result in zip(values, node.results, strict=True):
            emitted = [renamed_result(n, value.name, result.name) for n in emitted]
        return emitted
    return [node]


# Normalizations


def _layer_norm(m: Matches, node: Node) -> Value | None:
    """Match (x - mean) / sqrt(variance + epsilon) gamma + beta."""
    for product, beta in (node.operands, node.operands[::-1]):
        scaled = m.made(product, "mul")
        for quotient, gamma in (scaled.operands, scaled.operands[::-1]) if scaled else ():
            divided = m.made(quotient, "div")
            under = divided and m.deviation(divided.operands[1])
            if not divided or not under or under[0] != divided.operands[0]:
                continue
            centred = m.graph.producers.get(under[0])
            if centred is None or centred.operator != "sub" or m.reads[under[0]] > 3:
                continue
            x, mean = centred.operands
            if m.mean_of_last(mean) == x and m.is_row(gamma, x) and m.is_row(beta, x):
                operands = (m.value(name) for name in (x, gamma, beta))
                return m.build.emit("layer_norm", *operands, epsilon=under[1])
    return None


def _rms_norm(m: Matches, node: Node) -> Value | None:
    """Match x / sqrt(mean square + epsilon) gamma, the quotient or the product with 1 / sqrt.

    The quotient may be rounded to another type before it is multiplied by gamma; then all is
    computed in the type of x, and the result is rounded.
    """
    for quotient, gamma in (node.operands, node.operands[::-1]):
        rounded = m.rounded(quotient)
        found = _over_root(m, rounded)
        if found and m.is_row(gamma, found[0]) and not m.is_row(quotient, gamma):
            x, epsilon = m.value(found[0]), found[1]
            weight = m.cast(m.value(gamma), x.type.dtype)
            made = m.build.emit("rms_norm", x, weight, epsilon=epsilon)
            return m.cast(made, m.value(node.name).type.dtype)
    return None


def _over_root(m: Matches, name: str) -> tuple[str, float] | None:
    divided, multiplied = m.made(name, "div"), m.made(name, "mul")
    if divided:
        under = m.deviation(divided.operands[1])
        return under if under and under[0] == divided.operands[0] else None
    for x, inverse in (multiplied.operands, multiplied.operands[::-1]) if multiplied else ():
        under = m.inverse_deviation(inverse)
        if under and under[0] == x:
            return under
    return None


# Activations


def _activation(m: Matches, node: Node) -> Value | None:
    """Match x / 2 (1 + erf(x / sqrt 2)), its form by tanh, and x sigmoid(x)."""
    number, values = m.factors(node.name)
    if len(values) != 2:
        return None
    for x, gate in (values, values[::-1]):
        sigmoid = m.made(gate, "sigmoid")
        if sigmoid and sigmoid.operands[0] == x and number == 1:
            return m.build.emit("silu", m.value(x))
        shifted = m.made(gate, "add_scalar")
        if not shifted or attribute_of(shifted, "value") != 1 or not isclose(number, 0.5):
            continue
        inner = shifted.operands[0]
        if _is_erf(m, inner, x):
            return m.build.emit("gelu", m.value(x), approximate=False)
        if _is_tanh(m, inner, x):
            return m.build.emit("gelu", m.value(x), approximate=True)
    return None


def _is_erf(m: Matches, name: str, x: str) -> bool:
    erf = m.made(name, "erf")
    if erf is None:
        return False
    number, values = m.factors(erf.operands[0], whole=False)
    return values == [x] and isclose(number, sqrt(0.5), rel_tol=1e-6)


def _is_tanh(m: Matches, name: str, x: str) -> bool:
    tanh = m.made(name, "tanh")
    if tanh is None:
        return False
    number, values = m.factors(tanh.operands[0], whole=False)
    if len(values) != 1 or not isclose(number, sqrt(2 / pi), rel_tol=1e-6):
        return False
    total = m.made(values[0], "add")
    for first, cube in (total.operands, total.operands[::-1]) if total else ():
        part, cubed = m.factors(cube, whole=False)
        if first == x and cubed == [x] * 3 and isclose(part, 0.044715, rel_tol=1e-6):
            return True
    return False


_Pattern = Callable[[Matches, Node], Value | tuple[Value, ...] | None]
_PATTERNS: dict[str, tuple[_Pattern, ...]] = {
    "add": (_layer_norm, match_rotary),
    "matmul": (match_attention, match_turned_columns),
    "mul": (_rms_norm, _activation),
    "scale": (_activation,),
    "scaled_dot_product_attention": (match_repeated_heads,),
    "split": (match_parted_columns,),
    "transpose": (match_turned_part,),
}
