"""The executor: runs a program on numpy, for all ranks in this process.

A program without a mesh runs on one device. Where a graph has a mesh but its values have no layouts
(a hand-written parallel program), every rank runs the whole program on its own values.

The nodes of a loop over micro-batches (`ir.liveness`) run once for each pass, on the slices of the
pass; what they reduce or gather over the passes is added up or written in place. A program with
pipeline stages runs by its schedule (`runtime.pipeline`).
"""

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from shardwright.dataflow.stages import Pipeline, pipeline_of
from shardwright.ir.errors import ExecutionError, ShardwrightError
from shardwright.ir.graph import Graph
from shardwright.ir.liveness import Loop, accumulates, check_loop, dying_values, loop_of
from shardwright.ir.text import node_text
from shardwright.ir.types import is_low
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.communication.rings import RingOperator
from shardwright.operators.info import Array
from shardwright.runtime.accumulators import Accumulators
from shardwright.runtime.binding import Binding
from shardwright.runtime.communicator import ONE_DEVICE, Communicator, Parts
from shardwright.runtime.faults import STANDING
from shardwright.runtime.flat.flat_program import FlatProgram, Source, is_short
from shardwright.runtime.flat.rank_timeline import RunTimeline, kind_of, label
from shardwright.runtime.instructions import Instruction, Preparation
from shardwright.runtime.kernels import run_kernel, settled, widened
from shardwright.runtime.live_memory import RankMemory, TurnsMemory
from shardwright.runtime.pipeline import (
    GroupInstructions,
    GroupStep,
    merged,
    prepare_groups,
    run_pipeline,
)
from shardwright.runtime.state import State
from shardwright.runtime.under_way import UnderWay
from shardwright.runtime.updates import update_in_place

Environment = dict[str, dict[int, Array]]  # value -> rank -> slice
Values = MutableMapping[str, dict[int, Array]]


@dataclass(frozen=True)
class StepResult:
    """The results of one step.

    Parameters
    ----------
    outputs : mapping of str to (mapping of int to array)
        The slice of each output on each hosted rank; of one in a pipeline stage, on those of the
        stage.
    fetched : mapping of str to (mapping of int to array)
        The same for the fetched values.
    peak_bytes : int
        Peak bytes of live buffers on one rank, parameters included.
    peak_bytes_by_group : mapping of int to int
        The same for each device group of a pipeline of which ranks are hosted; `peak_bytes` is the
        greatest.
    host_peak_bytes : int
        Peak bytes of the tensors of one rank in host memory.
    """

    outputs: Environment
    fetched: Environment
    peak_bytes: int
    peak_bytes_by_group: Mapping[int, int] = field(default_factory=dict)
    host_peak_bytes: int = 0


@dataclass
class _Step:
    """The state of one step: its values, and the bytes that are live on one rank."""

    values: Environment
    state: State
    rank: int
    kept: frozenset[str]
    slices: Mapping[str, Sequence[dict[int, Array]]]  # of inputs, for each pass
    memory: RankMemory

    def hold(self, name: str) -> None:
        """Count a value; of an input the slices of all passes."""
        for parts in self.slices.get(name, (self.values[name],)):
            self.memory.hold(name, parts[self.rank])

    def release(self, name: str) -> None:
        """Drop a value."""
        parts = self.values.pop(name)
        for part in self.slices.get(name, (parts,)):
            self.memory.release(name, part[self.rank])


class Executor:
    """A program, prepared for execution step by step.

    Parameters
    ----------
    graph : Graph
        The program: of one device, partitioned, or hand-written for a mesh.
    communicator : Communicator
        The communicator, which hosts ranks of the graph's mesh.
    float_dtype : str, optional
        Stores every floating-point tensor in this type.
    in_place : bool
        Whether updates overwrite the arrays of the state, which nobody else may use then.

    Raises
    ------
    ExecutionError
        If the program cannot run: it has a redistribution, layouts do not fit operators, or the
        communicator has another mesh.
    """

    steps_are_equal = True  # a step does nothing but run the nodes

    def __init__(
        self,
        graph: Graph,
        communicator: Communicator,
        *,
        float_dtype: str | None = None,
        in_place: bool = False,
    ) -> None:
        self.graph = graph
        self.communicator = communicator
        self.float_dtype = float_dtype
        self.mesh = graph.mesh or ONE_DEVICE
        if communicator.mesh.shape != self.mesh.shape or communicator.mesh.names != self.mesh.names:
            raise ExecutionError(
                f"the graph `{graph.name}` has the mesh {self.mesh}, the communicator has "
                f"{communicator.mesh}"
            )
        self._prepared = Preparation(graph, communicator, float_dtype, in_place=in_place)
        self._locals = self._prepared.locals
        self.timeline: RunTimeline | None = None
        # Where parts are known to have one shape, processes need not ask each other.
        self._even_exchange = getattr(communicator, "exchange_even", communicator.exchange)
        self._binding = Binding(graph, self._locals, communicator, float_dtype)
        self._hosted = frozenset(n for n, value in graph.values.items() if value.type.in_host)
        self._under_way = UnderWay(communicator)
        self._updated = {name for name, _ in graph.updates}
        check_loop(graph)
        self.loop: Loop | None = loop_of(graph)
        self.pipeline = pipeline_of(graph)
        if self.pipeline is None:
            self._program = self._prepare()
        else:
            self._groups = prepare_groups(self.pipeline, self._prepared)
        one = len(communicator.ranks) == 1 and self.pipeline is None
        self._is_flat = one and self.steps_are_equal and is_short(self.loop)
        self._flat: dict[tuple[str, ...], FlatProgram] = {}
        # Numbers of 16 bits overflow in the course of training; dynamic loss scales look for it.
        overflows = any(is_low(local.dtype) for local in self._locals.values())
        overflows |= any(node.operator == "loss_scale_update" for node in graph.nodes)
        self._expects_overflows = overflows

    # Preparation

    def _prepare(self) -> tuple[Instruction, ...]:
        released = dying_values(self.graph, self._updated)
        ranks = self.communicator.ranks
        pairs = zip(self.graph.nodes, released, strict=True)
        return tuple(self._prepared.instruction(node, names, ranks) for node, names in pairs)

    # Execution

    def _errors(self) -> np.errstate:
        """Return the context in which overflows pass without a warning.

        A run that diverges is told by its losses; what the caller of numpy asks for stands.
        """
        asked, low = np.geterr(), self._expects_overflows
        return np.errstate(
            over="ignore" if low or asked["over"] == "warn" else None,
            invalid="ignore" if low or asked["invalid"] == "warn" else None,
            divide="ignore" if asked["divide"] == "warn" else None,
        )

    def watch(self, timeline: RunTimeline) -> None:
        """Record in a timeline what the next steps do when."""
        self.timeline = self._under_way.timeline = timeline

    def step(
        self, inputs: Mapping[str, Array | Parts], state: State, fetch: Sequence[str] = ()
    ) -> StepResult:
        """Run the program once, and update the state.

        Parameters
        ----------
        inputs : mapping of str to array
            Whole input tensors, of which each rank takes its slice; or the slice of each rank.
        state : State
            Parameters and buffers. An updated parameter is freed at its last use; a step that fails
            leaves the state without those already freed.
        fetch : sequence of str
            Names of values to return in addition to the outputs.

        Raises
        ------
        ExecutionError
            If inputs, state or names do not fit the program, or an operator fails.
        """
        if self.timeline is not None:
            self.timeline.begin_step()
        if self._is_flat:
            return self._run_flat(inputs, state, tuple(fetch))
        kept = self._kept(fetch)
        values = self._bind(inputs, state)
        slices = self._binding.slices(inputs, values)
        if self.pipeline is not None:
            return self._run_groups(self.pipeline, values, slices, state, fetch)
        memory = RankMemory(self._hosted)
        step = _Step(values, state, self.communicator.ranks[0], kept, slices, memory)
        for name in step.values:
            step.hold(name)
        begin, end = (self.loop.start, self.loop.stop) if self.loop else (len(self._program),) * 2
        with self._errors():
            self._run_all(self._program[:begin], step)
            if self.loop is not None:
                self._run_loop(self._program[begin:end], self.loop, step)
            self._run_all(self._program[end:], step)
        self._under_way.settle_all()
        result = StepResult(
            {name: values[name] for name in self.graph.outputs},
            {name: values[name] for name in fetch},
            memory.device.peak,
            host_peak_bytes=memory.host.peak,
        )
        state.update([(name, values[new]) for name, new in self.graph.updates])
        return result

    def _run_flat(
        self, inputs: Mapping[str, Array | Parts], state: State, fetch: tuple[str, ...]
    ) -> StepResult:
        """Run the program of the one rank of this process, and update the state."""
        flat = self._flat.get(fetch)
        if flat is None:
            flat = self._flat[fetch] = self._flattened(fetch)
        self._binding.check_names(inputs)
        with self._errors():
            flat.step(inputs, state, self.timeline)
        outputs, fetched = flat.results(self.graph.outputs), flat.results(fetch)
        result = StepResult(outputs, fetched, flat.peak_bytes, {}, flat.host_peak_bytes)
        flat.update(state)
        flat.clear()
        return result

    def _flattened(self, fetch: tuple[str, ...]) -> FlatProgram:
        return FlatProgram(
            Source(
                self.graph,
                self._program,
                self._locals,
                self.communicator,
                self._execute,
                self._binding,
                self._kept(fetch),
                self.loop,
            )
        )

    def _run_groups(
        self,
        pipeline: Pipeline,
        values: Environment,
        slices: Mapping[str, Sequence[dict[int, Array]]],
        state: State,
        fetch: Sequence[str],
    ) -> StepResult:
        """Run a program with pipeline stages once, and update the state."""
        kept = self._kept(fetch)
        steps = [
            self._group_step(group, pipeline, values, slices, state, kept) for group in self._groups
        ]
        values.clear()
        for step in steps:
            step.begin()
        with self._errors():
            run_pipeline(pipeline, steps)
        held = [step.values for step in steps]
        peaks = {step.instructions.program.group: step.memory.device.peak for step in steps}
        result = StepResult(
            {name: merged(held, name) for name in self.graph.outputs},
            {name: merged(held, name) for name in fetch},
            max(peaks.values()),
            peaks,
            max(step.memory.host.peak for step in steps),
        )
        after = {**state, **{name: merged(held, new) for name, new in self.graph.updates}}
        names = [parameter.name for parameter in self.graph.parameters]
        state.clear()  # in an order that all processes have
        state.update((name, after[name]) for name in dict.fromkeys((*names, *after)))
        return result

    def _group_step(
        self,
        group: GroupInstructions,
        pipeline: Pipeline,
        values: Environment,
        slices: Mapping[str, Sequence[dict[int, Array]]],
        state: State,
        kept: frozenset[str],
    ) -> GroupStep:
        names = (*group.program.inputs, *group.program.parameters)

        def run(instruction: Instruction, values: Values, number: int) -> float:
            return self._run(_fetching(instruction, kept), values, number)

        return GroupStep(
            group,
            self.communicator,
            run,
            state,
            kept,
            self.mesh.passes,
            pipeline.loop.axes if pipeline.loop else (),
            slices,
            {name: {rank: values[name][rank] for rank in group.ranks} for name in names},
            RankMemory(self._hosted),
            self.timeline,
        )

    def _run_all(self, program: Iterable[Instruction], step: "_Step") -> None:
        for instruction in program:
            step.memory.device.reach(self._run(_fetching(instruction, step.kept), step.values))
            for local in instruction.results:
                step.hold(local.name)
            self._free(instruction.last_used, step)

    def _run_loop(self, body: Sequence[Instruction], loop: Loop, step: "_Step") -> None:
        """Run the passes; accumulators, and values from before the loop, live to its end."""
        totals = Accumulators()
        for number in range(loop.passes):
            last = number == loop.passes - 1
            step.values.update({name: parts[number] for name, parts in step.slices.items()})
            for instruction in body:
                if accumulates(instruction.node, loop.axes):
                    self._accumulate(instruction, totals, step, number)
                else:
                    step.memory.device.reach(self._run(instruction, step.values, number))
                    for local in instruction.results:
                        step.hold(local.name)
                used = instruction.last_used
                self._free([n for n in used if last or n not in loop.kept], step)

    def _accumulate(
        self, instruction: Instruction, totals: Accumulators, step: "_Step", number: int
    ) -> None:
        assert isinstance(instruction.info, Communication)
        self._under_way.settle(instruction.node.operands)
        name, parts = instruction.node.name, step.values[instruction.node.operands[0]]
        if totals.add(name, instruction.info, parts, number, self.mesh.passes):
            step.values[name] = totals.values[name]
            step.hold(name)

    def _free(self, names: Iterable[str], step: "_Step") -> None:
        for name in names:
            if name not in step.kept:
                step.release(name)
                if name in self._updated:
                    del step.state[name]

    def _kept(self, fetch: Sequence[str]) -> frozenset[str]:
        for name in fetch:
            if name not in self._locals:
                raise ExecutionError(f"graph `{self.graph.name}` has no value `{name}` to fetch")
            if self.loop is not None and name in self._made_in_passes:
                raise ExecutionError(
                    f"`{name}` is made anew in every pass over micro-batches, it cannot be fetched",
                    hint="fetch what the passes accumulate",
                )
        return self.graph.kept() | frozenset(fetch)

    def _bind(self, inputs: Mapping[str, Array | Parts], state: State) -> Environment:
        return self._binding.values(inputs, state)

    @cached_property
    def _made_in_passes(self) -> frozenset[str]:
        assert self.loop is not None
        body = self.graph.nodes[self.loop.start : self.loop.stop]
        return frozenset(r.name for n in body for r in n.results) - self.loop.accumulated

    def _run(self, instruction: Instruction, values: Values, number: int = 0) -> float:
        """Run a node; return the bytes that a rank holds meanwhile, beside operands."""
        self._under_way.settle(instruction.node.operands)
        if self.timeline is None:
            return self._execute(instruction, values, number)
        begin = self.timeline.now
        held = self._execute(instruction, values, number)
        self.timeline.add(kind_of(instruction), label(instruction), begin)
        return held

    def _execute(self, instruction: Instruction, values: Values, number: int = 0) -> float:
        operands, held = [values[name] for name in instruction.node.operands], 0.0
        try:
            if isinstance(instruction.info, Communication):
                results = [self._move(instruction.info, instruction, operands[0], number)]
            elif isinstance(instruction.info, RingOperator):
                results, held = self._take_turns(instruction.info, instruction, operands, number)
            elif instruction.replaced:
                kernel, views = partial(run_kernel, instruction.info), instruction.views[number]
                results = update_in_place(kernel, views, operands, instruction.replaced)
            else:
                results = self._compute(instruction, operands, number)
        except ShardwrightError:
            raise
        except (ValueError, TypeError, LookupError, ArithmeticError) as error:
            what = f"`{instruction.info.name}` failed: {error}"
            raise ExecutionError(what, node_text(instruction.node)) from error
        for local, parts in zip(instruction.results, results, strict=True):
            values[local.name] = parts
        return held

    def _move(
        self, info: Communication, instruction: Instruction, parts: dict[int, Array], number: int
    ) -> dict[int, Array]:
        axes, local = instruction.axes, instruction.results[0]
        STANDING.value = local.name
        if self.graph.mesh is None:
            views = instruction.views[number]
            moved = {rank: info.kernel(views[rank], p) for rank, p in parts.items()}
        elif not info.is_collective:
            moved = {
                rank: info.own_part(part, *info.place(rank, axes, self.mesh))
                for rank, part in parts.items()
            }
        else:
            overlapped = self.pipeline is None and self._under_way.start(
                local.name, info, axes, parts
            )
            exchange = self._even_exchange if instruction.even else self.communicator.exchange
            moved = overlapped or exchange(info, axes, parts)
        return {rank: settled(part, local, rank, instruction) for rank, part in moved.items()}

    def _take_turns(
        self,
        info: RingOperator,
        instruction: Instruction,
        operands: Sequence[Mapping[int, Array]],
        number: int,
    ) -> tuple[list[dict[int, Array]], float]:
        """Run an operator whose ranks pass parts round; return what the first one holds, too."""
        STANDING.value = instruction.results[0].name
        extents, memory = [self.mesh.sizes[axis] for axis in info.axes], None
        members = {}
        for rank, view in instruction.views[number].items():
            own = [widened(parts[rank]) for parts in operands]
            members[rank] = info.turns(view, self.mesh.index(rank, info.axes), extents, *own)
            if memory is None:
                memory = TurnsMemory(own, operands[0][rank].nbytes / max(own[0].nbytes, 1))
                members[rank] = memory.watched(members[rank])
        found = self.communicator.take_turns(info.axes, members)
        parts_of = [
            {rank: settled(f[i], local, rank, instruction) for rank, f in found.items()}
            for i, local in enumerate(instruction.results)
        ]
        return parts_of, memory.peak if memory is not None else 0.0

    def _compute(
        self, instruction: Instruction, operands: Sequence[Mapping[int, Array]], number: int
    ) -> list[dict[int, Array]]:
        """Run the kernel on every hosted rank.

        Ranks with the same view and the same operand arrays share the result.
        """
        info, locals_ = instruction.info, instruction.results
        results: list[dict[int, Array]] = [{} for _ in locals_]
        done: dict[tuple[int, ...], list[Array]] = {}
        for rank, view in instruction.views[number].items():
            arrays = [parts[rank] for parts in operands]
            key = (id(view), *map(id, arrays))
            made = done.get(key)
            if made is None:
                found = run_kernel(info, view, *arrays)
                whole = found if isinstance(found, tuple) else (found,)
                made = done[key] = [
                    settled(array, local, rank, instruction)
                    for array, local in zip(whole, locals_, strict=True)
                ]
            for parts, array in zip(results, made, strict=True):
                parts[rank] = array
        return results


def _fetching(instruction: Instruction, kept: frozenset[str]) -> Instruction:
    """Return a node that overwrites no value which the step returns."""
    if any(instruction.node.operands[i] in kept for i in instruction.replaced):
        return replace(instruction, replaced=())
    return instruction
