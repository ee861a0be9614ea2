"""Building the search space of a program: one variable for every choice, one table for every edge.

What equal layers have in common is made once and shared by reference.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.layout_classes import representative
from shardwright.cost_model.layout_graph import layouts
from shardwright.cost_model.profile import CostProfile, OperatorTable, Port
from shardwright.cost_model.roofline import local_bytes
from shardwright.ir.errors import StrategyError
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.layout import Layout
from shardwright.ir.types import TensorType
from shardwright.operators.info import SplitCounts, operator_info
from shardwright.operators.optimizer import state_type
from shardwright.passes.cotangents import cotangent_flow
from shardwright.passes.partition import Meeting
from shardwright.passes.pins import pinned_table
from shardwright.passes.search_space import Choice, Route, SearchSpace, Storage
from shardwright.passes.sharing import Shared
from shardwright.passes.space_memory import MemoryAccount, work_in_passing
from shardwright.passes.storage import (
    StorageBytes,
    storage_bytes,
    storage_costs,
    storage_edges,
    storage_options,
)
from shardwright.solver.problem import Pair, Problem, Variable

Floats = NDArray[np.float64]


@dataclass(eq=False, slots=True)
class _End:
    """Where a tensor is made or read: a variable, and the layouts that its options mean.

    Ends with equal keys have equal ports.
    """

    variable: int
    key: object
    ports: tuple[Port, ...]
    moment: int  # when its operator runs forward
    keeps: bool = False  # whether the gradient reads the tensor here
    leaves: bool = False  # whether the tensor leaves the program here
    stays: bool = False  # whether all that read the tensor take it as it is here

    @property
    def returns(self) -> bool:
        """Whether a gradient comes back from here."""
        return any(port.cotangent is not None for port in self.ports)


@dataclass
class _Draft:
    choices: list[Choice] = field(default_factory=list)
    costs: list[Floats] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    routes: list[Route] = field(default_factory=list)
    known: dict[int, Route] = field(default_factory=dict)  # of each table
    copies: list[Pair] = field(default_factory=list)  # which are kept; they price nothing

    def add(self, choice: Choice, cost: Floats) -> int:
        self.choices.append(choice)
        self.costs.append(cost)
        return len(self.choices) - 1

    def connect(self, writer: _End, reader: _End, tensor: TensorType, table: Floats) -> None:
        self.pairs.append(Pair(writer.variable, reader.variable, table))
        if id(table) not in self.known:  # equal layers share it as they share the table
            self.known[id(table)] = Route(tensor, writer.ports, reader.ports)
        self.routes.append(self.known[id(table)])


def build_search_space(
    graph: Graph,
    profile: CostProfile,
    *,
    states: int = 0,
    pins: Mapping[str, SplitCounts] | None = None,
    result_pins: Mapping[str, SplitCounts] | None = None,
    arrivals: Mapping[str, Layout] | None = None,
    scattered: bool = False,
    time_limit: float = math.inf,
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
    time_limit : float
        Seconds that it may take.

    Raises
    ------
    StrategyError
        If a pin names no operator, or cannot be; if the mesh is too fine for the time.
    """
    builder = _SpaceBuilder(graph, profile, states, dict(pins or {}), dict(arrivals or {}))
    builder.scattered, builder.result_pins = scattered, dict(result_pins or {})
    builder.time_limit = time_limit
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
        self.started, self.time_limit = time.perf_counter(), math.inf
        self.result_pins: dict[str, SplitCounts] = {}
        self.flow = cotangent_flow(graph)
        self.last_reader = self.flow.last_contribution(graph)
        self.parameters = frozenset(p.name for p in graph.parameters if p.trainable)
        self.draft, self.memory = _Draft(), MemoryAccount(len(graph.nodes))
        self.tables: dict[str, OperatorTable] = {}
        self.variable: dict[str, int] = {}
        self.readers: dict[str, list[_End]] = {name: [] for name in graph.values}
        self.once = Shared().once  # for what equal layers have in common
        self.order = {node.name: i for i, node in enumerate(graph.nodes)}

    def build(self) -> SearchSpace:
        for pin in (*self.pins, *self.result_pins):
            if pin not in self.order:
                raise StrategyError(
                    f"a strategy is pinned on `{pin}`, but the model has no such operator"
                )
        for node in self.graph.nodes:
            self._add_operator(node)
        for position, name in enumerate(self.graph.outputs):
            self._add_output(self.graph.values[name], is_loss=position == 0)
        for value in self.graph.inputs:
            self._add_input(value)
        following = dict(self.graph.updates)
        for name in (parameter.name for parameter in self.graph.parameters):
            self._add_parameter(self.graph.values[name], following.get(name))
        for node in self.graph.nodes:
            for position in range(len(node.results)):
                self._add_result(node, position)
        choices = tuple(self.draft.choices)
        variables = tuple(
            Variable(f"{choice.kind} {choice.name}", cost, memory)
            for choice, cost, memory in zip(
                choices, self.draft.costs, self.memory.uses(len(choices)), strict=True
            )
        )
        problem = Problem(variables, (*self.draft.pairs, *self.draft.copies))
        return SearchSpace(
            self.graph,
            self.mesh,
            choices,
            problem,
            tuple(self.draft.routes),
            self.profile.constant(),
            frozenset(self.pins) | set(self.result_pins),
        )

    # Variables

    def _add_operator(self, node: Node) -> None:
        types = [value.type for value in self.graph.operand_values(node)]
        info = operator_info(node.operator, types, node.attributes)
        wanted = self.flow.operands[node.name]
        stored = tuple(name in self.parameters for name in node.operands)
        pinned = node.name in self.pins or node.name in self.result_pins
        table = self.profile.table(info, wanted, stored, pinned)
        if node.name in self.pins:
            table = pinned_table(table, node, self.pins[node.name], self.mesh, results=False)
        if node.name in self.result_pins:
            table = pinned_table(table, node, self.result_pins[node.name], self.mesh, results=True)
        self.tables[node.name] = table
        self._check_time()
        variable = self.draft.add(Choice("operator", node.name, table.strategies), table.cost)
        self.variable[node.name], moment = variable, self.order[node.name]
        for position, name in enumerate(node.operands):
            keeps = table.keeps_operands[position]
            ports = table.operands[position]
            self.readers[name].append(_End(variable, (table, position), ports, moment, keeps))
        backward = self.memory.backward(moment)
        held = tuple(  # the gradient of a parameter begins at the last reader that returns one
            name in self.parameters and self.last_reader.get(name) == (node.name, position)
            for position, name in enumerate(node.operands)
        )
        work = self.once(("work", table, held), lambda: work_in_passing(table, held, self.mesh))
        self.memory.hold_in_passing(variable, work, backward, backward + 1)

    def _add_output(self, value: Value, *, is_loss: bool) -> None:
        whole = Layout.replicated(value.type.rank)
        port = Port(whole, whole if is_loss and value.name in self.flow.values else None)
        variable = self.draft.add(Choice("output", value.name, (whole,)), np.zeros(1))
        end = _End(variable, ("output", port), (port,), self.memory.operators, leaves=True)
        self.readers[value.name].append(end)

    def _add_input(self, value: Value) -> None:
        given = self.arrivals.get(value.name)
        options = tuple(self._layouts(value.type)) if given is None else (given,)
        variable = self.draft.add(Choice("input", value.name, options), np.zeros(len(options)))
        ports = tuple(Port(layout, None) for layout in options)
        end = _End(variable, ("input", value.type, given), ports, 0)
        readers = self.readers[value.name]
        if not any(reader.keeps for reader in readers):
            self.memory.hold(variable, self._usage(value, end), 0, self._freed(readers))
        self._join(value, end)

    def _add_parameter(self, value: Value, updated: str | None) -> None:
        trained, reader = value.name in self.flow.values, self._reader(value)
        key = ("parameter", value.type, trained, reader and reader.key)
        options, cost = self.once(key, lambda: self._storage(value, trained, reader))
        variable = self.draft.add(Choice("parameter", value.name, options), cost)
        one = self.once(("bytes", key), lambda: storage_bytes(value.type, options, self.mesh))
        self._hold_parameter(value, trained, variable, one, reader)
        ports = self.once(
            ("ports", key),
            lambda: tuple(Port(o.layout, o.layout if trained else None) for o in options),
        )
        if updated is not None:  # the model's own update is brought to where the parameter lies
            taken = tuple(Port(option.layout, None) for option in options)
            end = _End(variable, ("update", key), taken, self.memory.operators)
            self.readers[updated].append(end)
        stays = reader is None and self.profile.stays(None) and self._agree(value)
        writer = _End(variable, (key, stays), ports, 0, stays=stays)
        if reader is None:
            for each in self.readers[value.name]:
                self._connect(value, writer, each)
            return
        table = self.once(
            ("stored", key),
            lambda: storage_edges(
                value.type, options, ports, reader.ports, self._taken(reader), self.profile
            ),
        )
        self.draft.connect(writer, reader, value.type, table)

    def _agree(self, value: Value) -> bool:
        """Return whether all readers of a tensor can take it alike."""
        taken = [{port.layout for port in reader.ports} for reader in self.readers[value.name]]
        return bool(taken) and bool(set.intersection(*taken))

    def _reader(self, value: Value) -> _End | None:
        """Return the one reader of a parameter, or where several meet; None if there is neither."""
        readers = self.readers[value.name]
        if len(readers) == 1:
            return readers[0]
        if not readers or not self.profile.readers_meet():
            return None
        wanted = value.name in self.flow.values
        anywhere = self.once(
            ("anywhere", value.type, wanted),
            lambda: tuple(Port(at, at if wanted else None) for at in self._layouts(value.type)),
        )
        # A copy stands between its reader and where all meet, as eliminations along the numbers
        # of the variables take it.
        copies = [(self._add_copy(value, reader), reader) for reader in readers if reader.keeps]
        middle = self._meeting(value, _End(-1, ("anywhere", anywhere), anywhere, 0), readers)
        for reader in readers:
            self._connect(value, middle, reader)
        for copy, reader in copies:
            self._join_copy(copy, middle, reader)
        return middle

    def _add_copy(self, value: Value, reader: _End) -> int:
        """Add a variable for whether the gradient keeps what a reader takes beside what it met.

        Its options are the layouts that the reader takes: first met so, then kept beside.
        """
        taken = tuple(dict.fromkeys(self._taken(reader)))
        copy = self.draft.add(Choice("copy", value.name, taken + taken), np.zeros(2 * len(taken)))
        size = self.once(
            ("copied", value.type, reader.key),
            lambda: np.array(
                [0.0] * len(taken) + [local_bytes(value.type, at, self.mesh) for at in taken]
            ),
        )
        stop = self.memory.backward(reader.moment) + 1
        self.memory.hold(copy, size, reader.moment, stop)
        return copy

    def _join_copy(self, copy: int, middle: _End, reader: _End) -> None:
        """Forbid that a copy is other than what is read, or met so where all meet otherwise."""
        taken = dict.fromkeys(self._taken(reader))

        def allowed(end: _End, beside: bool) -> Floats:
            lies = np.array([[at == other for other in self._taken(end)] for at in taken])
            return np.where(np.concatenate([lies, lies | beside]), 0.0, np.inf)

        read = self.once(("read", reader.key), lambda: allowed(reader, beside=False))
        met = self.once(("met", middle.key, reader.key), lambda: allowed(middle, beside=True))
        self.draft.copies += [Pair(copy, reader.variable, read), Pair(copy, middle.variable, met)]

    def _storage(
        self, value: Value, trained: bool, reader: _End | None
    ) -> tuple[tuple[Storage, ...], Floats]:
        used = tuple(dict.fromkeys(self._taken(reader))) if reader else ()
        options = storage_options(
            value.type,
            used,
            len(self.readers[value.name]) == 1 and reader is not None and reader.keeps,
            self.profile,
            self._layouts(value.type),
            scattered=self.scattered,
        )
        return options, storage_costs(value.type, options, trained, self.profile)

    def _hold_parameter(
        self, value: Value, trained: bool, variable: int, one: StorageBytes, reader: _End | None
    ) -> None:
        """Count a parameter, what the optimizer keeps of it, its gathered copy and its gradient."""
        memory, readers = self.memory, self.readers[value.name]
        wider = state_type(value.type).nbytes / value.type.nbytes
        copies = 1 + self.states * wider if trained else 1
        lasting = self.once(("lasting", copies, one), lambda: copies * one.stored)
        memory.hold(variable, lasting, 0, memory.end)
        holder, gradient, made = variable, one.stored, [memory.end - 1]
        if reader is None:
            made += [memory.backward(end.moment) for end in readers if end.returns]
        elif len(readers) > 1:  # it is gathered where the program begins
            memory.hold(variable, one.gathered, 0, self._freed(readers))
            holder, gradient = reader.variable, self._usage(value, reader)
            made += self._add_up(value, reader)
        else:
            backward = memory.backward(reader.moment)
            if reader.keeps:
                memory.hold(variable, one.gathered, reader.moment, backward + 1)
                memory.hold_in_passing(variable, one.gathered_again, backward, backward + 1)
            if reader.returns:
                made.append(backward)
        if trained:
            memory.hold_gradient(holder, gradient, min(made))

    def _taken(self, reader: _End) -> list[Layout]:
        """Return as what a reader takes its operand, for each of its options."""
        return [self._representative(port.layout) for port in reader.ports]

    def _representative(self, layout: Layout) -> Layout:
        kinds = self.profile.kinds
        return layout if kinds is None else representative(layout, self.mesh, kinds)

    # Tensors

    def _add_result(self, node: Node, position: int) -> None:
        value, table = node.results[position], self.tables[node.name]
        wanted = value.name in self.flow.values
        key = (table, "result", position, wanted)
        layouts = table.results[position]
        ports = self.once(
            key, lambda: tuple(Port(lies, lies.reduced() if wanted else None) for lies in layouts)
        )
        keeps = table.keeps_results[position]
        moment, stays = self.order[node.name], self.profile.stays(table.info)
        writer = _End(self.variable[node.name], key, ports, moment, keeps, stays=stays)
        self._join(value, writer)

    def _join(self, value: Value, writer: _End) -> None:
        """Connect where a tensor is made with where it is read, and count where it is kept."""
        readers = self.readers[value.name]
        if len(readers) < 2 or not self.profile.readers_meet():
            for reader in readers:
                self._connect(value, writer, reader)
            self._keep(value, [*readers, writer], writer)
            return
        middle = self._meeting(value, writer, readers)
        self._connect(value, writer, middle)
        for reader in readers:
            self._connect(value, middle, reader)
        keeping = [end for end in (*readers, writer) if end.keeps]
        self._keep(value, keeping if len(keeping) == 1 else [middle], writer)
        returned = self._add_up(value, middle)
        if len(returned) > 1:  # the first gradient waits for the others
            usage, last = self._usage(value, middle), self.memory.backward(writer.moment)
            self.memory.hold_in_passing(middle.variable, usage, returned[0] + 1, last)

    def _add_up(self, value: Value, middle: _End) -> list[int]:
        """Return when gradients come to where readers meet; count each sum beside what it adds."""
        readers = [end for end in self.readers[value.name] if end.returns]
        returned = sorted(self.memory.backward(end.moment) for end in readers)
        for moment in returned[1:]:
            usage = self._usage(value, middle)
            self.memory.hold_in_passing(middle.variable, usage, moment, moment + 1)
        return returned

    def _connect(self, value: Value, writer: _End, reader: _End) -> None:
        def make() -> Floats:
            if reader.leaves:
                return self.profile.leaving(value.type, writer.ports, reader.ports[0])
            table = self.profile.edges(value.type, writer.ports, reader.ports)
            if not writer.stays:
                return table
            taken = [port.layout for port in reader.ports]
            return np.where([[w.layout == at for at in taken] for w in writer.ports], table, np.inf)

        self._check_time()
        table = self.once(("edges", value.type, writer.key, reader.key), make)
        self.draft.connect(writer, reader, value.type, table)

    def _meeting(self, value: Value, writer: _End, readers: Sequence[_End]) -> _End:
        """Add a variable for where the readers of a tensor meet."""
        self._check_time()
        key = ("meeting", value.type, writer.key, tuple(reader.key for reader in readers))
        options, cost, ports = self.once(key, lambda: self._meetings(value, writer, readers))
        variable = self.draft.add(Choice("tensor", value.name, options), cost)
        keeps = any(end.keeps for end in (writer, *readers))
        return _End(variable, key, ports, writer.moment, keeps)

    def _meetings(
        self, value: Value, writer: _End, readers: Sequence[_End]
    ) -> tuple[tuple[Meeting, ...], Floats, tuple[Port, ...]]:
        wanted = value.name in self.flow.values
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

    def _keep(self, value: Value, ends: Sequence[_End], writer: _End) -> None:
        """Count a tensor that the gradient reads, as it lies at the first end that keeps it."""
        keeping = next((end for end in ends if end.keeps), None)
        if keeping is not None:
            stop = self._freed([*self.readers[value.name], writer])
            usage = self._usage(value, keeping)
            self.memory.hold(keeping.variable, usage, writer.moment, stop)

    def _freed(self, ends: Sequence[_End]) -> int:
        """Return when a tensor is no longer needed at any of its ends."""
        kept = [end.moment for end in ends if end.keeps]
        if kept:
            return self.memory.backward(min(kept)) + 1
        return max((end.moment for end in ends), default=0) + 1

    def _usage(self, value: Value, end: _End) -> Floats:
        """Return the bytes of a tensor as it lies at one end."""
        return self.once(
            ("usage", value.type, end.key),
            lambda: np.array([local_bytes(value.type, p.layout, self.mesh) for p in end.ports]),
        )

    def _layouts(self, tensor: TensorType) -> list[Layout]:
        """Return the layouts without partial axes that the tensor's shape allows."""
        return self.once(
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

    def _check_time(self) -> None:
        """Refuse to go on once time is up; name the operator with the most strategies."""
        if time.perf_counter() - self.started <= self.time_limit:
            return
        name, table = max(self.tables.items(), key=lambda item: len(item[1].strategies))
        raise StrategyError(
            f"laying out the search takes longer than the time limit of {self.time_limit:g} s: "
            f"`{name}` alone has {len(table.strategies)} strategies on mesh {self.mesh}",
            hint="merge axes of the mesh, or allow more time",
        )
