"""Lookups: tables of which a step reads some rows only.

A table that is only read by gathers along its first dimension is replaced by a small one with the
rows of the batch. The indices are computed first, by a program of their own.

Before::

    parameter table: f32[1000000, 16]
    indices: i32[64, 8] = mod(features, sizes)
    found: f32[64, 8, 16] = gather(table, indices)

After::

    parameter table: f32[512, 16]
    input table.rows0: i32[64, 8]
    found: f32[64, 8, 16] = gather(table, table.rows0)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from shardwright.ir.attributes import Attribute
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.reachability import live
from shardwright.ir.types import TensorType
from shardwright.operators.info import Array
from shardwright.operators.models.optimizer import Optimizer
from shardwright.operators.verify import verify
from shardwright.runtime import Executor, LocalCommunicator
from shardwright.server.tables import Ids


@dataclass(frozen=True)
class Lookup:
    """The lookups in one table.

    Parameters
    ----------
    table : str
        The parameter.
    type : TensorType
        Its type.
    indices : tuple of str
        The values that it is looked up by.
    inputs : tuple of str
        The inputs that replace them.
    rows : int
        Rows of the small table.
    """

    table: str
    type: TensorType
    indices: tuple[str, ...]
    inputs: tuple[str, ...]
    rows: int


def keeps_idle_rows(kind: str, settings: Mapping[str, Attribute]) -> bool:
    """Return whether a row without a gradient follows from its initial value alone.

    So an update needs the rows of the batch only. FTRL sets all other rows to zero in its first
    update; the others keep them.
    """
    if settings.get("weight_decay") or (settings.get("l2") and kind == "adam"):
        return kind == "adam" and bool(settings.get("lazy"))
    return kind in ("sgd", "adagrad", "ftrl") or bool(settings.get("lazy"))


def lookups_of(graph: Graph, served: Sequence[str], rule: Optimizer) -> tuple[Lookup, ...]:
    """Return the lookups in the tables of which servers need rows only.

    Parameters
    ----------
    graph : Graph
        The forward program.
    served : sequence of str
        The parameters on servers.
    rule : Optimizer
        The update rule.
    """
    parameters = {parameter.name: parameter.value for parameter in graph.parameters}
    trained = {parameter.name for parameter in graph.parameters if parameter.trainable}
    found = []
    for name in served:
        readers = [node for node in graph.nodes if name in node.operands]
        if not readers or name in graph.outputs or not all(_is_lookup(n, name) for n in readers):
            continue
        indices = tuple(dict.fromkeys(node.operands[1] for node in readers))
        rows = sum(prod(graph.values[index].type.shape) for index in indices)
        table = parameters[name].type
        depends = live(graph.nodes, indices).values & trained
        if 2 * rows > table.shape[0] or depends:
            continue
        if keeps_idle_rows(rule.kind, rule.settings_of(name)):
            inputs = tuple(f"{name}.rows{i}" for i in range(len(indices)))
            found.append(Lookup(name, table, indices, inputs, rows))
    return tuple(found)


def _is_lookup(node: Node, table: str) -> bool:
    by_rows = node.operator == "gather" and not node.attributes.get("axis", 0)
    if node.attributes.get("outside") == "constant":  # its negative indices are rows, too
        return False
    return by_rows and node.operands[0] == table != node.operands[1]


def with_small_tables(graph: Graph, lookups: Sequence[Lookup]) -> Graph:
    """Return the program with small tables, looked up by new inputs."""
    if not lookups:
        return graph
    sizes = {lookup.table: lookup.rows for lookup in lookups}
    names = {
        (lookup.table, index): name
        for lookup in lookups
        for index, name in zip(lookup.indices, lookup.inputs, strict=True)
    }
    inputs = tuple(Value(name, graph.values[index].type) for (_, index), name in names.items())
    nodes = []
    for node in graph.nodes:
        key = tuple(node.operands[:2])
        if node.operator == "gather" and key in names:
            node = replace(node, operands=(node.operands[0], names[key], *node.operands[2:]))
        nodes.append(node)
    parameters = tuple(
        replace(p, value=replace(p.value, type=_shorter(p.value.type, sizes[p.name])))
        if p.name in sizes
        else p
        for p in graph.parameters
    )
    small = replace(
        graph, inputs=(*graph.inputs, *inputs), nodes=tuple(nodes), parameters=parameters
    )
    verify(small)
    return small


def _shorter(table: TensorType, rows: int) -> TensorType:
    return TensorType(table.dtype, (rows, *table.shape[1:]))


class Indices:
    """The program that computes the indices of lookups from a batch.

    Parameters
    ----------
    graph : Graph
        The forward program.
    lookups : sequence of Lookup
        The lookups.
    initial : mapping of str to array
        Values of its constants.
    """

    def __init__(
        self, graph: Graph, lookups: Sequence[Lookup], initial: Mapping[str, Array]
    ) -> None:
        self.lookups = lookups
        names = tuple(dict.fromkeys(index for lookup in lookups for index in lookup.indices))
        needed = live(graph.nodes, names)
        held = tuple(p for p in graph.parameters if p.name in needed.values)
        small = replace(
            graph, parameters=held, nodes=needed.nodes, outputs=names, updates=(), recomputed=()
        )
        self._executor = Executor(replace(small, cuts=(), regathered=()), LocalCommunicator())
        self._state = {p.name: {0: np.asarray(initial[p.name])} for p in held}
        self._inputs = [value.name for value in graph.inputs]

    def rows(self, batch: Sequence[Array]) -> list[tuple[Ids, list[Array]]]:
        """Return for each lookup the rows of a batch, ascending, and the inputs in their numbers.

        An index outside of the table stays outside.
        """
        if not self.lookups:
            return []
        inputs = dict(zip(self._inputs, batch, strict=True))
        found = self._executor.step(inputs, dict(self._state)).outputs
        return [
            numbered([found[index][0] for index in lookup.indices], lookup.type.shape[0])
            for lookup in self.lookups
        ]


def numbered(indices: Sequence[Array], rows: int) -> tuple[Ids, list[Array]]:
    """Return the rows among some indices, ascending, and the indices as numbers of them.

    Parameters
    ----------
    indices : sequence of array
        Indices, of any shapes.
    rows : int
        Rows of the table; -1 stands for an index outside.

    Examples
    --------
    >>> numbered([np.array([[7, 3], [9, 7]])], 8)
    (array([3, 7]), [array([[ 1,  0],
           [-1,  1]])])
    """
    flat = np.concatenate([array.ravel() for array in indices]).astype(np.int64)
    inside = (flat >= 0) & (flat < rows)
    found, inverse = np.unique(flat[inside], return_inverse=True)
    numbers = np.full(len(flat), -1)
    numbers[inside] = inverse
    ends = np.cumsum([array.size for array in indices])
    parts = np.split(numbers, ends[:-1])
    shaped = [
        part.reshape(array.shape).astype(array.dtype)
        for part, array in zip(parts, indices, strict=True)
    ]
    return found, shaped
