"""Building the search space of a program: a variable for every choice, a table for every edge.

`parameters`, `shared_layouts`, `edges`, `saved_tensors` and `memory` each add their part; equal
layers share tables by interning.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.profile import CostProfile, OperatorTable
from shardwright.dataflow.micro_batches import MicroBatches
from shardwright.ir.errors import StrategyError
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.layout import Layout
from shardwright.operators.info import SplitCounts, info_of, operator_class
from shardwright.operators.models.optimizer import Optimizer
from shardwright.search.space.context import (
    BuildContext,
    StagePart,
)
from shardwright.search.space.draft import (
    EdgeEnd,
    is_freed,
    operand_end,
    result_end,
    saving_ends,
    sharing_states,
)
from shardwright.search.space.edges import Link, connect
from shardwright.search.space.ends import Ends
from shardwright.search.space.interning import Interner
from shardwright.search.space.memory import HostMemory
from shardwright.search.space.parameters import ParameterChoices
from shardwright.search.space.pins import pinned_strategies, restricted
from shardwright.search.space.saved.offloading import Offloading
from shardwright.search.space.saved.recomputation import Recomputable, with_states
from shardwright.search.space.saved.regathering import Positions, Regathering, with_regathering
from shardwright.search.space.saved.tensors import SavedTensors, counted_views
from shardwright.search.space.sharding import OptimizerSharding
from shardwright.search.space.shared_layouts import add_shared_layout
from shardwright.search.space.space import Choice, SearchSpace
from shardwright.search.space.steps import Arguments, Built, RepriceableSpace, Step
from shardwright.solver.problem import Problem, Variable
from shardwright.solver.work import SECONDS_OF, Budget

Floats = NDArray[np.float64]


def build_search_space(
    graph: Graph,
    profile: CostProfile,
    *,
    optimizer: Optimizer | None = None,
    pins: Mapping[str, SplitCounts] | None = None,
    result_pins: Mapping[str, SplitCounts] | None = None,
    input_layouts: Mapping[str, Layout] | None = None,
    sharding: OptimizerSharding | None = None,
    budget: Budget | None = None,
    effort: float = 1.0,
    recompute: bool = False,
    regather: bool = False,
    micro: MicroBatches | None = None,
    part: StagePart | None = None,
    interner: Interner | None = None,
    host: HostMemory | None = None,
) -> SearchSpace:
    """Return the search space of a program.

    Parameters
    ----------
    graph : Graph
        The whole program; its first output is the loss.
    profile : CostProfile
        Prices the choices, on its mesh.
    optimizer : Optimizer, optional
        The rule of every parameter, for the memory of its states; by default there are none.
    pins : mapping of str to split counts
        Strategies pinned by the user, by operator, in MindSpore's form.
    result_pins : mapping of str to split counts
        Splits of results pinned by the user, by operator.
    input_layouts : mapping of str to Layout
        Layouts of inputs; those of the others are chosen by the search.
    sharding : OptimizerSharding, optional
        How finely parameters must be divided; by default the search chooses.
    budget : Budget, optional
        What building may spend.
    effort : float
        What the user asked for, for messages.
    recompute : bool
        Whether operators that are not marked may be recomputed, too.
    regather : bool
        Whether results may be saved as their operator leaves them, and redistributed again.
    micro : MicroBatches, optional
        The micro-batches of a step; `graph` is the program of one.
    part : StagePart, optional
        The pipeline stage that `graph` is, in one micro-batch. What it receives and sends has any
        layout without partial sums; the transfer costs nothing.
    interner : Interner, optional
        What was interned for problems of other parts of a program, with the same profile, passes
        and arguments: equal operators share their tables with these.
    host : HostMemory, optional
        The host memory, where tensors may be offloaded.

    Raises
    ------
    StrategyError
        If a pin names no operator, or is not supported.
    TimeLimitError
        If nothing is left of the budget, or the mesh is too fine for it.
    """
    limits, shared = (budget or Budget(), effort), interner or Interner()
    context = BuildContext(graph, profile, *limits, micro, part, host, shared)
    of_user = dict(pins or {}), dict(result_pins or {}), dict(input_layouts or {})
    return SpaceBuilder(
        context, Arguments(optimizer, *of_user, sharding, recompute, regather)
    ).build()


class SpaceBuilder:
    """Builds a search space, step by step.

    Parameters
    ----------
    context : BuildContext
        The program, and its costs.
    arguments : Arguments
        What the space is built for.
    """

    def __init__(self, context: BuildContext, arguments: Arguments) -> None:
        self.arguments, self.context = arguments, context
        self.graph, self.draft = context.graph, context.draft
        self.pins, self.result_pins = arguments.pins, arguments.result_pins
        self.profile, self.memory, self.tables = context.profile, context.memory, context.tables
        self.saved = SavedTensors(context)
        self.nodes = {n.name: n for n in self.graph.nodes if n.name not in context.joined}
        self.parameters = frozenset(p.name for p in self.graph.parameters if p.trainable)
        self.stored = ParameterChoices(
            context,
            self.saved,
            arguments.optimizer,
            arguments.sharding,
            (self.pins, self.result_pins),
        )
        self.updates = dict(self.graph.updates)
        self.moment = {node.name: i for i, node in enumerate(self.graph.nodes)}
        self.ends = Ends(context, arguments.input_layouts, self.moment)
        self.variable: dict[str, int] = {}
        self.counted: Mapping[str, str] = {}
        # The saved tensors that each operator is the last to read.
        self.freed: dict[int, set[int]] = {}
        self.counted_again: set[str] = set()  # groups of views, held for a second computation
        self.replaced = {new for _, new in self.graph.updates}  # written where the parameter is
        self.steps: list[Step] = []
        self.sizes: list[tuple[int, int]] = []  # of the draft, after each step

    def build(self) -> SearchSpace:
        """Return the space; see `build_search_space`."""
        self._check_pins()
        self.add_tables(self.nodes)
        self._find_states()
        for name in self.nodes:
            self.take(Step("operator", name))
        self.counted = counted_views(self.graph, self._count_savers)
        for name in dict.fromkeys(self.graph.outputs):  # one may be returned twice, it is sent once
            self.take(Step("output", name))
        self.take(Step("ends"))
        for parameter in self.graph.parameters:
            self.take(Step("parameter", parameter.name))
        for node in self.nodes.values():
            for position in range(len(node.results)):
                self.take(Step("result", node.name, position))
        for node in self.nodes.values():
            self._hold_gradient_work(node)
            self._hold_kept(node)
        return restricted(self._space(), self.context.kept)

    def add_tables(self, names: Iterable[str]) -> None:
        """Add the strategies of operators, with their costs."""
        for name in names:
            table = self.tables[name] = self._table(self.nodes[name])
            strategies = len(table.strategies)
            self.context.charge(table.cost, SECONDS_OF.strategy * strategies)
            self.context.check_budget()

    def take(self, step: Step) -> None:
        """Add what a step adds."""
        name = step.name
        if step.adds == "operator":
            self._add_operator(self.nodes[name])
        elif step.adds == "result":
            self._add_result(self.nodes[name], step.position)
        elif step.adds == "parameter":
            self.stored.add(self.graph.values[name], self.updates.get(name))
        elif step.adds == "output":
            self.ends.add_output(self.graph.values[name], is_loss=name == self.context.loss)
        else:
            for value, writer in self.ends.add_inputs():
                self._join(value, writer)
        self.context.budget.charge(SECONDS_OF.step)
        for pair in self.draft.pairs[self.sizes[-1][1] if self.sizes else 0 :]:
            self.context.charge(pair.table, SECONDS_OF.pair_entry * pair.table.size)
        self.context.check_budget()
        self.steps.append(step)
        self.sizes.append((len(self.draft.choices), len(self.draft.pairs)))

    def _find_states(self) -> None:
        """Find what may be computed, redistributed or copied from the host a second time."""
        context, arguments = self.context, self.arguments
        micro = context.micro
        outside = frozenset() if micro is None else micro.outside
        self.recomputable = Recomputable(
            self.graph, self.tables, arguments.recompute, outside, context.sent
        )
        excluded = self._excluded()
        regathering = Regathering(self.graph, self.tables, context.mesh, excluded)
        again = self.graph.nodes if arguments.regather else ()
        self.regathered: Mapping[str, Positions] = {n.name: regathering.of(n) for n in again}
        self.offloading = Offloading(context, excluded)
        self.memory.stretches = self.recomputable.stretches(self.memory)

    def _excluded(self) -> set[str]:
        """Return the values that are alive at other moments than those of a pass, or held."""
        micro = self.context.micro
        late = () if micro is None else (*micro.outside, *micro.late)
        return {*late, *self.replaced, *self.context.sent, *self.graph.outputs}

    def _check_pins(self) -> None:
        for pin in (*self.pins, *self.result_pins):
            if pin not in self.moment:
                raise StrategyError(
                    f"a strategy is pinned on `{pin}`, but the model has no such operator"
                )

    def _space(self) -> SearchSpace:
        choices = tuple(self.draft.choices)
        uses = self.memory.uses(len(choices))
        variables = tuple(
            Variable(f"{choice.kind} {choice.name}", cost, memory)
            for choice, cost, memory in zip(choices, self.draft.costs, uses, strict=True)
        )
        space = SearchSpace(
            self.graph,
            self.context.mesh,
            choices,
            Problem(variables, (*self.draft.pairs, *self.draft.copies)),
            tuple(self.draft.edges),
            self.profile.constant() if self.context.part is None else 0.0,
            pinned=frozenset(self.pins) | set(self.result_pins),
            fixed_inputs=frozenset(self.arguments.input_layouts),
            planner=self.profile.orbit_planner,
            casts=self.context.casts,
            offloaded=self.offloading.marked,
        )
        built = self._built()
        return space if built is None else RepriceableSpace(**vars(space), built=built)

    def _built(self) -> Built | None:
        """Return how the space was built, if other prices can take its place (`repricing`)."""
        context, host = self.context, self.context.host
        if self.pins or self.result_pins or self.graph.offloaded:
            return None
        if host is not None and host.offered:
            return None
        return Built(
            *(self.arguments, context.micro, context.part),
            *(context.budget.spent, self.steps, self.sizes),
            *(self.recomputable, self.regathered, self.counted),
        )

    # Operators

    def _table(self, node: Node) -> OperatorTable:
        """Return the strategies of an operator, each computed once."""
        info = info_of(self.graph, node)
        wanted = self.context.flow.operands[node.name]
        stored = tuple(name in self.parameters for name in node.operands)
        early = self.context.of_parameters.issuperset(node.operands)
        prices = self.profile.in_step(self.context.times(node.name), early)
        return prices.table(info, wanted, stored, self._is_pinned(node))

    def _is_pinned(self, node: Node) -> bool:
        return node.name in self.pins or node.name in self.result_pins

    def _add_operator(self, node: Node) -> None:
        once, states = self.tables[node.name], self.recomputable.of(node)
        made = self.context.of_parameters.issuperset(node.operands) and bool(node.operands)
        again = self.regathered.get(node.name, ())
        table = self.context.intern(
            ("states", once, states, made, again),
            lambda: with_regathering(with_states(once, states, made), again),
        )
        table = self.tables[node.name] = self.offloading.with_choice(node, table)
        cost, times = table.cost, self.context.times(node.name)
        if times > 1:
            cost = self.context.intern(("in passes", table), lambda: times * table.cost)
        variable = self.draft.add(Choice("operator", node.name, table.strategies), cost)
        if self._is_pinned(node):
            pins = self.pins.get(node.name), self.result_pins.get(node.name)
            kept = pinned_strategies(table, node, self.context.mesh, *pins)
            self.context.kept[variable] = kept
        self.variable[node.name] = variable
        self.offloading.hold(variable, table)
        moment, entered = self.moment[node.name], self.recomputable.entered(node, self.memory)
        for position, name in enumerate(node.operands):
            end = self._operand(table, position, times)
            self.context.readers[name].append(end.at(variable, moment, remade_at=entered))

    def _operand(self, table: OperatorTable, position: int, times: float) -> EdgeEnd:
        """Return the end at which operators with a table read an operand, at no place yet."""
        key = ("operand", table, position, times)
        return self.context.intern(
            key, lambda: operand_end(table, position, self.context.number(key), times)
        )

    def _add_result(self, node: Node, position: int) -> None:
        value, table = node.results[position], self.tables[node.name]
        wanted = self.context.has_gradient(value.name)
        times, split = self.context.times(node.name), self.context.split_passes(value.name)
        key = ("result", table, position, wanted, times, split)

        def make() -> EdgeEnd:
            number, fixes = self.context.number(key), self.profile.rules.fixes_consumers
            end = result_end(table, position, number, times, split, has_gradient=wanted)
            return replace(end, fixes_consumers=fixes(table.info))

        end = self.context.intern(key, make)
        moment, kept = self.moment[node.name], self._kept(node, position)
        self._join(value, end.at(self.variable[node.name], moment, kept))

    def _hold_gradient_work(self, node: Node) -> None:
        """Count the memory of an operator's gradient while it runs."""
        if self.context.is_outside(node.name):
            return
        table, variable = self.tables[node.name], self.variable[node.name]
        freed = frozenset(self.freed.get(variable, ()))
        work = self.context.intern(("work", table, freed), lambda: table.memory.peak(freed))
        backward = self.memory.backward(self.moment[node.name])
        self.memory.hold_transient(variable, work, backward, backward + 1)

    def _kept(self, node: Node, position: int) -> Floats | None:
        """Return the bytes of a result that only the gradient of a form saves; None for none.

        What a reader may save, or share with other readers, is not counted: a bound stays a bound.
        """
        table, ends = self.tables[node.name], self.context.readers[node.results[position].name]
        if position or table.memory.kept is None or self.context.is_outside(node.name):
            return None
        if any(end.saved is not None or end.is_output or self._is_view(end) for end in ends):
            return None
        if len(ends) > 1 and any(end.recomputed is not None for end in ends):
            return None
        return self._unless_recomputed(table, 0)

    def _unless_recomputed(self, table: OperatorTable, kind: int) -> Floats:
        """Return bytes that gradients of forms save, without those of recomputed operators."""
        assert table.memory.kept is not None
        usage, again = table.memory.kept[kind], table.remade
        if again is None:
            return usage
        return self.context.intern(
            ("kept", table, kind), lambda: np.where(is_freed(again), 0.0, usage)
        )

    def _hold_kept(self, node: Node) -> None:
        """Count what only the gradient of a form saves: a result from its last reader on."""
        table, variable = self.tables[node.name], self.variable[node.name]
        if table.memory.kept is None or self.context.is_outside(node.name):
            return
        moment = self.moment[node.name]
        stop, result = self.memory.backward(moment), self._kept(node, 0)
        self.memory.hold_saved(variable, self._unless_recomputed(table, 1), moment, stop)
        if result is not None and self.context.is_counted(node.results[0].name):
            ends = self.context.readers[node.results[0].name]
            last = max((end.moment for end in ends), default=moment)
            self.memory.hold_saved(variable, result, last, stop)

    # Tensors

    def _count_savers(self, name: str) -> int:
        """Return how many operators save a value for backward."""
        count = sum(reader.saved is not None for reader in self.context.readers[name])
        node = self.graph.producers.get(name)
        if node is None or node.name in self.context.joined:
            return count
        position = [result.name for result in node.results].index(name)
        return count + bool(self.tables[node.name].memory.results[position].any())

    def _join(self, value: Value, writer: EdgeEnd) -> None:
        """Connect the writer of a tensor with its readers, and count what is saved of it."""
        readers = self.context.readers[value.name]
        savers = self._savers(value, writer)
        if savers:
            self.freed.setdefault(savers[0].variable, set()).add(savers[0].position)
        if len(readers) < 2 or not self.profile.rules.share_layouts:
            for reader in readers:
                connect(self.context, value, writer, reader, link=self._link(value, reader))
            if len(readers) < 2:
                self._hold_saved(value, savers, writer, writer, [True] * len(writer.layouts))
            self._hold_transients(value, writer, savers, writer)
            return
        shared = add_shared_layout(
            self.context, value, writer, readers, savers, saved=len(savers) > 1
        )
        connect(self.context, value, writer, shared, savers)
        for reader in readers:
            connect(self.context, value, shared, reader, savers, self._link(value, reader))
        states = sharing_states(self.draft, shared)
        states = states or [True] * len(shared.layouts)
        self._hold_saved(value, savers, writer, shared, states)
        self._hold_transients(value, writer, savers, shared)

    def _link(self, value: Value, reader: EdgeEnd) -> Link | None:
        """Return how the states of the producer and a reader of a tensor are tied."""
        producer = self.graph.producers.get(value.name)
        if producer is None or not self.recomputable.links:
            return None
        return self.recomputable.link(producer.name, self.draft.choices[reader.variable].name)

    def _hold_saved(
        self,
        value: Value,
        savers: list[EdgeEnd],
        writer: EdgeEnd,
        shared: EdgeEnd,
        states: list[bool],
    ) -> None:
        """Count what is saved of a tensor, and what a second computation reads of it."""
        if savers:
            producer = self.graph.producers.get(value.name)
            entered = 0 if producer is None else self.recomputable.entered(producer, self.memory)
            self.saved.hold(value, savers, writer, shared, states, entered)
        if value.name not in self.graph.producers or value.name in self.replaced:
            return
        group = self.counted.get(value.name, value.name)
        if group != value.name and (group not in self.graph.producers or self._count_savers(group)):
            return  # a view of a buffer that is saved in any case, or counted for another value
        if group not in self.counted_again:
            ends = [
                end
                for end in self.context.readers[value.name]
                if end.saved is None and end.recomputed is not None and not self._is_view(end)
            ]
            self.counted_again |= {group} if ends and group in self.counted else set()
            self.saved.hold_for_recomputation(value, ends, writer, shared, bool(savers))

    def _is_view(self, reader: EdgeEnd) -> bool:
        name = self.draft.choices[reader.variable].name
        return operator_class(self.graph.producers[name].operator).is_view

    def _savers(self, value: Value, writer: EdgeEnd) -> list[EdgeEnd]:
        """Return the ends at which a tensor is saved; none for one whose buffer is not its own."""
        if self._is_uncounted(value) or value.name in self.replaced:
            return []
        if self.context.micro is not None and value.name in self.context.micro.late:
            return []
        return saving_ends((writer, *self.context.readers[value.name]))

    def _is_uncounted(self, value: Value) -> bool:
        return self.counted.get(value.name, value.name) != value.name

    def _hold_transients(
        self, value: Value, writer: EdgeEnd, savers: Sequence[EdgeEnd], at: EdgeEnd
    ) -> None:
        """Count a tensor until its readers have run, and its gradient until its writer has."""
        if self.context.is_outside(value.name):
            return
        memory, usage = self.memory, self.context.bytes_at(value.type, at)
        readers = self.context.readers[value.name]
        if value.name not in self.counted and value.name not in self.replaced and readers:
            last = max([end.moment for end in readers])
            until = min([last, *[end.moment for end in savers]])
            memory.hold_transient(at.variable, usage, writer.moment, until)
        start = self.context.gradient_start(readers)
        if start is not None:
            memory.hold_transient(at.variable, usage, start, memory.backward(writer.moment))
