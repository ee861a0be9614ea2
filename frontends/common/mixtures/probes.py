"""What a part of a program does, found by running it on random choices of experts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from shardwright.ir.attributes import Attribute, Attributes
from shardwright.ir.errors import IRError
from shardwright.ir.graph import Graph, Node
from shardwright.ir.types import TensorType
from shardwright.operators.info import Array, operator_info, whole_kernel

Given = Mapping[str, Array | Callable[["Run"], Array]]
WIDE = 2**22
"""Elements of rows from which runs have one feature; at twice as many they take twice as long (a
tenth of a second). Rows are moved whole, so that one feature moves as all."""


class UnknownError(Exception):
    """A value that depends on what is not given."""


@dataclass
class Run:
    """A run of a part of a program.

    Parameters
    ----------
    graph : Graph
        The program.
    data : mapping of str to array
        Constants.
    given : mapping of str to array or function
        Values that are given, or computed from the run.
    narrow : set of int
        Sizes of features, which are one here.
    """

    graph: Graph
    data: Mapping[str, Array]
    given: Given
    narrow: frozenset[int] = frozenset()
    found: dict[str, Array] = field(default_factory=dict)

    def value(self, name: str) -> Array:
        """Return a value.

        Raises
        ------
        UnknownError
            If it depends on what is not given, or cannot be computed.
        """
        todo = [name]
        while todo:
            one = todo[-1]
            missing = () if one in self.found else self._missing(one)
            if missing:
                todo += missing
                continue
            todo.pop()
            if one not in self.found:
                self._compute(one)
        return self.found[name]

    def _missing(self, name: str) -> list[str]:
        node = self.graph.producers.get(name)
        if name in self.given or node is None:
            return []
        return [one for one in node.operands if one not in self.found]

    def _compute(self, name: str) -> None:
        node = self.graph.producers.get(name)
        if name in self.given:
            given = self.given[name]
            self.found[name] = given(self) if callable(given) else given
        elif node is None:
            self.found[name] = self._constant(name)
        else:
            results = self._results(node, [self.found[one] for one in node.operands])
            for value, array in zip(node.results, results, strict=True):
                self.found.setdefault(value.name, _wide(array))

    def _constant(self, name: str) -> Array:
        constants = {p.name for p in self.graph.parameters if not p.trainable}
        if name not in constants or name not in self.data:
            raise UnknownError(name)
        return _wide(np.asarray(self.data[name]))

    def _results(self, node: Node, operands: Sequence[Array]) -> tuple[Array, ...]:
        pairs = zip(node.operands, operands, strict=True)
        narrow = not node.operands or any(self._is_narrow(*pair) for pair in pairs)
        attributes = {
            key: self._fitting(key, value, narrow) for key, value in node.attributes.items()
        }
        types = [TensorType(str(one.dtype), one.shape) for one in operands]
        try:
            return whole_kernel(operator_info(node.operator, types, attributes), *operands)
        except (IRError, ValueError, IndexError, NotImplementedError) as error:
            raise UnknownError(node.name) from error

    def _is_narrow(self, name: str, array: Array) -> bool:
        """Return whether a value has one feature here, and more in the program."""
        return array.shape[-1:] == (1,) != self.graph.values[name].type.shape[-1:]

    def _fitting(self, key: str, value: Attribute, narrow: bool) -> Attribute:
        if key == "dtype" and "float" in str(value):
            return "float64"
        is_shape = key in ("shape", "size") and isinstance(value, tuple) and len(value) > 1
        if narrow and is_shape and isinstance(value, tuple) and value[-1] in self.narrow:
            return (*value[:-1], 1)
        return value


def _wide(array: Array) -> Array:
    return np.asarray(array, np.float64) if array.dtype.kind not in "iub" else array


def choices(tokens: int, experts: int, count: int) -> list[Array]:
    """Return choices ``[token, choice]``: random ones, all of the same experts, few experts.

    The experts of a token are distinct, as the greatest of its scores are.
    """
    random = np.random.default_rng(0)
    few = min(experts, count + 1)
    scores = [random.random((tokens, experts)) for _ in range(2)]
    last = random.random((tokens, experts))
    last[:, : experts - few] += 1.0  # the last experts are chosen alone, the first have none
    made = [np.argsort(one, axis=1)[:, :count] for one in (*scores, last)]
    same = np.broadcast_to(np.argsort(random.random(experts))[:count], (tokens, count))
    return [np.ascontiguousarray(one, np.int64) for one in (*made, same)]


def attribute_text(attributes: Attributes) -> str:
    """Return attributes as text, to compare them."""
    return repr(sorted(attributes.items(), key=lambda item: item[0]))
