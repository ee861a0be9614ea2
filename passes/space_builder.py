"""Building the search space of a program: one variable for every choice, one table for every edge.

What equal layers have in common is made once and shared by reference.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.layout_classes import representative
from shardwright.cost_model.layout_graph import layouts
from shardwright.cost_model.profile import CostProfile, OperatorTable, Port
from shardwright.cost_model.roofline import local_bytes
from shardwright.ir.errors import StrategyError
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import TensorType
from shardwright.operators.info import SplitCounts, operator_info
from shardwright.passes.gradient import needs_gradient, reaches_loss
from shardwright.passes.partition import Meeting
from shardwright.passes.search_space import Choice, Route, SearchSpace, Storage
from shardwright.passes.storage import storage_costs, storage_edges, storage_options
from shardwright.solver.problem import MemoryUse, Pair, Problem, Variable

_FULLEST = 16  # moments at which memory in passing is counted
Floats = NDArray[np.float64]
T = TypeVar("T")


@dataclass(frozen=True)
class _End:
    """Where a tensor is made or read: a variable, and the layouts that its options mean.

    Ends with equal keys have equal ports.
    """

    variable: int
    key: object
    ports: tuple[Port, ...]
    keeps: bool = False  # whether the gradient reads the tensor here
    leaves: bool = False  # whether the tensor leaves the program here


@dataclass
class _Draft:
    choices: list[Choice] = field(default_factory=list)
    costs: list[Floats] = field(default_factory=list)
    memory: list[list[MemoryUse]] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    routes: list[Route] = field(default_factory=list)

    def add(self, choice: Choice, cost: Floats) -> int:
        self.choices.append(choice)
        self.costs.append(cost)
        self.memory.append([])
        return len(self.choices) - 1

    def connect(self, writer: _End, reader: _End, tensor: TensorType, table: Floats) -> None:
        self.pairs.append(Pair(writer.variable, reader.variable, table))
        self.routes.append(Route(tensor, writer.ports, reader.ports))


def build_search_space(
    graph: Graph,
    profile: CostProfile,
    *,
    states: int = 0,
    pins: Mapping[str, SplitCounts] | None = None,
    result_pins: Mapping[str, SplitCounts] | None = None,
    arrivals: Mapping[str, Layout] | None = None,
    scattered: bool = False,
) -> SearchSpace:
    """Return the search space of a program.

    Parameters
    ----------
    graph : Graph
        The whole program; its first output is the loss.
    profile : CostProfile
        Prices the choices, on its mesh.
    states : int
        Tensors that the optimizer keeps for each parameter.
    pins : mapping of str to split counts
        Operators whose strategy a person has fixed, in MindSpore's form.
    result_pins : mapping of str to split counts
        Operators whose results a person wants split so, as far as their strategies can.
    arrivals : mapping of str to Layout
        Inputs whose layout is given; others arrive as it suits.
    scattered : bool
        Whether parameters must be stored as finely split as they can be.

    Raises
    ------
    StrategyError
        If a pin names no operator, or cannot be.
    """
    builder = _SpaceBuilder(graph, profile, states, dict(pins or {}), dict(arrivals or {}))
    builder.scattered, builder.result_pins = scattered, dict(result_pins or {})
    return builder.build()


class _SpaceBuilder:
    def __init__(
        self,
        graph: Graph,
        profile: CostProfile,
        states: int,
        pins: dict[str, SplitCounts],
        arrivals: dict[str, Layout],
    ) -> None:
        self.graph, self.profile, self.mesh = graph, profile, profile.mesh
        self.states, self.pins, self.arrivals = states, pins, arrivals
        self.scattered = False
        self.result_pins: dict[str, SplitCounts] = {}
        self.wanted = needs_gradient(graph) & reaches_loss(graph)
        self.parameters = frozenset(p.name for p in graph.parameters if p.trainable)
        self.draft = _Draft()
        self.tables: dict[str, OperatorTable] = {}
        self.variable: dict[str, int] = {}
        self.readers: dict[str, list[_End]] = {name: [] for name in graph.values}
        self.shared: dict[object, object] = {}  # what equal layers have in common
        self.order = {node.name: i for i, node in enumerate(graph.nodes)}

    def build(self) -> SearchSpace:
        for pin in (*self.pins, *self.result_pins):
            if pin not in self.order:
                raise StrategyError(
                    f"a strategy is pinned on `{pin}`, but the model has no such operator"
                )
        for node in self.graph.nodes:
            self._add_operator(node)
        for name in self.graph.outputs:
            self._add_output(self.graph.values[name])
        for value in self.graph.inputs:
            self._add_input(value)
        following = dict(self.graph.updates)
        for parameter in self.graph.parameters:
            updated = following.get(parameter.name)
            self._add_parameter(parameter.value, parameter.trainable, updated)
        for node in self.graph.nodes:
            for position in range(len(node.results)):
                self._add_result(node, position)
        self._add_work()
        variables = tuple(
            Variable(f"{choice.kind} {choice.name}", cost, tuple(memory))
            for choice, cost, memory in zip(
                self.draft.choices, self.draft.costs, self.draft.memory, strict=True
            )
        )
        problem = Problem(variables, tuple(self.draft.pairs))
        return SearchSpace(
            self.graph,
            self.mesh,
            tuple(self.draft.choices),
            problem,
            tuple(self.draft.routes),
            self.profile.constant(),
            frozenset(self.pins) | set(self.result_pins),
        )

    # Variables

    def _add_operator(self, node: Node) -> None:
        types = [value.type for value in self.graph.operand_values(node)]
        info = operator_info(node.operator, types, node.attributes)
        reached = any(result.name in self.wanted for result in node.results)
        wanted = tuple(reached and name in self.wanted for name in node.operands)
        stored = tuple(name in self.parameters for name in node.operands)
        table = self.profile.table(info, wanted, stored)
        if node.name in self.pins:
            table = _pinned(table, node, self.pins[node.name], self.mesh, results=False)
        if node.name in self.result_pins:
            table = _pinned(table, node, self.result_pins[node.name], self.mesh, results=True)
        self.tables[node.name] = table
        choice = Choice("operator", node.name, table.strategies)
        variable = self.draft.add(choice, table.cost)
        self.variable[node.name] = variable
        for position, name in enumerate(node.operands):
            keeps = table.keeps_operands[position]
            ports = table.operands[position]
            self.readers[name].append(_End(variable, (table, position), ports, keeps))

    def _add_output(self, value: Value) -> None:
        whole = Layout.replicated(value.type.rank)
        port = Port(whole, whole if value.name in self.wanted else None)
        choice = Choice("output", value.name, (whole,))
        variable = self.draft.add(choice, np.zeros(1))
        end = _End(variable, ("output", port), (port,), leaves=True)
        self.readers[value.name].append(end)

    def _add_input(self, value: Value) -> None:
        given = self.arrivals.get(value.name)
        options = tuple(self._layouts(value.type)) if given is None else (given,)
        variable = self.draft.add(Choice("input", value.name, options), np.zeros(len(options)))
        ports = tuple(Port(layout, None) for layout in options)
        self._join(value, _End(variable, ("input", value.type, given), ports))

    def _add_parameter(self, value: Value, trainable: bool, updated: str | None) -> None:
        readers = self.readers[value.name]
        reader = readers[0] if len(readers) == 1 else None
        key = ("parameter", value.type, trainable, reader and reader.key)
        options, cost, usage = self._once(key, lambda: self._storage(value.type, trainable, reader))
        variable = self.draft.add(Choice("parameter", value.name, options), cost)
        self.draft.memory[variable].append(MemoryUse(usage, 0, 2 * len(self.graph.nodes)))
        wanted = value.name in self.wanted
        ports = self._once(
            ("ports", key, wanted),
            lambda: tuple(Port(o.layout, o.layout if wanted else None) for o in options),
        )
        if updated is not None:  # the model's own update is brought to where the parameter lies
            taken = tuple(Port(option.layout, None) for option in options)
            self.readers[updated].append(_End(variable, ("update", key), taken))
        writer = _End(variable, (key, wanted), ports)
        if reader is None:
            self._join(value, writer)
            return
        table = self._once(
            ("stored", key),
            lambda: storage_edges(
                value.type, options, ports, reader.ports, self._taken(reader), self.profile
            ),
        )
        self.draft.connect(writer, reader, value.type, table)

    def _storage(
        self, tensor: TensorType, trainable: bool, reader: _End | None
    ) -> tuple[tuple[Storage, ...], Floats, Floats]:
        used = tuple(dict.fromkeys(self._taken(reader))) if reader else ()
        kept = reader is not None and reader.keeps
        options = storage_options(
            tensor,
            used,
            kept,
            self.profile,
            self._layouts(tensor),
            scattered=self.scattered,
        )
        copies = (2 + self.states) if trainable and tensor.is_float else 1
        return options, *storage_costs(tensor, options, kept, copies, self.profile)

    def _taken(self, reader: _End) -> list[Layout]:
        """Return as what a reader takes its operand, for each of its options."""
        return [self._representative(port.layout) for port in reader.ports]

    def _representative(self, layout: Layout) -> Layout:
        kinds = self.profile.kinds
        return layout if kinds is None else representative(layout, self.mesh, kinds)

    # Tensors

    def _add_result(self, node: Node, position: int) -> None:
        value, table = node.results[position], self.tables[node.name]
        wanted = value.name in self.wanted
        key = (table, "result", position, wanted)
        layouts = table.results[position]
        ports = self._once(
            key, lambda: tuple(Port(lies, lies.reduced() if wanted else None) for lies in layouts)
        )
        keeps = table.keeps_results[position]
        self._join(value, _End(self.variable[node.name], key, ports, keeps))

    def _join(self, value: Value, writer: _End) -> None:
        """Connect where a tensor is made with where it is read, and count where it is kept."""
        readers = self.readers[value.name]
        if len(readers) > 1 and self.profile.readers_meet():
            middle = self._meeting(value, writer, readers)
            self._connect(value, writer, middle)
            for reader in readers:
                self._connect(value, middle, reader)
            keepers = [middle] if middle.keeps else []
        else:
            for reader in readers:
                self._connect(value, writer, reader)
            keepers = [end for end in (*readers, writer) if end.keeps][:1]
        for end in keepers:
            self._charge(value, end)

    def _connect(self, value: Value, writer: _End, reader: _End) -> None:
        def make() -> Floats:
            if reader.leaves:
                return self.profile.leaving(value.type, writer.ports, reader.ports[0])
            return self.profile.edges(value.type, writer.ports, reader.ports)

        table = self._once(("edges", value.type, writer.key, reader.key), make)
        self.draft.connect(writer, reader, value.type, table)

    def _meeting(self, value: Value, writer: _End, readers: Sequence[_End]) -> _End:
        """Add a variable for where the readers of a tensor meet."""
        key = ("meeting", value.type, writer.key, tuple(reader.key for reader in readers))
        options, cost, ports = self._once(key, lambda: self._meetings(value, writer, readers))
        variable = self.draft.add(Choice("tensor", value.name, options), cost)
        return _End(variable, key, ports, any(end.keeps for end in (writer, *readers)))

    def _meetings(
        self, value: Value, writer: _End, readers: Sequence[_End]
    ) -> tuple[tuple[Meeting, ...], Floats, tuple[Port, ...]]:
        wanted = value.name in self.wanted
        found: dict[Meeting, None] = {}
        for port in (port for end in (writer, *readers) for port in end.ports):
            partial = port.cotangent.partial if port.cotangent is not None else ()
            lies = self._representative(port.layout.with_partial(partial))
            found[Meeting(lies.reduced(), lies.partial)] = None
        options = tuple(found)
        adds = sum(any(p.cotangent is not None for p in reader.ports) for reader in readers) - 1
        cost = np.array(
            [
                adds * self.profile.accumulation(value.type, option.layout) if adds > 0 else 0.0
                for option in options
            ]
        )
        meeting_ports = tuple(
            Port(option.layout, option.cotangent if wanted else None) for option in options
        )
        return options, cost, meeting_ports

    def _charge(self, value: Value, end: _End) -> None:
        """Count the memory of a tensor that the gradient reads, as it lies at one end."""
        producer = self.graph.producers.get(value.name)
        if producer is None:  # inputs and parameters are counted where they are stored
            return
        usage = self._once(
            ("usage", value.type, end.key),
            lambda: np.array([local_bytes(value.type, p.layout, self.mesh) for p in end.ports]),
        )
        start = self.order[producer.name]
        stop = 2 * len(self.graph.nodes) - start
        self.draft.memory[end.variable].append(MemoryUse(usage, start, stop))

    def _add_work(self) -> None:
        """Count what the gradient needs in passing, where the whole program would be fullest.

        Elsewhere it is not counted: each such moment is one more row of the problem.
        """
        ends = 2 * len(self.graph.nodes)
        kept = np.zeros(len(self.graph.nodes))
        for uses in self.draft.memory:
            for use in uses:
                kept[use.start :] += use.usage.max()
        tables = [self.tables[node.name] for node in self.graph.nodes]
        fullness = kept + [table.work.max() for table in tables]
        for i in np.argsort(-fullness, kind="stable")[:_FULLEST]:
            node, table = self.graph.nodes[int(i)], tables[int(i)]
            moment = ends - 1 - int(i)
            self.draft.memory[self.variable[node.name]].append(
                MemoryUse(table.work, moment, moment + 1)
            )

    def _layouts(self, tensor: TensorType) -> list[Layout]:
        """Return the layouts without partial axes that the tensor's shape allows."""
        return self._once(
            ("layouts", tensor.shape),
            lambda: [
                layout
                for layout in layouts(self.mesh, tensor.rank, False, self.profile.kinds)
                if all(
                    size >= count
                    for size, count in zip(tensor.shape, layout.counts(self.mesh), strict=True)
                )
            ],
        )

    def _once(self, key: object, make: Callable[[], T]) -> T:
        if key not in self.shared:
            self.shared[key] = make()
        return self.shared[key]  # type: ignore[return-value]


def _pinned(
    table: OperatorTable, node: Node, counts: SplitCounts, mesh: Mesh, results: bool
) -> OperatorTable:
    """Return the table with only the strategies that split operands, or results, as asked."""
    counts = tuple(tuple(count) for count in counts)
    info = table.info

    def found(position: int) -> SplitCounts:
        if results:
            return tuple(left[position].counts(mesh) for left in table.results)
        return info.split_counts(table.strategies[position], mesh)

    keep = [i for i in range(len(table.strategies)) if found(i) == counts]
    if not keep:
        shapes = tuple(tensor.shape for tensor in info.operand_types)
        what = "leave its results" if results else "be"
        raise StrategyError(
            f"`{node.operator}` cannot {what} split by {counts}: its operands are {shapes} and the "
            f"mesh is {mesh}",
            f"the strategy pinned on `{node.name}`",
            "give the number of slices of each dimension, for each tensor",
        )
    return OperatorTable(
        info,
        tuple(table.strategies[i] for i in keep),
        table.cost[keep],
        tuple(tuple(ports[i] for i in keep) for ports in table.operands),
        tuple(tuple(left[i] for i in keep) for left in table.results),
        table.keeps_operands,
        table.keeps_results,
        table.work[keep],
    )
