"""The state that all parts of the builder of a search space share."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.profile import CostProfile, OperatorTable
from shardwright.cost_model.redistribution.layout_graph import layouts
from shardwright.cost_model.redistribution.layout_orbits import representative
from shardwright.dataflow.cotangents import CotangentFlow, cotangent_flow
from shardwright.dataflow.deferrable import parameter_tensors
from shardwright.dataflow.micro_batches import MicroBatches
from shardwright.dataflow.stretches import Stretch
from shardwright.ir.errors import TableLimitError, TimeLimitError
from shardwright.ir.graph import Graph, Value
from shardwright.ir.layout import Layout, local_bytes
from shardwright.ir.types import TensorType
from shardwright.search.space.casts import parameter_casts
from shardwright.search.space.draft import Draft, EdgeEnd
from shardwright.search.space.gradients import gradient_types
from shardwright.search.space.interning import Interner
from shardwright.search.space.memory import HostMemory, MemoryAccount
from shardwright.solver.problem import Array, Identity
from shardwright.solver.work import Budget

Floats = NDArray[np.float64]
TABLE_LIMIT = 2**26
"""Most entries of the tables of a problem, equal ones once: 512 MiB, and twice that in a search."""


@dataclass(frozen=True)
class StagePart:
    """What a search is about, where it is about one pipeline stage.

    Parameters
    ----------
    stretch : Stretch
        The operators of the stage.
    in_flight : int
        Micro-batches whose saved tensors the stage holds at once at its peak.
    passes : float, optional
        How often an operator of the loop counts; by default, as often as it runs. A little more
        than once counts the accumulation of gradients, too.
    free_ends : bool
        Whether redistributing what is received and sent is left out, so that the bounds of
        consecutive parts add up to one of them together.
    accumulates : bool
        Whether passes accumulate what they return: not where they stand for one alone.
    uncounted : frozenset of str
        Values that are saved without being counted, so that the memory of consecutive parts adds up
        to no more than that of them together.
    """

    stretch: Stretch
    in_flight: int = 1
    passes: float | None = None
    free_ends: bool = False
    accumulates: bool = True
    uncounted: frozenset[str] = frozenset()


@dataclass
class BuildContext:
    """A program, its costs, and the search space so far.

    Parameters
    ----------
    graph : Graph
        The whole program.
    profile : CostProfile
        Prices the choices.
    budget : Budget
        What building may spend. It is charged for tables that other problems share, too: what a
        process happens to know changes no plan.
    effort : float
        What the user asked for, for messages.
    micro : MicroBatches, optional
        The micro-batches that a step has; the program is that of one.
    part : StagePart, optional
        The pipeline stage that the program is.
    host : HostMemory, optional
        The host memory, where tensors may be offloaded.
    interner : Interner
        Shares tables, options and layouts of equal operators.
    """

    graph: Graph
    profile: CostProfile
    budget: Budget = field(default_factory=Budget)
    effort: float = 1.0
    micro: MicroBatches | None = None
    part: StagePart | None = None
    host: HostMemory | None = None
    interner: Interner = field(default_factory=Interner)
    draft: Draft = field(default_factory=Draft)
    tables: dict[str, OperatorTable] = field(default_factory=dict)
    kept: dict[int, NDArray[np.int64]] = field(default_factory=dict)  # of pinned operators

    def __post_init__(self) -> None:
        self._check_clock()
        if self.budget.is_spent:  # by earlier searches
            raise TimeLimitError(
                f"nothing is left of effort {self.effort:g} to build the search on mesh "
                f"{self.profile.mesh}",
                hint="allow more effort",
            )
        self._charged: set[Identity] = set()
        self.entries = 0  # of the tables so far
        self.mesh = self.profile.mesh
        self.flow: CotangentFlow = self._flow()
        in_flight = 1 if self.part is None else self.part.in_flight
        self.memory = MemoryAccount(len(self.graph.nodes), in_flight, self.host)
        self.readers: dict[str, list[EdgeEnd]] = {name: [] for name in self.graph.values}
        self.casts = parameter_casts(self.graph) if self._joins_casts else {}
        self.intern, self.number = self.interner.intern, self.interner.number
        self.gradient_types = gradient_types(self.graph, accumulates=self.accumulates)
        self._numbers_of_types: dict[str, int] = {}
        self.of_parameters = parameter_tensors(
            self.graph.nodes, (parameter.name for parameter in self.graph.parameters)
        )

    def number_of_types(self, name: str) -> int:
        """Return a number for the types of a value's gradients; equal types have one."""
        if name not in self._numbers_of_types:
            self._numbers_of_types[name] = self.number(self.gradient_types(name))
        return self._numbers_of_types[name]

    def _flow(self) -> CotangentFlow:
        return cotangent_flow(self.graph) if self.part is None else self.part.stretch.flow

    @property
    def accumulates(self) -> bool:
        """Whether passes over micro-batches accumulate what they return."""
        return self.part is None or self.part.accumulates

    @property
    def loss(self) -> str:
        """The value at which gradients begin."""
        return self.graph.outputs[0] if self.part is None else self.part.stretch.loss

    @property
    def sent(self) -> tuple[str, ...]:
        """The values that other stages read."""
        return () if self.part is None else self.part.stretch.sent

    @property
    def has_free_ends(self) -> bool:
        """Whether redistributing what is received and sent is left out."""
        return self.part is not None and self.part.free_ends

    def is_counted(self, *names: str) -> bool:
        """Return whether the memory account of the stage counts some values that are saved."""
        return self.part is None or self.part.uncounted.isdisjoint(names)

    def is_received(self, name: str) -> bool:
        """Return whether a value comes from another stage."""
        return self.part is not None and name in self.part.stretch.received

    def prices_of(self, name: str) -> CostProfile:
        """Return the prices of redistributing a value and its gradient."""
        return self.profile.of_parameters if name in self.of_parameters else self.profile

    def prices_in_step(self, name: str, times: float) -> CostProfile:
        """Return the prices of a value that is redistributed, or added to, so often in a step."""
        return self.prices_of(name).in_step(times, name in self.of_parameters)

    @property
    def _joins_casts(self) -> bool:
        rules = self.profile.rules
        return rules.free_storage and rules.share_layouts

    @cached_property
    def joined(self) -> frozenset[str]:
        """The casts that are no choices of their own: they follow the storage of a parameter."""
        return frozenset(node.name for node in self.casts.values())

    def copied(self, parameter: Value) -> Value:
        """Return what operators read of a parameter: its copy in another type, or itself."""
        cast = self.casts.get(parameter.name)
        return parameter if cast is None else cast.results[0]

    # Micro-batches

    @property
    def passes(self) -> float:
        """Number of micro-batches of a step."""
        if self.part is not None and self.part.passes is not None:
            return self.part.passes
        return 1 if self.micro is None else self.micro.passes

    def times(self, operator: str) -> float:
        """Return how often an operator runs in a step."""
        return self.passes if self.micro is not None and self.micro.is_repeated(operator) else 1

    def split_passes(self, value: str) -> float:
        """Return the number of passes that each have their own slice of a value; 1 if none has."""
        return self.passes if self.micro is not None and self.micro.is_split(value) else 1

    def is_outside(self, value: str) -> bool:
        """Return whether a value is made before the first micro-batch, or after the last.

        It is alive at other moments than those at which the operators of a micro-batch run.
        """
        if self.micro is None:
            return False
        producer = self.graph.producers.get(value)
        return producer is not None and self.times(producer.name) == 1

    def is_of_pass(self, value: str) -> bool:
        """Return whether every micro-batch computes a value, or receives it from another stage."""
        if self.is_received(value):
            return self.split_passes(value) > 1
        producer = self.graph.producers.get(value)
        return producer is not None and self.times(producer.name) > 1

    def has_gradient(self, name: str) -> bool:
        """Return whether a value has a gradient."""
        return name in self.flow.values

    def charge(self, array: Array, seconds: float) -> None:
        """Charge work for an array, once, whether it is new or shared with another problem."""
        if Identity(array) not in self._charged:
            self._charged.add(Identity(array))
            self.budget.charge(seconds)

    def _check_clock(self) -> None:
        """Refuse to go on once the safety stop has fired."""
        if self.budget.work.is_stopped:
            raise TimeLimitError(
                f"the time limit ended building the search on mesh {self.profile.mesh}",
                hint="allow more time",
            )

    def check_budget(self) -> None:
        """Refuse to go on once the budget is spent; name the operator with the most strategies.

        Raises
        ------
        TimeLimitError
            If it is.
        """
        if not self.budget.is_spent:
            return
        self._check_clock()
        name, table = max(self.tables.items(), key=lambda item: len(item[1].strategies))
        raise TimeLimitError(
            f"building the search takes more than the {self.budget.seconds:.3g} s of work that "
            f"effort {self.effort:g} leaves for it: `{name}` alone has {len(table.strategies)} "
            f"strategies on mesh {self.mesh}",
            hint="merge axes of the mesh, or allow more effort",
        )

    def check_tables(self, rows: int, columns: int) -> None:
        """Refuse to make another table where all of them would take too much memory.

        Raises
        ------
        TableLimitError
            If they would.
        """
        self.entries += rows * columns
        if self.entries > TABLE_LIMIT:
            name, table = max(self.tables.items(), key=lambda item: len(item[1].strategies))
            raise TableLimitError(
                f"the tables of the search have more than {TABLE_LIMIT:,} entries: `{name}` alone "
                f"has {len(table.strategies)} strategies on mesh {self.mesh}",
                hint="merge axes of the mesh",
            )

    # Layouts

    def representative(self, layout: Layout) -> Layout:
        """Return the layout that stands for the orbit of a layout."""
        kinds = self.profile.kinds
        return layout if kinds is None else representative(layout, self.mesh, kinds)

    def representatives(self, end: EdgeEnd) -> list[Layout]:
        """Return the layout at an end for each of its options."""
        return self.intern(
            ("representatives", end.key),
            lambda: [self.representative(edge.layout) for edge in end.layouts],
        )

    def all_layouts(self, tensor: TensorType) -> list[Layout]:
        """Return the layouts without partial axes that a tensor's shape allows."""

        def make() -> list[Layout]:
            return [
                layout
                for layout in layouts(self.mesh, tensor.rank, False, self.profile.kinds)
                if all(
                    size >= count
                    for size, count in zip(tensor.shape, layout.counts(self.mesh), strict=True)
                )
            ]

        return self.intern(("layouts", tensor.shape), make)

    # Memory

    def bytes_at(self, tensor: TensorType, end: EdgeEnd) -> Floats:
        """Return the bytes of a tensor at one end, for each of its options."""
        return self.intern(
            ("bytes at", tensor, end.key),
            lambda: np.array([local_bytes(tensor, e.layout, self.mesh) for e in end.layouts]),
        )

    def gradient_start(self, readers: Sequence[EdgeEnd]) -> int | None:
        """Return from when on the gradient of a tensor surely has a buffer of its own."""
        ends = [end for end in readers if end.has_cotangent]
        if len(ends) > 1:
            ends.sort(key=lambda end: -end.moment)
        if ends and ends[0].separate:
            return self.memory.backward(ends[0].moment) + 1
        return self.memory.backward(ends[1].moment) + 1 if len(ends) > 1 else None  # their sum
