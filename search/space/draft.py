"""A search space in the making: its variables, the edges between them, and who saves what."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.profile import EdgeLayout
from shardwright.ir.types import TensorType
from shardwright.search.space.space import Choice, Edge
from shardwright.solver.problem import Identity, Pair

Floats = NDArray[np.float64]


@dataclass(eq=False, slots=True)
class EdgeEnd:
    """One end of an edge: where a tensor is written or read. Ends with equal keys are equal.

    Parameters
    ----------
    variable : int
        The choice that decides on the layout.
    key : object
        What it is made of, for interning.
    ports : tuple of EdgeLayout
        The layouts that its options mean.
    moment : int
        When its operator runs forward.
    saved : array of shape (options,), optional
        Bytes that are saved for backward here; None where nothing is.
    position : int
        Of the tensor, among the operands of its operator and then the results.
    separate : bool
        Whether the gradient that comes back from here is a buffer of its own.
    leaves : bool
        Whether the tensor leaves the program here.
    stays : bool
        Whether all readers must use the layout of this end.
    """

    variable: int
    key: object
    ports: tuple[EdgeLayout, ...]
    moment: int
    saved: Floats | None = None
    position: int = -1
    separate: bool = False
    leaves: bool = False
    stays: bool = False

    @property
    def returns(self) -> bool:
        """Whether a gradient comes back from here."""
        return any(port.cotangent is not None for port in self.ports)


@dataclass
class Draft:
    """Variables and pairs of a search space so far.

    Parameters
    ----------
    choices, costs
        The variables, and the cost of their options.
    pairs, edges
        Priced edges, and what each of them prices.
    copies
        Pairs that price nothing: they tie the copies saved for backward to what is read.
    """

    choices: list[Choice] = field(default_factory=list)
    costs: list[Floats] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    copies: list[Pair] = field(default_factory=list)
    _known: dict[Identity, Edge] = field(default_factory=dict)

    def add(self, choice: Choice, cost: Floats) -> int:
        """Add a variable and return its number."""
        self.choices.append(choice)
        self.costs.append(cost)
        return len(self.choices) - 1

    def connect(self, writer: EdgeEnd, reader: EdgeEnd, tensor: TensorType, table: Floats) -> None:
        """Add a priced edge."""
        self.pairs.append(Pair(writer.variable, reader.variable, table))
        key = Identity(table)  # equal layers share the edge as they share the table
        if key not in self._known:
            self._known[key] = Edge(tensor, writer.ports, reader.ports)
        self.edges.append(self._known[key])
