"""A search space in the making: its variables, and the edges between them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.profile import OFFLOADED, REGATHERED, EdgeLayout, OperatorTable
from shardwright.ir.layout import SharedLayout
from shardwright.ir.types import TensorType
from shardwright.search.space.space import Choice, Edge
from shardwright.solver.problem import Identity, Pair

Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]
Integers = NDArray[np.int64]


@dataclass(eq=False, slots=True)
class EdgeEnd:
    """One end of an edge: where a tensor is written or read. Ends with equal keys are equal.

    Parameters
    ----------
    variable : int
        The choice that decides on the layout.
    key : object
        What the end is made of, for interning.
    layouts : tuple of EdgeLayout
        The layouts of the tensor and its gradient, for each option.
    moment : int
        When its operator runs forward.
    saved : array of shape (options,), optional
        Bytes that are saved for backward here; None where nothing is.
    kept : array of shape (options,), optional
        Where a tensor is written: bytes that only the gradient of a form saves here, so that one
        reader that is recomputed may share them; None for none.
    position : int
        Of the tensor, among the operands of its operator and then the results.
    separate : bool
        Whether the gradient that comes back from here is a buffer of its own.
    is_output : bool
        Whether the tensor leaves the program here.
    fixes_consumers : bool
        Whether all readers must use the layout of this end.
    remade : array of shape (options,), optional
        Where a tensor is written: whether and when it is recomputed instead of saved, as in
        `OperatorTable.remade`; None for never.
    recomputed : array of shape (options,), optional
        Where a tensor is read: whether and when the reader is recomputed; None for never.
    remade_at : int, optional
        Where a tensor is read: when a recomputed reader reads it at the earliest, in backward.
    needed : array of shape (options,), optional
        Where a tensor is read: whether the backward pass reads it here; None for never.
    exchange : array of shape (options,), optional
        Where a tensor is read: the cost of exchanging its halos.
    passes, gradient_passes : float
        How often the tensor, and its gradient, are written or read here in a step over
        micro-batches.
    """

    variable: int
    key: object
    layouts: tuple[EdgeLayout, ...]
    moment: int
    saved: Floats | None = None
    kept: Floats | None = None
    position: int = -1
    separate: bool = False
    is_output: bool = False
    fixes_consumers: bool = False
    remade: Integers | None = None
    recomputed: Integers | None = None
    remade_at: int | None = None
    needed: Booleans | None = None
    exchange: Floats | None = None
    passes: float = 1
    gradient_passes: float = 1
    _has_cotangent: bool | None = None

    @property
    def has_cotangent(self) -> bool:
        """Whether a gradient comes back from here."""
        if self._has_cotangent is None:
            self._has_cotangent = any(layout.cotangent is not None for layout in self.layouts)
        return self._has_cotangent

    def at(
        self, variable: int, moment: int, kept: Floats | None = None, remade_at: int | None = None
    ) -> "EdgeEnd":
        """Return the end of an equal operator."""
        return EdgeEnd(
            variable,
            self.key,
            self.layouts,
            moment,
            self.saved,
            kept,
            self.position,
            self.separate,
            self.is_output,
            self.fixes_consumers,
            self.remade,
            self.recomputed,
            remade_at,
            self.needed,
            self.exchange,
            self.passes,
            self.gradient_passes,
            self.has_cotangent,
        )


def is_recomputed(remade: Integers) -> Booleans:
    """Return where an operator is recomputed, of how its result is made a second time."""
    return (remade > 0) & (remade < REGATHERED)


def is_freed(remade: Integers) -> Booleans:
    """Return where the result itself is freed before backward, of how it is made a second time."""
    return is_recomputed(remade) | (remade == OFFLOADED)


def needed(table: OperatorTable, saved: bool) -> Booleans | None:
    """Return for each option of a reader whether the backward pass reads its operand there."""
    if saved:
        return np.ones(len(table.strategies), dtype=bool)
    return None if table.recomputed is None else table.recomputed > 0


def operand_end(table: OperatorTable, position: int, key: object, passes: float) -> EdgeEnd:
    """Return the end at which operators with a table read an operand, at no place yet."""
    saved, recompute = table.memory.operands[position], table.recompute
    return EdgeEnd(
        -1,
        key,
        table.operands[position],
        -1,
        saved=saved if saved.any() else None,
        position=position,
        separate=table.memory.separate[position],
        recomputed=table.recomputed,
        needed=needed(table, bool(saved.any())),
        exchange=None if recompute is None else recompute.exchanges[position],
        passes=passes,
        gradient_passes=passes,
    )


def result_end(
    table: OperatorTable,
    position: int,
    key: object,
    passes: float,
    gradient_passes: float,
    *,
    has_gradient: bool,
) -> EdgeEnd:
    """Return the end at which operators with a table write a result, at no place yet."""
    saved, layouts = table.memory.results[position], table.results[position]
    return EdgeEnd(
        -1,
        key,
        tuple(EdgeLayout(one, one.reduced() if has_gradient else None) for one in layouts),
        -1,
        saved=saved if saved.any() else None,
        position=len(table.operands) + position,
        remade=table.remade,
        passes=passes,
        gradient_passes=gradient_passes,
    )


def saving_ends(ends: Sequence[EdgeEnd]) -> list[EdgeEnd]:
    """Return the ends at which a tensor is saved for backward, in forward order."""
    return sorted([end for end in ends if end.saved is not None], key=lambda end: end.moment)


@dataclass
class Draft:
    """Variables and pairs of a search space so far.

    Parameters
    ----------
    choices, costs
        The variables, and the cost of their options.
    pairs, edges
        Priced pairs, and the tensor that each of them prices.
    copies
        Pairs that price nothing: they tie the copies saved for backward to the tensor.
    """

    choices: list[Choice] = field(default_factory=list)
    costs: list[Floats] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    copies: list[Pair] = field(default_factory=list)
    _edges: dict[int, Edge] = field(default_factory=dict)

    def add(self, choice: Choice, cost: Floats) -> int:
        """Add a variable and return its number."""
        self.choices.append(choice)
        self.costs.append(cost)
        return len(self.choices) - 1

    def connect(
        self,
        writer: EdgeEnd,
        reader: EdgeEnd,
        tensor: TensorType,
        table: Floats,
        again: Booleans | None = None,
        *,
        of_parameters: bool = False,
        gradient: TensorType | None = None,
    ) -> None:
        """Add a priced edge; `again` says where the tensor is redistributed a second time."""
        self.pairs.append(Pair(writer.variable, reader.variable, table))
        edge = self._edges.get(id(table))  # equal layers share the edge as they share the table
        if edge is None:
            edge = self._edges[Identity(table)] = Edge(
                tensor,
                writer.layouts,
                reader.layouts,
                again,
                reader.passes,
                min(writer.passes, reader.passes),
                min(writer.gradient_passes, reader.gradient_passes),
                of_parameters,
                gradient,
            )
        self.edges.append(edge)

    def tie(self, copy: int, other: int, table: Floats) -> None:
        """Tie the variable of a copy to another variable."""
        self.copies.append(Pair(copy, other, table, "copy"))


def sharing_states(draft: Draft, end: EdgeEnd) -> list[bool]:
    """Return for each option of a shared layout whether the first saver shares it; else nothing."""
    options = draft.choices[end.variable].options
    states = [option.saved for option in options if isinstance(option, SharedLayout)]
    return states if any(states) else []
