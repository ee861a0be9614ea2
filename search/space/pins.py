"""Pins: strategies that are fixed by the user.

A pin restricts the choice of its operator and nothing else: the problem is built without pins, then
the strategies that do not match the pin are left out. So a plan's own strategies, as pins, allow
the plan.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.profile import OperatorTable
from shardwright.ir.errors import StrategyError
from shardwright.ir.graph import Node
from shardwright.ir.mesh import Mesh
from shardwright.operators.info import SplitCounts
from shardwright.search.space.interning import Interner
from shardwright.search.space.space import Edge, SearchSpace
from shardwright.solver.problem import Identity, MemoryUse, Pair, Problem, Variable

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Item = TypeVar("Item")


def pinned_strategies(
    table: OperatorTable,
    node: Node,
    mesh: Mesh,
    operands: SplitCounts | None,
    results: SplitCounts | None,
) -> Integers:
    """Return the positions of the strategies that match the pins on operands and results.

    Raises
    ------
    StrategyError
        If there is none.
    """
    kept = list(range(len(table.strategies)))
    for pin, what, counts_of in (
        (operands, "be", _operand_counts),
        (results, "leave its results", _result_counts),
    ):
        if pin is None:
            continue
        counts = tuple(map(tuple, pin))
        kept = [i for i in kept if counts_of(table, i, mesh) == counts]
        if not kept:
            shapes = tuple(tensor.shape for tensor in table.info.operand_types)
            raise StrategyError(
                f"`{node.operator}` cannot {what} split by {counts}: its operands are {shapes} and "
                f"the mesh is {mesh}",
                f"the strategy pinned on `{node.name}`",
                "give the number of slices of each dimension, for each tensor",
            )
    return np.array(kept, dtype=np.int64)


def _operand_counts(table: OperatorTable, position: int, mesh: Mesh) -> SplitCounts:
    return table.info.split_counts(table.strategies[position], mesh)


def _result_counts(table: OperatorTable, position: int, mesh: Mesh) -> SplitCounts:
    return tuple(left[position].counts(mesh) for left in table.results)


def restricted(space: SearchSpace, kept: Mapping[int, Integers]) -> SearchSpace:
    """Return a space in which some choices have only some of their options.

    Parameters
    ----------
    space : SearchSpace
        The space.
    kept : mapping of int to array
        The options that stay, by choice.
    """
    return _Restriction(kept).space(space) if kept else space


class _Restriction:
    def __init__(self, kept: Mapping[int, Integers]) -> None:
        self.kept = kept
        self.intern = Interner().intern  # equal layers share what is restricted

    def space(self, space: SearchSpace) -> SearchSpace:
        """Restrict every part of a space."""
        pairs = space.problem.pairs
        variables = (self._variable(i, v) for i, v in enumerate(space.problem.variables))
        problem = Problem(tuple(variables), tuple(map(self._pair, pairs)))
        choices = tuple(
            replace(choice, options=self._some(i, choice.options))
            for i, choice in enumerate(space.choices)
        )
        edges = tuple(self._edge(pair, edge) for _, pair, edge in space.priced)
        return replace(space, choices=choices, problem=problem, edges=edges)

    def _key(self, index: int) -> bytes | None:
        return self.kept[index].tobytes() if index in self.kept else None

    def _some(self, index: int, options: tuple[Item, ...]) -> tuple[Item, ...]:
        if index not in self.kept:
            return options
        key = ("options", Identity(options), self._key(index))
        return self.intern(key, lambda: tuple(options[i] for i in self.kept[index]))

    def _variable(self, index: int, variable: Variable) -> Variable:
        if index not in self.kept:
            return variable
        kept = self.kept[index]
        memory = tuple(MemoryUse(use.usage[kept], use.start, use.end) for use in variable.memory)
        return Variable(variable.name, variable.cost[kept], memory)

    def _pair(self, pair: Pair) -> Pair:
        key = ("table", Identity(pair.table), self._key(pair.first), self._key(pair.second))
        return replace(pair, table=self.intern(key, lambda: self._part(pair.table, pair)))

    def _edge(self, pair: Pair, edge: Edge) -> Edge:
        key = ("edge", Identity(edge), self._key(pair.first), self._key(pair.second))
        return self.intern(
            key,
            lambda: replace(
                edge,
                sources=self._some(pair.first, edge.sources),
                targets=self._some(pair.second, edge.targets),
                again=None if edge.again is None else self._part(edge.again, pair),
            ),
        )

    def _part(self, table: NDArray[Any], pair: Pair) -> NDArray[Any]:
        """Return the rows and columns that stay of a table."""
        rows, columns = self.kept.get(pair.first), self.kept.get(pair.second)
        table = table if rows is None else table[rows]
        return table if columns is None else table[:, columns]
