"""The program of one rank, compiled to a flat list of bound calls.

The executor interprets its nodes for any number of ranks; here the one rank of a process has its
values in numbered slots, and each step runs the same calls. The first step also counts the live
bytes, which are those of every later step. Reductions start as soon as their operand is there, and
are awaited by the first node that reads a result. Every pass of a loop has calls of its own, since
its parts lie elsewhere; the slots are the same.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from shardwright.ir.errors import ExecutionError, ShardwrightError
from shardwright.ir.graph import Graph
from shardwright.ir.liveness import Loop, accumulates, dying_after
from shardwright.ir.text import node_text
from shardwright.ir.types import is_low
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.communication.rings import RingOperator
from shardwright.operators.info import Array
from shardwright.runtime.binding import Binding
from shardwright.runtime.communicator import Communicator, Parts
from shardwright.runtime.flat.buckets import Bucket
from shardwright.runtime.flat.calls import (
    Call,
    Runner,
    Slots,
    accumulating,
    computing,
    constant,
    cutting,
    exchanging,
    running,
    updating,
)
from shardwright.runtime.flat.constants import Constants
from shardwright.runtime.flat.inputs import Inputs
from shardwright.runtime.flat.rank_timeline import Kind, RunTimeline, kind_of, label
from shardwright.runtime.flat.reductions import Reductions
from shardwright.runtime.flat.segments import Segment, segments_of
from shardwright.runtime.instructions import Instruction, Local
from shardwright.runtime.live_memory import RankMemory
from shardwright.runtime.state import State

_BYTES_OF_A_MOVE = 2**16  # bytes that nodes touch between two questions to MPI
MOST_CALLS = 2**16  # most calls of a loop whose passes have their own, about 1 KiB each
FAILURES = (ValueError, TypeError, LookupError, ArithmeticError)


class Action(NamedTuple):
    """One call of a step.

    Parameters
    ----------
    call : callable
        Runs it, and returns the bytes that it held meanwhile.
    position : int
        The node.
    kind : str, optional
        What it is in a timeline; None if it is not shown.
    made, dead : tuple of int
        The slots that it fills, and those that are not read any more.
    """

    call: Call
    position: int
    kind: Kind | None
    made: tuple[int, ...] = ()
    dead: tuple[int, ...] = ()


@dataclass(frozen=True)
class Source:
    """What a flat program is made of.

    Parameters
    ----------
    graph : Graph
        The program.
    program : sequence of Instruction
        Its nodes.
    locals : mapping of str to Local
        The storage of every value.
    communicator : Communicator
        Hosts one rank.
    run : callable
        Runs a node that has no call of its own.
    binding : Binding
        Checks inputs and parameters.
    kept : frozenset of str
        The values that the step returns, or puts into the state.
    loop : Loop, optional
        Its loop over micro-batches.
    """

    graph: Graph
    program: Sequence[Instruction]
    locals: Mapping[str, Local]
    communicator: Communicator
    run: Runner
    binding: Binding
    kept: frozenset[str]
    loop: Loop | None = None

    def accumulates(self, item: Instruction) -> bool:
        """Return whether every pass of the loop adds to the result of a node."""
        return self.loop is not None and accumulates(item.node, self.loop.axes)


def is_short(loop: Loop | None) -> bool:
    """Return whether the calls of all passes of a loop fit into a list."""
    return loop is None or loop.passes * (loop.stop - loop.start) <= MOST_CALLS


class FlatProgram:
    """A program of one rank, ready to run.

    Parameters
    ----------
    source : Source
        The program and who runs it.

    Attributes
    ----------
    peak_bytes : int
        Peak bytes of live buffers of a step, 0 before the first one.
    host_peak_bytes : int
        The same of those in host memory.
    actions : tuple of Action
        What a step does, in order.
    """

    def __init__(self, source: Source) -> None:
        self._source, self.rank = source, source.communicator.ranks[0]
        self.peak_bytes = self.host_peak_bytes = 0
        self.places = {name: i for i, name in enumerate(source.locals)}
        self.slots: Slots = [None] * len(self.places)
        self.reductions = Reductions(source.communicator, self.slots)
        moving = [item for item in source.program if not source.accumulates(item)]
        started = self.reductions.started(moving) if source.graph.mesh else frozenset()
        self._segments = tuple(segments_of(source.program, source.loop, started, self.rank))
        self.program = tuple(item for segment in self._segments for item in segment.program)
        self._buckets = {k: b for segment in self._segments for k, b in segment.buckets.items()}
        distinct = {id(bucket): bucket for bucket in self._buckets.values()}
        self._numbers = {key: number for number, key in enumerate(distinct)}
        several = [name for name, bucket in self._buckets.items() if not bucket.is_single]
        self._packed = {self.places[name] for name in several}
        mesh = source.communicator.mesh
        self._inputs = Inputs(
            source.graph, source.locals, self.places, mesh, self.rank, source.binding
        )
        self._updates = [(name, self.places[new]) for name, new in source.graph.updates]
        self._old = {name for name, _ in self._updates}
        self._state: State = {}
        self._constants = Constants(self.rank, source.kept)
        self.actions = tuple(self._actions())
        self._calls = tuple((action.call, action.dead) for action in self.actions)

    # Preparation

    def _actions(self) -> Iterator[Action]:
        dying, sizes = self._dying(), [self._touched(item) for item in self.program]
        for segment in self._segments:
            for number in segment.passes:
                yield from self._of_pass(segment, number, dying, sizes)

    def _of_pass(
        self,
        segment: Segment,
        number: int,
        dying: Sequence[tuple[str, ...]],
        sizes: Sequence[int],
    ) -> Iterator[Action]:
        """Yield the calls of a part of the program; of a loop, those of one pass."""
        if number:
            yield Action(self._inputs.turning(self.slots, number), segment.first, None)
        lasting, begun, touched = self._lasting(segment, number), set[int](), 0
        for position, item in enumerate(segment.program, segment.first):
            for awaited in filter(begun.__contains__, self._awaited(item)):
                begun.discard(awaited)
                yield Action(self.reductions.waiting(awaited), position, "wait")
            bucket = segment.buckets.get(item.node.name)
            starts = bucket is not None and position - segment.first == bucket.last
            dead = [name for name in dying[position] if name not in lasting]
            if self._source.accumulates(item):
                yield self._accumulating(position, item, number, dead)
            elif bucket is None:
                own = item if segment.loop is None else item.of_pass(number)
                yield from self._of_node(position, own, dead)
            else:
                yield from self._of_bucket(position, item, bucket, dead, starts=starts)
            touched += sizes[position]
            if begun and touched >= _BYTES_OF_A_MOVE:
                touched = 0
                yield Action(self.reductions.move, position, "move")
            if starts:
                begun.add(self._numbers[id(bucket)])
        for awaited in sorted(begun):
            end = segment.first + len(segment.program) - 1
            yield Action(self.reductions.waiting(awaited), end, "wait")

    def _lasting(self, segment: Segment, number: int) -> frozenset[str]:
        """Return the values that the next pass reads, or adds to."""
        loop = segment.loop
        if loop is None or number == segment.passes[-1]:
            return frozenset()
        return loop.kept | loop.accumulated

    def _accumulating(
        self, position: int, item: Instruction, number: int, dying: Sequence[str]
    ) -> Action:
        loop = self._source.loop
        assert loop is not None
        call = accumulating(item, number, loop.passes, self.places, self.slots, self.rank)
        made = tuple(self.places[local.name] for local in item.results if not number)
        return Action(call, position, "compute", made, tuple(self.places[name] for name in dying))

    def _touched(self, item: Instruction) -> int:
        """Return the bytes that a node reads and writes."""
        names = (*item.node.operands, *(local.name for local in item.results))
        found = [self._source.locals[name] for name in names]
        return sum(prod(x.shapes.get(self.rank, ())) * x.dtype.itemsize for x in found)

    def _awaited(self, item: Instruction) -> list[int]:
        """Return the numbers of the buckets that a node reads."""
        read = [self._buckets.get(name) for name in item.node.operands]
        return [self._numbers[id(bucket)] for bucket in read if bucket is not None]

    def _dying(self) -> list[tuple[str, ...]]:
        """Return for each node the values that are not read any more."""
        source = self._source
        lasting = {p.name for p in source.graph.parameters if p.name not in self._old}
        found = dying_after([item.node for item in self.program], lasting, source.loop)
        return [tuple(name for name in names if name not in source.kept) for names in found]

    def _of_node(self, position: int, item: Instruction, dying: Sequence[str]) -> Iterator[Action]:
        made = tuple(self.places[local.name] for local in item.results)
        dead = tuple(self.places[name] for name in dying)
        yield Action(self._call(item, dying), position, kind_of(item), made, dead)
        replaced = tuple(name for name in dying if name in self._old)
        if replaced:
            yield Action(self._freeing(replaced), position, None)

    def _freeing(self, names: Sequence[str]) -> Call:
        """Return the call that takes parameters out of the state, which their update follows."""

        def call() -> float:
            for name in names:
                del self._state[name]
            return 0.0

        return call

    def _of_bucket(
        self,
        position: int,
        item: Instruction,
        bucket: Bucket,
        dying: Sequence[str],
        *,
        starts: bool,
    ) -> Iterator[Action]:
        number, name = self._numbers[id(bucket)], item.results[0].name
        source, target = self.places[item.node.operands[0]], self.places[name]
        dead = tuple(self.places[dying_name] for dying_name in dying)
        if bucket.is_single:
            call = self.reductions.starting_single(bucket, number, source, target, source in dead)
            yield Action(call, position, "communicate", (target,), dead)
            return
        begin = bucket.offsets[name]
        call = self.reductions.packing(bucket, number, source, target, begin)
        yield Action(call, position, "compute", (target,), dead)
        if starts:
            yield Action(self.reductions.starting(bucket, number), position, "communicate")

    def _call(self, item: Instruction, dying: Sequence[str]) -> Call:
        bound = self._bound(item)
        if bound is not None:
            return exchanging(item, self.places, self.slots, self.rank, bound)
        mesh, info = self._source.graph.mesh, item.info
        if mesh is not None and isinstance(info, Communication) and not info.is_collective:
            return cutting(item, self.places, self.slots, self.rank, mesh)
        if isinstance(info, Communication | RingOperator):
            return running(item, self.places, self.slots, self.rank, self._source.run)
        kept = self._source.kept
        if item.replaced and not any(item.node.operands[i] in kept for i in item.replaced):
            return updating(item, self.places, self.slots, self.rank, dying)
        array = self._constants.of(item)
        if array is not None:
            return constant(self.places[item.results[0].name], array, self.slots)
        low = any(is_low(self._source.locals[name].dtype) for name in item.node.operands)
        return computing(item, self.places, self.slots, self.rank, low)

    def _bound(self, item: Instruction) -> Callable[[Array], Array] | None:
        """Return the call of a collective whose members hold parts of one shape, if there is."""
        bound = getattr(self._source.communicator, "bound", None)
        moves = isinstance(item.info, Communication) and item.info.is_collective and item.even
        if bound is None or not moves or not self._source.graph.mesh:
            return None
        shape = self._source.locals[item.node.operands[0]].shapes[self.rank]
        found: Callable[[Array], Array] = bound(item.info, item.axes, shape)
        return found

    # Execution

    def step(
        self,
        inputs: Mapping[str, Array | Parts],
        state: State,
        timeline: RunTimeline | None = None,
    ) -> None:
        """Run the program once, on whole inputs or slices of them.

        The results are in `slots` until `results` takes them.

        Raises
        ------
        ExecutionError
            If inputs or state do not fit the program, or an operator fails.
        """
        slots = self.slots
        self._inputs.into(slots, inputs, state)
        self._state = state
        calls = self._calls if timeline is None else self._timed(timeline)
        memory = None if self.peak_bytes else self._begin_count()
        done = 0
        try:
            for done, (call, dead) in enumerate(calls):
                held = call()
                if memory is not None:
                    self._count(memory, self.actions[done], held)
                for place in dead:
                    slots[place] = None
        except BaseException as error:
            self.clear()
            self._fail(error, self.program[self.actions[done].position])
            raise
        if memory is not None:
            self.peak_bytes, self.host_peak_bytes = memory.device.peak, memory.host.peak
            self._inputs.settle(self._kept_arrays())

    def _timed(self, timeline: RunTimeline) -> Iterator[tuple[Call, tuple[int, ...]]]:
        """Yield the calls of a step, which tell a timeline when they ran."""
        self.reductions.timeline = timeline

        def timed(action: Action) -> Call:
            kind, name = action.kind, label(self.program[action.position])
            if kind is None:
                return action.call

            def call() -> float:
                begin = timeline.now
                held = action.call()
                timeline.add(kind, name, begin)
                return held

            return call

        return ((timed(action), action.dead) for action in self.actions)

    def results(self, names: Iterable[str]) -> dict[str, dict[int, Array]]:
        """Return values of the step."""
        return {name: {self.rank: self.slots[self.places[name]]} for name in names}

    def update(self, state: State) -> None:
        """Put the parameters after the step into the state."""
        slots, rank = self.slots, self.rank
        state.update([(name, {rank: slots[place]}) for name, place in self._updates])

    def clear(self) -> None:
        """Forget the values of a step."""
        self.slots[:] = [None] * len(self.slots)
        self._inputs.slices.clear()
        self.reductions.forget()

    def _fail(self, error: BaseException, item: Instruction) -> None:
        """Raise an error that names the node, for those of kernels."""
        if isinstance(error, FAILURES) and not isinstance(error, ShardwrightError):
            what = f"`{item.info.name}` failed: {error}"
            raise ExecutionError(what, node_text(item.node)) from error

    # Memory

    def _begin_count(self) -> RankMemory:
        values = self._source.graph.values
        hosted = [self.places[name] for name, value in values.items() if value.type.in_host]
        memory = RankMemory(frozenset(hosted))
        for place, array in enumerate(self.slots):
            for part in () if array is None else self._inputs.slices.get(place, (array,)):
                memory.hold(place, part)
        return memory

    def _count(self, memory: RankMemory, action: Action, held: float) -> None:
        memory.device.reach(held)
        for place in action.made:
            memory.hold(place, self._buffer(place))
        for place in action.dead:
            for part in self._inputs.slices.get(place, (self._buffer(place),)):
                memory.release(place, part)

    def _buffer(self, place: int) -> Array:
        """Return what a slot keeps alive: of a part of a bucket the whole."""
        array: Array = self.slots[place]
        return array if place not in self._packed else array.base  # type: ignore[return-value]

    def _kept_arrays(self) -> list[Array]:
        return [self.slots[self.places[name]] for name in self._source.kept]
