"""Building the search space of a program: one variable for every choice, one table for every edge.

What equal layers have in common is made once and shared by reference.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.profile import CostProfile, EdgeLayout, OperatorTable
from shardwright.cost_model.redistribution.layout_graph import layouts
from shardwright.cost_model.redistribution.layout_orbits import representative
from shardwright.cost_model.roofline import local_bytes
from shardwright.dataflow.cotangents import cotangent_flow
from shardwright.ir.decisions import SharedLayout
from shardwright.ir.errors import StrategyError
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.layout import Layout
from shardwright.ir.types import TensorType
from shardwright.operators.info import SplitCounts, operator_info
from shardwright.operators.models.optimizer import state_type
from shardwright.search.pins import pinned_strategies, restricted
from shardwright.search.space.draft import Draft, EdgeEnd
from shardwright.search.space.interning import Interner
from shardwright.search.space.memory import MemoryAccount
from shardwright.search.space.saved_tensors import SavedTensors, counted_views, savers_of, states_of
from shardwright.search.space.space import Choice, SearchSpace, Storage
from shardwright.search.space.storage import (
    StorageBytes,
    storage_bytes,
    storage_costs,
    storage_edges,
    storage_options,
)
from shardwright.solver.problem import Problem, Variable

Floats = NDArray[np.float64]


def build_search_space(
    graph: Graph,
    profile: CostProfile,
    *,
    states: int = 0,
    pins: Mapping[str, SplitCounts] | None = None,
    result_pins: Mapping[str, SplitCounts] | None = None,
    input_layouts: Mapping[str, Layout] | None = None,
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
    input_layouts : mapping of str to Layout
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
    builder = _SpaceBuilder(graph, profile, states, dict(pins or {}), dict(input_layouts or {}))
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
        input_layouts: dict[str, Layout],
    ) -> None:
        self.graph, self.profile, self.mesh = graph, profile, profile.mesh
        self.states, self.pins, self.input_layouts = states, pins, input_layouts
        self.scattered = False
        self.started, self.time_limit = time.perf_counter(), math.inf
        self.result_pins: dict[str, SplitCounts] = {}
        self.flow = cotangent_flow(graph)
        self.parameters = frozenset(p.name for p in graph.parameters if p.trainable)
        self.draft, self.memory = Draft(), MemoryAccount(len(graph.nodes))
        self.tables: dict[str, OperatorTable] = {}
        self.kept: dict[int, NDArray[np.int64]] = {}  # strategies of pinned operators
        self.variable: dict[str, int] = {}
        self.readers: dict[str, list[EdgeEnd]] = {name: [] for name in graph.values}
        self.intern = Interner().intern  # for what equal layers have in common
        self.order = {node.name: i for i, node in enumerate(graph.nodes)}
        self.saved = SavedTensors(self.draft, self.memory, self.intern, self._representative)
        self.counted: Mapping[str, str] = {}
        self.ending: dict[
            int, set[int]
        ] = {}  # saved tensors that each operator is the last to read
        self.replaced = {new for _, new in graph.updates}  # written where the parameter is

    def build(self) -> SearchSpace:
        for pin in (*self.pins, *self.result_pins):
            if pin not in self.order:
                raise StrategyError(
                    f"a strategy is pinned on `{pin}`, but the model has no such operator"
                )
        for node in self.graph.nodes:
            self._add_operator(node)
        self.counted = counted_views(self.graph, self._count_savers)
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
        for node in self.graph.nodes:
            self._hold_work(node)
        choices = tuple(self.draft.choices)
        uses = self.memory.uses(len(choices))
        variables = tuple(
            Variable(f"{choice.kind} {choice.name}", cost, memory)
            for choice, cost, memory in zip(choices, self.draft.costs, uses, strict=True)
        )
        problem = Problem(variables, (*self.draft.pairs, *self.draft.copies))
        pinned, edges = frozenset(self.pins) | set(self.result_pins), tuple(self.draft.edges)
        cost = self.profile.constant()
        fixed, planner = frozenset(self.input_layouts), self.profile.orbit_planner
        space = SearchSpace(
            self.graph, self.mesh, choices, problem, edges, cost, pinned, fixed, planner
        )
        return restricted(space, self.kept)

    # Variables

    def _add_operator(self, node: Node) -> None:
        types = [value.type for value in self.graph.operand_values(node)]
        info = operator_info(node.operator, types, node.attributes)
        wanted = self.flow.operands[node.name]
        stored = tuple(name in self.parameters for name in node.operands)
        operands, results = self.pins.get(node.name), self.result_pins.get(node.name)
        pinned = operands is not None or results is not None
        table = self.profile.table(info, wanted, stored, pinned)
        self.tables[node.name] = table
        self._check_time()
        variable = self.draft.add(Choice("operator", node.name, table.strategies), table.cost)
        if pinned:
            self.kept[variable] = pinned_strategies(table, node, self.mesh, operands, results)
        self.variable[node.name], moment = variable, self.order[node.name]
        held = table.memory
        for position, name in enumerate(node.operands):
            saved = held.operands[position]
            end = EdgeEnd(variable, (table, position), table.operands[position], moment)
            end.saved = saved if saved.any() else None
            end.position, end.separate = position, held.separate[position]
            self.readers[name].append(end)

    def _hold_work(self, node: Node) -> None:
        """Count what the gradient of an operator holds while it runs."""
        table, variable = self.tables[node.name], self.variable[node.name]
        ending = frozenset(self.ending.get(variable, ()))
        work = self.intern(("work", table, ending), lambda: table.memory.peak(ending))
        backward = self.memory.backward(self.order[node.name])
        self.memory.hold_transient(variable, work, backward, backward + 1)

    def _add_output(self, value: Value, *, is_loss: bool) -> None:
        whole = Layout.replicated(value.type.rank)
        port = EdgeLayout(whole, whole if is_loss and value.name in self.flow.values else None)
        variable = self.draft.add(Choice("output", value.name, (whole,)), np.zeros(1))
        end = EdgeEnd(variable, ("output", port), (port,), self.memory.operators, leaves=True)
        self.readers[value.name].append(end)

    def _add_input(self, value: Value) -> None:
        given = self.input_layouts.get(value.name)
        options = tuple(self._layouts(value.type)) if given is None else (given,)
        variable = self.draft.add(Choice("input", value.name, options), np.zeros(len(options)))
        ports = tuple(EdgeLayout(layout, None) for layout in options)
        end = EdgeEnd(variable, ("input", value.type, given), ports, 0)
        self._join(value, end)

    def _add_parameter(self, value: Value, updated: str | None) -> None:
        trained, reader = value.name in self.flow.values, self._reader(value)
        key = ("parameter", value.type, trained, reader and reader.key)
        options, cost = self.intern(key, lambda: self._storage(value, trained, reader))
        variable = self.draft.add(Choice("parameter", value.name, options), cost)
        one = self.intern(("bytes", key), lambda: storage_bytes(value.type, options, self.mesh))
        self._hold_parameter(value, trained, variable, one, reader)
        ports = self.intern(
            ("ports", key),
            lambda: tuple(EdgeLayout(o.layout, o.layout if trained else None) for o in options),
        )
        if updated is not None:  # the model's own update is brought to where the parameter lies
            taken = tuple(EdgeLayout(option.layout, None) for option in options)
            end = EdgeEnd(variable, ("update", key), taken, self.memory.operators)
            self.readers[updated].append(end)
        stays = reader is None and self.profile.rules.parameters_agree and self._agree(value)
        writer = EdgeEnd(variable, (key, stays), ports, 0, stays=stays)
        if reader is None:
            for each in self.readers[value.name]:
                self._connect(value, writer, each)
            return
        table = self.intern(
            ("stored", key),
            lambda: self._stored(value, options, ports, reader),
        )
        self.draft.connect(writer, reader, value.type, table)

    def _stored(
        self,
        value: Value,
        options: Sequence[Storage],
        ports: tuple[EdgeLayout, ...],
        reader: EdgeEnd,
    ) -> Floats:
        """Price a parameter between how it is stored and where it is read.

        What is gathered for several readers is gathered as the first that saves it uses it.
        """
        taken = self._taken(reader)
        table = storage_edges(value.type, options, ports, reader.ports, taken, self.profile)
        states = states_of(self.draft, reader)
        if states:
            gathered = np.array([option.layout != option.used for option in options])
            table = np.where(gathered[:, None] & ~np.array(states), np.inf, table)
        return table

    def _agree(self, value: Value) -> bool:
        """Return whether all readers of a tensor can take it alike, with their pins."""
        taken = [
            {
                reader.ports[i].layout
                for i in self.kept.get(reader.variable, range(len(reader.ports)))
            }
            for reader in self.readers[value.name]
        ]
        return bool(taken) and bool(set.intersection(*taken))

    def _reader(self, value: Value) -> EdgeEnd | None:
        """Return the one reader of a parameter, or where several meet; None if there is neither."""
        readers = self.readers[value.name]
        if len(readers) == 1:
            return readers[0]
        if not readers or not self.profile.rules.share_layouts:
            return None
        wanted = value.name in self.flow.values
        anywhere = self.intern(
            ("anywhere", value.type, wanted),
            lambda: tuple(
                EdgeLayout(at, at if wanted else None) for at in self._layouts(value.type)
            ),
        )
        savers = savers_of(readers)
        origin = EdgeEnd(-1, ("anywhere", anywhere), anywhere, 0)
        middle = self._meeting(value, origin, readers, savers, bool(savers))
        for reader in readers:
            self._connect(value, middle, reader, savers)
        anyone = np.ones(len(middle.ports), dtype=bool)
        for reader in savers:
            self.saved.add_copy(value, reader, middle, anyone)
        return middle

    def _storage(
        self, value: Value, trained: bool, reader: EdgeEnd | None
    ) -> tuple[tuple[Storage, ...], Floats]:
        used = tuple(dict.fromkeys(self._taken(reader))) if reader else ()
        options = storage_options(
            value.type,
            used,
            len(self.readers[value.name]) == 1 and reader is not None and reader.saved is not None,
            self.profile,
            self._layouts(value.type),
            scattered=self.scattered,
        )
        return options, storage_costs(value.type, options, trained, self.profile)

    def _hold_parameter(
        self, value: Value, trained: bool, variable: int, one: StorageBytes, reader: EdgeEnd | None
    ) -> None:
        """Count a parameter, the optimizer's states, its gathered copy and its gradient."""
        memory, readers = self.memory, self.readers[value.name]
        wider = state_type(value.type).nbytes / value.type.nbytes
        copies = 1 + self.states * wider if trained else 1
        lasting = self.intern(("lasting", copies, one), lambda: copies * one.stored)
        memory.hold(variable, lasting, 0, memory.end + 1)
        if reader is None:
            return
        if len(readers) > 1:  # gathered at the beginning of the program
            savers = savers_of(readers)
            last = max(end.moment for end in readers)
            freed = memory.backward(savers[0].moment) if savers else last
            memory.hold(variable, one.gathered, 0, freed)
        elif reader.saved is not None:
            backward = memory.backward(reader.moment)
            memory.hold(variable, one.gathered, reader.moment, backward)
        made = self._gradient_made(readers)
        if not trained or made is None:
            return
        if len(readers) > 1:
            usage = self._usage(value, reader)
            memory.hold_gradient(reader.variable, usage, made, memory.end)
            memory.hold(variable, one.stored, memory.end, memory.end + 1)
        else:
            memory.hold_gradient(variable, one.stored, made, memory.end + 1)

    def _gradient_made(self, readers: Sequence[EdgeEnd]) -> int | None:
        """Return from when on the gradient of a tensor surely has a buffer of its own."""
        ends = sorted((end for end in readers if end.returns), key=lambda end: -end.moment)
        if ends and ends[0].separate:
            return self.memory.backward(ends[0].moment) + 1
        return self.memory.backward(ends[1].moment) + 1 if len(ends) > 1 else None  # their sum

    def _taken(self, reader: EdgeEnd) -> list[Layout]:
        """Return as what a reader takes its operand, for each of its options."""
        return self.saved.layouts(reader)

    def _representative(self, layout: Layout) -> Layout:
        kinds = self.profile.kinds
        return layout if kinds is None else representative(layout, self.mesh, kinds)

    # Tensors

    def _add_result(self, node: Node, position: int) -> None:
        value, table = node.results[position], self.tables[node.name]
        wanted = value.name in self.flow.values
        key = (table, "result", position, wanted)
        layouts = table.results[position]
        ports = self.intern(
            key,
            lambda: tuple(EdgeLayout(lies, lies.reduced() if wanted else None) for lies in layouts),
        )
        moment, saved = self.order[node.name], table.memory.results[position]
        writer = EdgeEnd(self.variable[node.name], key, ports, moment)
        writer.saved = saved if saved.any() else None
        writer.position = len(node.operands) + position
        writer.stays = self.profile.rules.fixes_consumers(table.info)
        self._join(value, writer)

    def _count_savers(self, name: str) -> int:
        """Return how many operators save a value for backward."""
        found = sum(reader.saved is not None for reader in self.readers[name])
        node = self.graph.producers.get(name)
        if node is None:
            return found
        position = [result.name for result in node.results].index(name)
        return found + bool(self.tables[node.name].memory.results[position].any())

    def _join(self, value: Value, writer: EdgeEnd) -> None:
        """Connect where a tensor is made with where it is read, and count what is saved of it."""
        readers = self.readers[value.name]
        savers = savers_of((writer, *readers))
        if self.counted.get(value.name, value.name) != value.name or value.name in self.replaced:
            savers = []
        if savers:
            self.ending[savers[0].variable] = {
                *self.ending.get(savers[0].variable, ()),
                savers[0].position,
            }
        if len(readers) < 2 or not self.profile.rules.share_layouts:
            for reader in readers:
                self._connect(value, writer, reader)
            if len(readers) < 2:
                self.saved.hold(value, savers, writer, [True] * len(writer.ports))
            self._hold_transients(value, writer, readers, savers, writer)
            return
        middle = self._meeting(value, writer, readers, savers, len(savers) > 1)
        self._connect(value, writer, middle, savers)
        for reader in readers:
            self._connect(value, middle, reader, savers)
        states = states_of(self.draft, middle)
        self.saved.hold(value, savers, middle, states or [True] * len(middle.ports))
        self._hold_transients(value, writer, readers, savers, middle)

    def _hold_transients(
        self,
        value: Value,
        writer: EdgeEnd,
        readers: Sequence[EdgeEnd],
        savers: Sequence[EdgeEnd],
        at: EdgeEnd,
    ) -> None:
        """Count a tensor until its readers have run, and its gradient until its writer has."""
        memory, usage = self.memory, self._usage(value, at)
        if value.name not in self.counted and value.name not in self.replaced and readers:
            until = max(end.moment for end in readers)
            until = min([until, *(end.moment for end in savers)])
            memory.hold_transient(at.variable, usage, writer.moment, until)
        made = self._gradient_made(readers)
        if made is not None:
            memory.hold_transient(at.variable, usage, made, memory.backward(writer.moment))

    def _connect(
        self, value: Value, writer: EdgeEnd, reader: EdgeEnd, savers: Sequence[EdgeEnd] = ()
    ) -> None:
        """Price a tensor between two ends; the first saver may share the buffer of the other."""
        shares = (savers[:1] == [writer], savers[:1] == [reader])

        def make() -> Floats:
            table = priced()
            for end, other, first in ((writer, reader, shares[1]), (reader, writer, shares[0])):
                states = states_of(self.draft, end)
                if states and first:
                    same = np.array(
                        [[a == b for b in self._taken(other)] for a in self._taken(end)]
                    )
                    allowed = same | ~np.array(states)[:, None]
                    table = np.where(allowed if end is writer else allowed.T, table, np.inf)
            return table

        def priced() -> Floats:
            if reader.leaves:
                return self.profile.output(value.type, writer.ports, reader.ports[0])
            table = self.profile.edges(value.type, writer.ports, reader.ports)
            if not writer.stays:
                return table
            taken = [port.layout for port in reader.ports]
            return np.where([[w.layout == at for at in taken] for w in writer.ports], table, np.inf)

        self._check_time()
        table = self.intern(("edges", value.type, writer.key, reader.key, shares), make)
        self.draft.connect(writer, reader, value.type, table)

    def _meeting(
        self,
        value: Value,
        writer: EdgeEnd,
        readers: Sequence[EdgeEnd],
        savers: Sequence[EdgeEnd],
        shared: bool,
    ) -> EdgeEnd:
        """Add a variable for the shared layout of the readers of a tensor."""
        self._check_time()
        first = savers[0] if shared else None
        keys = tuple((reader.key, reader is first) for reader in readers)
        key, ends = ("meeting", value.type, writer.key, keys, shared), (writer, *readers)
        options, cost, ports = self.intern(key, lambda: self._meetings(value, ends, shared))
        variable = self.draft.add(Choice("tensor", value.name, options), cost)
        return EdgeEnd(variable, key, ports, writer.moment)

    def _meetings(
        self, value: Value, ends: Sequence[EdgeEnd], shared: bool
    ) -> tuple[tuple[SharedLayout, ...], Floats, tuple[EdgeLayout, ...]]:
        wanted = value.name in self.flow.values
        found: dict[SharedLayout, None] = {}
        for port in (port for end in ends for port in end.ports):
            partial = port.cotangent.partial if port.cotangent is not None else ()
            lies = self._representative(port.layout.with_partial(partial))
            found[SharedLayout(lies.reduced(), lies.partial)] = None
        states = (True, False) if shared else (False,)
        options = tuple(
            replace(shared_layout, saved=saved) for saved in states for shared_layout in found
        )
        adds = sum(any(p.cotangent is not None for p in end.ports) for end in ends[1:]) - 1
        cost = np.array(
            [
                adds * self.profile.accumulation(value.type, option.layout) if adds > 0 else 0.0
                for option in options
            ]
        )
        meeting_ports = tuple(
            EdgeLayout(option.layout, option.cotangent if wanted else None) for option in options
        )
        return options, cost, meeting_ports

    def _usage(self, value: Value, end: EdgeEnd) -> Floats:
        """Return the bytes of a tensor as it lies at one end."""
        return self.intern(
            ("usage", value.type, end.key),
            lambda: np.array([local_bytes(value.type, p.layout, self.mesh) for p in end.ports]),
        )

    def _layouts(self, tensor: TensorType) -> list[Layout]:
        """Return the layouts without partial axes that the tensor's shape allows."""
        return self.intern(
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
