"""Runs the functions of an export on every rank, against the kernels of their operators."""

import numpy as np

from shardwright.exports.emission.expressions import Expressions
from shardwright.ir.errors import StrategyError
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.text import parse_type
from shardwright.operators.info import operator_class, operator_info, operator_names

MESH = Mesh((MeshAxis("x", 2), MeshAxis("y", 2)))
MOST = 8  # strategies of an example
# An operator cannot be tried where its examples are for hand-written programs alone; ranks of rings
# send to each other, `torch/ring_checks.py` tries them.
WITHOUT_EXAMPLES = {
    *("to_host", "from_host", "ring_attention", "ring_attention_gradient"),
    *("balanced_attention", "balanced_attention_gradient"),
}


def operators_of(vocabulary):
    return sorted(set(vocabulary.signatures) & set(operator_names()))


def random(kind, bounds, rng):
    low, high = bounds or (-1.0, 1.0)
    if kind.dtype == "bool":
        return rng.random(kind.shape) < 0.6
    if "int" in kind.dtype:
        low, high = bounds or (0, 3)
        return rng.integers(int(low), int(high), kind.shape).astype(kind.dtype)
    return rng.uniform(low, high, kind.shape)


def one_node(info, name, attributes, strategy):
    """Return a program of one operator, and its node."""
    taken, left = info.infer_tensor_layouts(strategy, MESH)
    pairs = zip(info.operand_types, taken, strict=True)
    inputs = tuple(Value(f"i{n}", kind, layout) for n, (kind, layout) in enumerate(pairs))
    pairs = zip(info.result_types, left, strict=True)
    results = tuple(Value(f"r{n}", kind, layout) for n, (kind, layout) in enumerate(pairs))
    node = Node(name, tuple(value.name for value in inputs), results, attributes)
    outputs = tuple(value.name for value in results)
    return Graph("one", inputs, (), (node,), outputs, mesh=MESH), node


def difference(found, right):
    found, right = np.asarray(found, np.float64), np.asarray(right, np.float64)
    assert found.shape == right.shape
    differ = found != right  # infinities may be equal
    largest = np.abs(right[np.isfinite(right)]).max(initial=1)
    return np.abs(found[differ] - right[differ]).max(initial=0) / largest


def without_signs(name, results):
    """Return results whose signs are no choice: of a `svd` the terms that it is the sum of."""
    if name != "svd":
        return results
    u, s, vh = (np.asarray(one) for one in results)
    return np.einsum("...mk,...kn->...kmn", u, vh), s


def cases(name, vocabulary, most=MOST):
    """Yield an expression, its operands, and what the kernel gives, on ranks of many strategies."""
    rng = np.random.default_rng(0)
    examples = operator_class(name).examples
    assert examples or name in WITHOUT_EXAMPLES
    for example in examples:
        types = [parse_type(text)[0] for text in example.operands]
        info = operator_info(name, types, example.attributes)
        ranges = (example.ranges.get(i) for i in range(len(types)))
        wholes = [random(kind, bounds, rng) for kind, bounds in zip(types, ranges, strict=True)]
        strategies = info.generate_strategies(MESH)
        for strategy in strategies[:: -(-len(strategies) // most)]:
            graph, node = one_node(info, name, example.attributes, strategy)
            values = (*graph.inputs, *node.results)
            if not vocabulary.has_uneven_parts and not all(
                value.layout.is_even(value.type.shape, MESH) for value in values
            ):
                continue
            try:
                text = Expressions(graph, MESH, vocabulary).of(node)
            except StrategyError:  # of a form, in which ranks send to each other
                continue
            for rank in (1, 3):
                parts = [
                    np.array(whole[value.layout.slices(value.type.shape, MESH, rank)])
                    for whole, value in zip(wholes, graph.inputs, strict=True)
                ]
                right = info.kernel(info.rule.view(strategy, MESH, rank), *parts)
                right = right if isinstance(right, tuple | list) else (right,)
                yield text, rank, parts, right
