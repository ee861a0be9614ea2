"""What may be recomputed: for each operator, whether a plan may compute it a second time.

An operator is computed a second time only where the backward pass reads one of its results: where
a gradient saves it (statically known), or where a reader is computed a second time itself. The
latter depends on the plan. Such tables stay pairwise, since it is offered only where one reader
decides: an operator whose results no gradient saves has the choice if it has one reader, and the
tensor that several readers share if one of them is sure to need it.

A view shares the buffer of its operand, so a view and its operand are recomputed together.

What is recomputed since a later operator of its segment is, begins to be held earlier than where a
gradient reads it first. Two states tell them apart, so that memory is counted: an operator that is
recomputed when backward enters the segment has its operands recomputed then.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from shardwright.cost_model.profile import ONCE, WHEN_ENTERED, WHEN_READ, OperatorTable
from shardwright.dataflow.segments import segments
from shardwright.ir.errors import StrategyError
from shardwright.ir.graph import Graph, Node
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.info import operator_class
from shardwright.search.space.edges import Link
from shardwright.search.space.memory import MemoryAccount
from shardwright.search.space.space import RecomputedStrategy

States = tuple[int, ...]
NEVER: States = (ONCE,)
ALWAYS: States = (WHEN_READ,)  # by a mark; when is not counted
EITHER: States = (ONCE, WHEN_READ, WHEN_ENTERED)
ENTERED: States = (ONCE, WHEN_ENTERED)  # a result is read by the first gradient of the segment


@dataclass
class Recomputable:
    """The states of each operator: computed once, a second time, or as the search decides.

    Parameters
    ----------
    graph : Graph
        The whole program; its marked operators are recomputed wherever they are needed.
    tables : mapping of str to OperatorTable
        The table of each operator.
    offered : bool
        Whether the search may recompute others.
    outside : frozenset of str
        Operators that run once where the others run in every pass over micro-batches: their results
        are kept for all passes.
    sent : tuple of str
        Values that other pipeline stages read.
    """

    graph: Graph
    tables: Mapping[str, OperatorTable]
    offered: bool
    outside: frozenset[str] = frozenset()
    sent: tuple[str, ...] = ()
    states: dict[str, States] = field(default_factory=dict)
    links: dict[tuple[str, str], Link] = field(default_factory=dict)
    _entered: dict[int, int] = field(default_factory=dict)  # moment of the last saver of a segment

    def __post_init__(self) -> None:
        if not self.offered and not self.graph.recomputed:
            return
        for name in self.graph.recomputed:
            table = self.tables.get(name)
            if table is None or table.recompute is None:
                raise StrategyError(
                    f"`{name}` is marked as recomputed, and the search does not price that",
                    hint="mark operators on activations, and use the cost model `time`",
                )
        nodes = [node for node in self.graph.nodes if node.name in self.tables]
        for moment, node in enumerate(self.graph.nodes):
            if node.name in self.tables and self._reads_saved(node):
                self._entered[self._segments[node.name]] = moment
        for node in reversed(nodes):
            self.states[node.name] = self._states(node)
        for node in nodes:
            if operator_class(node.operator).is_view and node.operands:
                self._tie_view(node)

    def of(self, node: Node) -> States:
        """Return the states of an operator."""
        return self.states.get(node.name, NEVER)

    def link(self, writer: str, reader: str) -> Link | None:
        """Return how the states of two operators are tied; None where they are not."""
        return self.links.get((writer, reader))

    def stretches(self, memory: MemoryAccount) -> list[range]:
        """Return when the first two and the last two segments that are recomputed run backward."""
        moments: dict[int, list[int]] = {}
        for moment, node in enumerate(self.graph.nodes):
            if len(self.of(node)) > 1:
                moments.setdefault(self._segments[node.name], []).append(moment)
        ends = [(memory.backward(of[-1]), memory.backward(of[0])) for of in moments.values()]
        return [range(a, b + 1) for a, b in dict.fromkeys((*ends[:2], *ends[-2:]))]

    def entered(self, node: Node, memory: MemoryAccount) -> int:
        """Return when an operator is recomputed at the earliest: as backward enters its segment.

        A marked operator may be recomputed for another segment, at the beginning of backward.
        """
        if not self.states or self.of(node) in (NEVER, ALWAYS) or node.name in self._marked:
            return memory.operators
        return memory.backward(self._entered[self._segments[node.name]])

    @cached_property
    def _segments(self) -> dict[str, int]:
        return segments(self.graph)

    def _reads_saved(self, node: Node) -> bool:
        """Return whether the gradient of an operator reads any tensor of the forward pass."""
        memory = self.tables[node.name].memory
        return any(saved.any() for saved in (*memory.operands, *memory.results))

    @cached_property
    def _matrices(self) -> frozenset[str]:
        """Parameters of several dimensions, and their copies in lower precision."""
        stored = {p.name for p in self.graph.parameters if p.value.type.rank > 1}
        casts = (n for n in self.graph.nodes if n.operator == "cast" and n.operands[0] in stored)
        return frozenset(stored | {cast.name for cast in casts})

    @cached_property
    def _marked(self) -> frozenset[str]:
        return frozenset(self.graph.recomputed)

    @cached_property
    def _moved(self) -> frozenset[str]:
        """The operators whose result the user moves to host memory."""
        return frozenset(self.graph.offloaded)

    # Needs

    def _saves(self, node: Node, position: int) -> bool:
        return bool(self.tables[node.name].memory.operands[position].any())

    def _readers(self, node: Node) -> list[tuple[Node, int]]:
        return [use for value in node.results for use in self.graph.uses[value.name]]

    def _is_saved(self, node: Node) -> bool:
        """Return whether a gradient reads a result of an operator."""
        own = any(saved.any() for saved in self.tables[node.name].memory.results)
        return own or any(self._saves(*use) for use in self._readers(node))

    def _states(self, node: Node) -> States:
        marked = node.name in self._marked
        readers = self._readers(node)
        if node.name in self._moved and not self._is_saved(node):
            self._never([reader for reader, _ in readers if len(self.of(reader)) > 1])
        if not marked and not (self.offered and self._is_eligible(node)):
            return NEVER
        sure = self._is_saved(node) or any(self.of(reader) == ALWAYS for reader, _ in readers)
        if sure:
            self._settle_shared(node)
            return ALWAYS if marked else (ENTERED if self._is_read_first(node) else EITHER)
        undecided = [reader for reader, _ in readers if len(self.of(reader)) > 1]
        if not undecided:
            return NEVER
        if len(readers) == 1:
            self.links[node.name, readers[0][0].name] = Link(alone=False, kept=not marked)
            return EITHER
        if marked:
            self._never(undecided)
        return NEVER

    def _is_read_first(self, node: Node) -> bool:
        """Return whether the first gradient of a segment to read anything reads a result."""
        moment = self._entered[self._segments[node.name]]
        last = self.graph.nodes[moment]
        if last is node:
            return any(saved.any() for saved in self.tables[node.name].memory.results)
        return any(reader is last and self._saves(last, i) for reader, i in self._readers(node))

    def _settle_shared(self, node: Node) -> None:
        """Let no reader of a shared tensor decide alone whether the backward pass reads it."""
        for value in node.results:
            uses = self.graph.uses[value.name]
            sure = any(self._saves(*use) or self.of(use[0]) == ALWAYS for use in uses)
            if len(uses) > 1 and not sure:
                self._never([reader for reader, _ in uses if len(self.of(reader)) > 1])

    def _never(self, nodes: list[Node]) -> None:
        self.states.update((node.name, NEVER) for node in nodes)

    def _is_eligible(self, node: Node) -> bool:
        """Return whether the search may recompute an operator.

        Not one that reads a matrix of parameters which its gradient does not, as the table of an
        embedding: the matrix would have to be saved.
        """
        return (
            bool(node.operands)
            and node.name not in self.outside
            and node.name not in self._moved
            and self._segments[node.name] in self._entered
            and self._stays(node)
            and self.tables[node.name].recompute is not None
            and not issubclass(operator_class(node.operator), Communication)
            and all(
                self._saves(node, i) or operand not in self._matrices
                for i, operand in enumerate(node.operands)
            )
        )

    def _stays(self, node: Node) -> bool:
        """Return whether an operator is read in its segment alone."""
        at = self._segments[node.name]
        if any(result.name in self.sent for result in node.results):
            return False
        return all(self._segments[reader.name] == at for reader, _ in self._readers(node))

    # Views

    def _tie_view(self, view: Node) -> None:
        """Recompute a view with its operand, and only with it.

        A view without a mark, of a marked operand, is saved, as the result of a marked cell is.
        """
        producer = self.graph.producers.get(view.operands[0])
        if len(self.of(view)) == 1 or view.name in self._marked:
            return
        if producer is None or self.of(producer) in (NEVER, ALWAYS):
            self.states[view.name] = NEVER
            return
        if self._is_sure(view):
            self.links[producer.name, view.name] = Link(alone=False, kept=False)
            return
        self.links[producer.name, view.name] = Link(kept=False)
        if self._is_sure(producer) or len(self._readers(producer)) > 1:
            self.states[view.name] = NEVER
            self._never([reader for reader, _ in self._readers(view)])
        else:
            self.links[producer.name, view.name] = Link(alone=False, kept=False)

    def _is_sure(self, node: Node) -> bool:
        readers = self._readers(node)
        return self._is_saved(node) or any(self.of(reader) == ALWAYS for reader, _ in readers)


def with_states(table: OperatorTable, states: States, of_parameters: bool = False) -> OperatorTable:
    """Return a table with an option for each strategy and state.

    `of_parameters` says that all operands are made of parameters alone.
    """
    if states == NEVER or table.recompute is None:
        return table
    count, recompute = len(table.strategies), table.recompute
    more = recompute.of_parameters if of_parameters else recompute.operator
    if states == ALWAYS:
        return replace(table, cost=table.cost + more, recomputed=np.ones(count, dtype=np.int64))
    times = len(states)
    again = tuple(
        RecomputedStrategy(strategy.assignment, when)
        for when in states[1:]
        for strategy in table.strategies
    )
    return replace(
        table,
        strategies=table.strategies + again,
        cost=np.concatenate([table.cost, *[table.cost + more] * (times - 1)]),
        operands=tuple(layouts * times for layouts in table.operands),
        results=tuple(layouts * times for layouts in table.results),
        memory=table.memory.times(times),
        recompute=replace(
            table.recompute,
            operator=np.tile(more, times),
            of_parameters=np.tile(recompute.of_parameters, times),
            exchanges=tuple(np.tile(cost, times) for cost in table.recompute.exchanges),
        ),
        recomputed=np.repeat(np.array(states), count),
    )
