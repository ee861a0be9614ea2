"""Compositions that exporters write out, found and made one operator again.

Until recently ONNX had no operator for a layer normalization, a gelu or attention. As one operator
each keeps less for its gradient, and a search has fewer choices to make.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import isclose, pi, sqrt

import numpy as np

from shardwright.frontends.onnx.importer import renamed_result
from shardwright.ir.graph import Attribute, Graph, Node, Value
from shardwright.operators.builder import Builder
from shardwright.operators.info import Array, operator_class

_MASKED = -1e4  # what is below takes a key out of a softmax
Factors = tuple[float, list[str]]


def fuse(graph: Graph, data: Mapping[str, Array]) -> Graph:
    """Return the graph with compositions replaced; what they leave behind is not removed.

    Parameters
    ----------
    graph : Graph
        The imported program.
    data : mapping of str to array
        What its parameters begin as.
    """
    found = Matches(graph, data)
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes.extend(found.replacement(node))
    return replace(graph, nodes=tuple(nodes))


class Matches:
    """A graph in which compositions are looked for.

    Parameters
    ----------
    graph : Graph
        The program.
    data : mapping of str to array
        What its parameters begin as.
    """

    def __init__(self, graph: Graph, data: Mapping[str, Array]) -> None:
        self.graph, self.data = graph, data
        self.build = Builder(graph=graph)
        self.reads = Counter(name for node in graph.nodes for name in node.operands)
        self.reads.update(graph.kept())
        self.trained = {p.name for p in graph.parameters if p.trainable}

    def replacement(self, node: Node) -> list[Node]:
        """Return what takes the place of a node: itself if it ends no composition."""
        self.build.nodes, self.build.scope = [], node.scope
        for pattern in _PATTERNS.get(node.operator, ()):
            made = pattern(self, node)
            if made is not None:
                return [renamed_result(n, made.name, node.name) for n in self.build.nodes]
        return [node]

    # Looking around

    def value(self, name: str) -> Value:
        """Return a value."""
        return self.graph.values[name]

    def made(self, name: str, operator: str, reads: int = 1) -> Node | None:
        """Return the node that makes a value, if it is such an operator, read so often."""
        node = self.graph.producers.get(name)
        if node is None or node.operator != operator or self.reads[name] != reads:
            return None
        return node

    def factors(self, name: str, whole: bool = True) -> Factors:
        """Return a number and the values whose product a value is."""
        node = self.graph.producers.get(name)
        if node is None or (not whole and self.reads[name] != 1):
            return 1.0, [name]
        if node.operator == "scale":
            number, values = self.factors(node.operands[0], whole=False)
            return number * float(str(_of(node, "factor"))), values
        if node.operator == "mul":
            a, b = (self.factors(operand, whole=False) for operand in node.operands)
            return a[0] * b[0], a[1] + b[1]
        if node.operator == "pow" and _of(node, "exponent") == 3.0:
            return 1.0, [node.operands[0]] * 3
        return 1.0, [name]

    def mean_of_last(self, name: str, reads: int = 1) -> str | None:
        """Return of what a value is the mean along the last dimension, which stays."""
        node = self.made(name, "reduce_mean", reads)
        if node is None or not _of(node, "keep_dims"):
            return None
        rank = self.value(node.operands[0]).type.rank
        axes = _of(node, "axis")
        return node.operands[0] if axes in ((-1,), (rank - 1,), -1, rank - 1) else None

    def deviation(self, name: str) -> tuple[str, float] | None:
        """Return x and epsilon where a value is sqrt(mean(x x) + epsilon)."""
        root = self.made(name, "sqrt")
        shifted = root and self.made(root.operands[0], "add_scalar")
        mean = shifted and self.mean_of_last(shifted.operands[0])
        if not mean or not shifted or self.reads[mean] != 1:
            return None
        epsilon = float(str(_of(shifted, "value")))
        square = self.graph.producers.get(mean)
        if square is None or square.operator not in ("square", "mul", "pow"):
            return None
        if square.operator == "pow" and _of(square, "exponent") != 2.0:
            return None
        if len(set(square.operands)) != 1:
            return None
        return square.operands[0], epsilon

    def is_row(self, name: str, of: str) -> bool:
        """Whether a value is a vector along the last dimension of another."""
        return self.value(name).type.shape == self.value(of).type.shape[-1:]


def _of(node: Node, attribute: str) -> Attribute:
    """Return an attribute of a node, given or by default."""
    return node.attributes.get(attribute, operator_class(node.operator).defaults[attribute])


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
    """Match x / sqrt(mean square + epsilon) gamma, the quotient or the product with 1 / sqrt."""
    for quotient, gamma in (node.operands, node.operands[::-1]):
        found = _over_root(m, quotient)
        if found and m.is_row(gamma, found[0]) and not m.is_row(quotient, gamma):
            x, epsilon = found
            return m.build.emit("rms_norm", m.value(x), m.value(gamma), epsilon=epsilon)
    return None


def _over_root(m: Matches, name: str) -> tuple[str, float] | None:
    divided, multiplied = m.made(name, "div"), m.made(name, "mul")
    if divided:
        under = m.deviation(divided.operands[1])
        return under if under and under[0] == divided.operands[0] else None
    for x, inverse in (multiplied.operands, multiplied.operands[::-1]) if multiplied else ():
        reciprocal = m.made(inverse, "reciprocal")
        under = m.deviation(reciprocal.operands[0]) if reciprocal else None
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
        if not shifted or _of(shifted, "value") != 1 or not isclose(number, 0.5):
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


# Attention


def _attention(m: Matches, node: Node) -> Value | None:
    """Match softmax(scale q k' + mask) v for every head."""
    weights = m.made(node.operands[0], "softmax")
    values = m.value(node.operands[1])
    plain = not _of(node, "transpose_a") and not _of(node, "transpose_b")
    if not weights or not plain or values.type.rank != 4:
        return None
    if _of(weights, "axis") not in (-1, 3):
        return None
    masked = _unmasked(m, weights.operands[0])
    if masked is None:
        return None
    scores, mask, causal = masked
    scale, rest = m.factors(scores, whole=False)
    product = m.made(rest[0], "matmul") if len(rest) == 1 else None
    if product is None or _of(product, "transpose_a"):
        return None
    queries, keys = (m.value(name) for name in product.operands)
    heads = (queries.type.shape[:2], keys.type.shape[:2])
    if queries.type.rank != 4 or set(heads) != {values.type.shape[:2]}:
        return None
    if not _of(product, "transpose_b"):
        keys = _turned(m, keys)
    operands = [queries, keys, values]
    if mask is not None:
        operands.append(_four(m, mask))
    return m.build.emit("scaled_dot_product_attention", *operands, causal=causal, scale=scale)


def _turned(m: Matches, keys: Value) -> Value:
    """Return keys ``[batch, head, key, feature]`` of their transpose."""
    swap = (0, 1, 3, 2)
    before = m.made(keys.name, "transpose")
    if before is None:
        return m.build.emit("transpose", keys, permutation=swap)
    order = _of(before, "permutation")
    assert isinstance(order, tuple)
    whole = tuple(order[i] for i in swap)
    source = m.value(before.operands[0])
    return source if whole == (0, 1, 2, 3) else m.build.emit("transpose", source, permutation=whole)


def _four(m: Matches, mask: Value) -> Value:
    shape = (*(1,) * (4 - mask.type.rank), *mask.type.shape)
    return mask if mask.type.rank == 4 else m.build.emit("reshape", mask, shape=shape)


def _unmasked(m: Matches, name: str) -> tuple[str, Value | None, bool] | None:
    """Return scores without their mask, the mask, and whether it is the causal one."""
    shape = m.value(name).type.shape
    chosen, added = m.made(name, "where"), m.made(name, "add")
    if chosen is not None:
        return _chosen(m, chosen, shape)
    for scores, mask in (added.operands, added.operands[::-1]) if added else ():
        value = m.value(mask)
        fits = m.value(scores).type.shape == shape == _widened(value, shape)
        if not fits or m.reads[scores] != 1 or _holds_product(m, mask):
            continue
        known = None if mask in m.trained else m.data.get(mask)
        if known is not None and is_mask(known) and _is_causal(known == 0, shape):
            return scores, None, True
        return scores, value, False
    return name, None, False


def is_mask(known: Array) -> bool:
    """Whether numbers that are added let some scores be and take the others out."""
    out = known <= _MASKED
    return bool(out.any() and ((known == 0) | out).all())


def _holds_product(m: Matches, name: str) -> bool:
    """Whether a value is itself the scores that are masked."""
    _, rest = m.factors(name, whole=False)
    return len(rest) == 1 and m.made(rest[0], "matmul") is not None


def _widened(mask: Value, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the shape, if a mask can be repeated to it and has all its keys."""
    own = mask.type.shape
    if not own or own[-1] != shape[-1] or len(own) > len(shape):
        return None
    sides = zip(own[::-1], shape[::-1], strict=False)
    return shape if all(n in (1, size) for n, size in sides) else None


def _chosen(
    m: Matches, node: Node, shape: tuple[int, ...]
) -> tuple[str, Value | None, bool] | None:
    """Return what `_unmasked` does, of a choice between scores and a number far below them."""
    condition, *choices = node.operands
    known, mask = m.data.get(condition), m.value(condition)
    below = [_is_far_below(m, name) for name in choices]
    if known is None or sum(below) != 1:
        return None
    scores = choices[below.index(False)]
    read = ~known if below[0] else known  # where keys are read
    if m.value(scores).type.shape != shape or _widened(mask, shape) is None:
        return None
    if not read.any(axis=-1).all():  # a query that reads no key reads all alike there
        return None
    if _is_causal(read, shape):
        return scores, None, True
    return scores, m.build.emit("logical_not", mask) if below[0] else mask, False


def _is_far_below(m: Matches, name: str) -> bool:
    """Whether a value is one number that takes a key out of a softmax."""
    fill = m.graph.producers.get(name)
    if fill is None or fill.operator != "fill":
        return False
    return float(str(_of(fill, "value"))) <= _MASKED


def _is_causal(known: Array, shape: tuple[int, ...]) -> bool:
    """Whether the query at a position reads the keys up to it."""
    causal = np.tri(shape[-2], shape[-1], dtype=bool)
    return bool((np.broadcast_to(known, shape) == causal).all())


_PATTERNS: dict[str, tuple[Callable[[Matches, Node], Value | None], ...]] = {
    "add": (_layer_norm,),
    "matmul": (_attention,),
    "mul": (_rms_norm, _activation),
    "scale": (_activation,),
}
