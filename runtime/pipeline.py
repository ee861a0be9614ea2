"""The step of a program with pipeline stages: every device group runs its own part of it.

The groups of this process run in lockstep: before and after the loop over micro-batches in program
order, in the loop in an order of the schedule in which each segment finds what was sent to it. A
group holds values of several micro-batches at once, and frees each at its last use. Its live bytes
are counted on its first rank: parameters and inputs, accumulators for the whole loop, and what is
in flight; a message counts at the receiver from where it is read.
"""

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field

from shardwright.dataflow.schedules import Action, Segment
from shardwright.dataflow.stages import GroupProgram, Pipeline, Run
from shardwright.ir.liveness import accumulates
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.info import Array
from shardwright.runtime.accumulators import Accumulators
from shardwright.runtime.communicator import Communicator
from shardwright.runtime.flat.rank_timeline import Kind, RunTimeline
from shardwright.runtime.instructions import Instruction, Local, Preparation
from shardwright.runtime.live_memory import RankMemory
from shardwright.runtime.state import State

Values = MutableMapping[str, dict[int, Array]]  # value -> rank -> slice
Slices = Mapping[str, Sequence[dict[int, Array]]]  # of inputs, for each pass
Runner = Callable[[Instruction, Values, int], float]


@dataclass(frozen=True)
class GroupInstructions:
    """The program of a device group of this process, ready to run.

    Parameters
    ----------
    program : GroupProgram
        The program.
    ranks : tuple of int
        The hosted ranks of the group.
    before, after : tuple of Instruction
        What it runs outside of the loop.
    segments : mapping of (int, str) to (tuple of Instruction)
        What it runs for each micro-batch.
    accumulated : tuple of Local
        The storage of what its passes accumulate.
    tags : mapping of str to int
        A number for each transfer, by name.
    """

    program: GroupProgram
    ranks: tuple[int, ...]
    before: tuple[Instruction, ...]
    segments: Mapping[Segment, tuple[Instruction, ...]]
    after: tuple[Instruction, ...]
    accumulated: tuple[Local, ...]
    tags: Mapping[str, int]


def prepare_groups(pipeline: Pipeline, prepared: Preparation) -> tuple[GroupInstructions, ...]:
    """Return the programs of the device groups of which this process hosts ranks.

    Raises
    ------
    ExecutionError
        If a node cannot run.
    """
    graph, mesh = pipeline.graph, prepared.mesh
    names = [node.name for node in graph.nodes if node.operator == "transfer"]
    tags = {name: i for i, name in enumerate(names)}
    found = []
    for program in pipeline.groups:
        ranks = tuple(r for r in prepared.communicator.ranks if r in mesh.ranks_of(program.group))
        if not ranks:
            continue

        def made(runs: Iterable[Run], on: tuple[int, ...] = ranks) -> tuple[Instruction, ...]:
            nodes = graph.nodes
            return tuple(
                prepared.instruction(nodes[run.position], run.dead, on, run.kind) for run in runs
            )

        segments = {segment: made(runs) for segment, runs in program.segments.items()}
        accumulated = tuple(prepared.locals[name] for name in program.accumulated)
        found.append(
            GroupInstructions(
                program,
                ranks,
                made(program.before),
                segments,
                made(program.after),
                accumulated,
                tags,
            )
        )
    return tuple(found)


@dataclass
class GroupStep:
    """The state of one step on a device group: its values, of all micro-batches, and its bytes."""

    instructions: GroupInstructions
    communicator: Communicator
    run_node: Runner
    state: State
    kept: frozenset[str]
    passes: int
    axes: tuple[str, ...]
    slices: Slices
    values: dict[str, dict[int, Array]]
    memory: RankMemory
    timeline: RunTimeline | None = None
    totals: Accumulators = field(default_factory=Accumulators)
    of_passes: dict[int, dict[str, dict[int, Array]]] = field(default_factory=dict)

    def begin(self) -> None:
        """Count what the group holds when a step begins."""
        for name in self.values:
            self._hold(name, self.values)

    def begin_loop(self) -> None:
        """Allocate what the passes accumulate."""
        ranks = self.instructions.ranks
        for local in self.instructions.accumulated:
            self.values[local.name] = self.totals.allocate(
                local.name, {rank: local.shapes[rank] for rank in ranks}, local.dtype
            )
            self._hold(local.name, self.values)

    def end_loop(self) -> None:
        """Free what only the loop reads."""
        self._free(self.instructions.program.dead_after_loop, self.values)
        self.of_passes.clear()

    def run_once(self, instruction: Instruction) -> None:
        """Run a node outside of the loop."""
        self._run(instruction, self.values, 0)

    def run_action(self, action: Action) -> None:
        """Run a segment for a micro-batch."""
        number = action.micro_batch
        own = self.of_passes.get(number)
        if own is None:
            pairs = self.slices.items()
            own = {n: self._own(parts[number]) for n, parts in pairs if n in self.values}
            self.of_passes[number] = own
        values: Values = ChainMap(own, self.values)
        for instruction in self.instructions.segments[action.segment]:
            if accumulates(instruction.node, self.axes):
                self._accumulate(instruction, values, number)
                self._free(instruction.last_used, own)
            else:
                self._run(instruction, values, number)

    def _run(self, instruction: Instruction, values: Values, number: int) -> None:
        begin = 0.0 if self.timeline is None else self.timeline.now
        if instruction.kind == "send":
            self._send(instruction, values, number)
        else:
            if instruction.kind == "receive":
                values[instruction.node.name] = self._receive(instruction, number)
            else:
                self.memory.device.reach(self.run_node(instruction, values, number))
            for local in instruction.results:
                self._hold(local.name, values)
        if self.timeline is not None and instruction.kind != "run":
            kind: Kind = "wait" if instruction.kind == "receive" else "communicate"
            self.timeline.add(kind, f"{instruction.kind} {instruction.node.name}", begin)
        own = values.maps[0] if isinstance(values, ChainMap) else values
        self._free(instruction.last_used, own)

    def _accumulate(self, instruction: Instruction, values: Values, number: int) -> None:
        assert isinstance(instruction.info, Communication)
        parts = values[instruction.node.operands[0]]
        self.totals.add(instruction.node.name, instruction.info, parts, number, self.passes)

    # Transfers

    def _tag(self, instruction: Instruction, number: int) -> int:
        return self.instructions.tags[instruction.node.name] * self.passes + number

    def _send(self, instruction: Instruction, values: Values, number: int) -> None:
        parts, tag = values[instruction.node.operands[0]], self._tag(instruction, number)
        self.communicator.send(tag, instruction.pairs, parts)

    def _receive(self, instruction: Instruction, number: int) -> dict[int, Array]:
        local, tag = instruction.results[0], self._tag(instruction, number)
        return self.communicator.receive(tag, instruction.pairs, local.shapes, local.dtype)

    # Memory

    def _own(self, parts: Mapping[int, Array]) -> dict[int, Array]:
        return {rank: parts[rank] for rank in self.instructions.ranks}

    def _slices_of(self, name: str, values: Values) -> Sequence[Mapping[int, Array]]:
        """Return the parts of a value; of an input those of all passes."""
        return self.slices[name] if name in self.slices else (values[name],)

    def _hold(self, name: str, values: Values) -> None:
        for parts in self._slices_of(name, values):
            self.memory.hold(name, parts[self.instructions.ranks[0]])

    def _free(self, names: Iterable[str], values: Values) -> None:
        for name in names:
            if name in self.kept:
                continue
            for parts in self._slices_of(name, values):
                self.memory.release(name, parts[self.instructions.ranks[0]])
            del values[name]
            self.state.pop(name, None)


def run_pipeline(pipeline: Pipeline, groups: Sequence[GroupStep]) -> None:
    """Run one step of a program on the device groups of this process."""
    _run_outside(groups, [step.instructions.before for step in groups], pipeline)
    if pipeline.loop is not None:
        for step in groups:
            step.begin_loop()
        by_group = {step.instructions.program.group: step for step in groups}
        for action in _order(pipeline, by_group.keys()):
            by_group[pipeline.schedule.group_of(action.stage)].run_action(action)
        for step in groups:
            step.end_loop()
    _run_outside(groups, [step.instructions.after for step in groups], pipeline)
    for step in groups:
        step.communicator.complete_sends()


def _order(pipeline: Pipeline, groups: Iterable[int]) -> Sequence[Action]:
    """Return the actions of some groups; each one's in the order of the schedule."""
    hosted = list(groups)
    if len(hosted) == 1:
        return pipeline.schedule.actions[hosted[0]]
    schedule = pipeline.schedule
    return [a for a in schedule.order if schedule.group_of(a.stage) in hosted]


def _run_outside(
    groups: Sequence[GroupStep], programs: Sequence[Sequence[Instruction]], pipeline: Pipeline
) -> None:
    """Run nodes in program order, each on the groups that have it; a send before its receives."""
    place = {node.name: i for i, node in enumerate(pipeline.graph.nodes)}
    runs = [
        (place[instruction.node.name], instruction.kind != "send", number, instruction)
        for number, program in enumerate(programs)
        for instruction in program
    ]
    for _, _, number, instruction in sorted(runs, key=lambda run: run[:3]):
        groups[number].run_once(instruction)


def merged(parts: Iterable[Mapping[str, Mapping[int, Array]]], name: str) -> dict[int, Array]:
    """Return the parts of a value on the ranks of all groups that hold it."""
    found: dict[int, Array] = {}
    for values in parts:
        found.update(values.get(name, {}))
    return found
