"""Queries that patterns make of an imported graph."""

from collections import Counter
from collections.abc import Mapping

from shardwright.ir.attributes import Attribute
from shardwright.ir.graph import Graph, Node, Value
from shardwright.operators.builder import Builder
from shardwright.operators.info import Array, operator_class

Factors = tuple[float, list[str]]


class Matches:
    """A graph in which patterns are matched.

    Parameters
    ----------
    graph : Graph
        The program.
    data : mapping of str to array
        Initial values of its parameters.
    """

    def __init__(self, graph: Graph, data: Mapping[str, Array]) -> None:
        self.graph, self.data = graph, data
        self.build = Builder(graph=graph)
        self.reads = Counter(name for node in graph.nodes for name in node.operands)
        self.reads.update(graph.kept())
        self.trained = {p.name for p in graph.parameters if p.trainable}
        self.bases: dict[object, float | None] = {}  # of rotary embeddings, by their tables

    # Queries

    def value(self, name: str) -> Value:
        """Return a value."""
        return self.graph.values[name]

    def producer(self, name: str) -> Node | None:
        """Return the node that defines a value, in the graph or among new nodes."""
        emitted = (node for node in self.build.nodes if node.name == name)
        return self.graph.producers.get(name) or next(emitted, None)

    def made(self, name: str, operator: str, reads: int = 1) -> Node | None:
        """Return the node that defines a value, if it has this operator and number of readers."""
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
            return number * float(str(attribute_of(node, "factor"))), values
        if node.operator == "mul":
            a, b = (self.factors(operand, whole=False) for operand in node.operands)
            return a[0] * b[0], a[1] + b[1]
        if node.operator == "pow" and attribute_of(node, "exponent") == 3.0:
            return 1.0, [node.operands[0]] * 3
        return 1.0, [name]

    def mean_of_last(self, name: str, reads: int = 1) -> str | None:
        """Return the value whose mean along the last dimension, kept, a value is."""
        node = self.made(name, "reduce_mean", reads)
        if node is None or not attribute_of(node, "keep_dims"):
            return None
        rank = self.value(node.operands[0]).type.rank
        axes = attribute_of(node, "axis")
        return node.operands[0] if axes in ((-1,), (rank - 1,), -1, rank - 1) else None

    def rounded(self, name: str) -> str:
        """Return the value before a cast between floating-point types; else the value itself."""
        cast = self.made(name, "cast")
        if cast is None or not self.value(cast.operands[0]).type.is_float:
            return name
        return cast.operands[0] if self.value(name).type.is_float else name

    def cast(self, value: Value, dtype: str) -> Value:
        """Return a value in an element type."""
        return value if value.type.dtype == dtype else self.build.emit("cast", value, dtype=dtype)

    def inverse_deviation(self, name: str) -> tuple[str, float] | None:
        """Return x and epsilon where a value is 1 / sqrt(mean(x x) + epsilon)."""
        reciprocal, root = self.made(name, "reciprocal"), self.made(name, "rsqrt")
        if reciprocal:
            return self.deviation(reciprocal.operands[0])
        power = self.made(name, "pow")
        if power and attribute_of(power, "exponent") == -0.5:
            root = power
        return self._under_root(root.operands[0]) if root else None

    def deviation(self, name: str) -> tuple[str, float] | None:
        """Return x and epsilon where a value is sqrt(mean(x x) + epsilon)."""
        root = self.made(name, "sqrt")
        return self._under_root(root.operands[0]) if root else None

    def _under_root(self, name: str) -> tuple[str, float] | None:
        """Return x and epsilon where a value is mean(x x) + epsilon."""
        shifted = self.made(name, "add_scalar")
        mean = shifted and self.mean_of_last(shifted.operands[0])
        if not mean or not shifted or self.reads[mean] != 1:
            return None
        epsilon = float(str(attribute_of(shifted, "value")))
        square = self.graph.producers.get(mean)
        if square is None or square.operator not in ("square", "mul", "pow"):
            return None
        if square.operator == "pow" and attribute_of(square, "exponent") != 2.0:
            return None
        if len(set(square.operands)) != 1:
            return None
        return square.operands[0], epsilon

    def is_row(self, name: str, of: str) -> bool:
        """Return whether a value is a vector along the last dimension of another."""
        return self.value(name).type.shape == self.value(of).type.shape[-1:]


def attribute_of(node: Node, attribute: str) -> Attribute:
    """Return an attribute of a node, or its default."""
    return node.attributes.get(attribute, operator_class(node.operator).defaults[attribute])
