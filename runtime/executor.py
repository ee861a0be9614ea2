"""The executor: runs a program on numpy, for all ranks in this process.

A program without a mesh runs on one device. Where a graph has a mesh but its values have no layouts
(a hand-written parallel program), every rank runs the whole program on its own values.

The nodes of a loop over micro-batches (`ir.liveness`) run once for each pass, on the slices of the
pass; what they reduce or gather over the passes is added up or written in place.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Literal

import numpy as np

from shardwright.ir.errors import ExecutionError, ShardwrightError
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.layout import Layout
from shardwright.ir.liveness import Loop, accumulates, check_loop, dying_values, loop_of
from shardwright.ir.text import node_text
from shardwright.ir.types import is_low, numpy_dtype
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.info import Array, OperatorInfo, operator_info
from shardwright.operators.rule import ShardView
from shardwright.runtime.accumulators import Accumulators
from shardwright.runtime.communicator import ONE_DEVICE, Communicator
from shardwright.runtime.memory import LiveBytes
from shardwright.runtime.state import State, local_shapes, scatter
from shardwright.runtime.updates import replaced_operands, update_in_place

Environment = dict[str, dict[int, Array]]  # value -> rank -> slice


@dataclass(frozen=True)
class StepResult:
    """The results of one step.

    Parameters
    ----------
    outputs : mapping of str to (mapping of int to array)
        The slice of each output on each hosted rank.
    fetched : mapping of str to (mapping of int to array)
        The same for the fetched values.
    peak_bytes : int
        Peak bytes of live buffers on one rank, parameters included.
    """

    outputs: Environment
    fetched: Environment
    peak_bytes: int


@dataclass(frozen=True)
class _Local:
    """The storage of one result on every rank."""

    name: str
    shapes: Mapping[int, tuple[int, ...]]
    dtype: "np.dtype[np.generic]"


@dataclass(frozen=True)
class Instruction:
    """A node, ready to run.

    `views` holds the part of each hosted rank, for each pass over micro-batches; `axes` the groups
    of a communication operator; `replaced` the operands that an update overwrites.
    """

    node: Node
    info: OperatorInfo
    views: tuple[Mapping[int, ShardView], ...]
    axes: tuple[str, ...]
    results: tuple[_Local, ...]
    last_used: tuple[str, ...]
    replaced: tuple[int, ...] = ()


@dataclass
class _Step:
    """The state of one step: its values, and the bytes that are live on one rank."""

    values: Environment
    state: State
    rank: int
    kept: frozenset[str]
    slices: Mapping[str, Sequence[dict[int, Array]]]  # of inputs, for each pass
    memory: LiveBytes = field(default_factory=LiveBytes)

    def hold(self, name: str) -> None:
        """Count a value; of an input the slices of all passes."""
        for parts in self.slices.get(name, (self.values[name],)):
            self.memory.hold(parts[self.rank])

    def release(self, name: str) -> None:
        """Drop a value."""
        parts = self.values.pop(name)
        for part in self.slices.get(name, (parts,)):
            self.memory.release(part[self.rank])


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
        self._replaced = replaced_operands(graph) if in_place else {}
        self.mesh = graph.mesh or ONE_DEVICE
        if communicator.mesh.shape != self.mesh.shape or communicator.mesh.names != self.mesh.names:
            raise ExecutionError(
                f"the graph `{graph.name}` has the mesh {self.mesh}, the communicator has "
                f"{communicator.mesh}"
            )
        self._locals = {name: self._local(value) for name, value in graph.values.items()}
        self._updated = {name for name, _ in graph.updates}
        check_loop(graph)
        self.loop: Loop | None = loop_of(graph)
        self._views: dict[object, tuple[Mapping[int, ShardView], ...]] = {}
        self._program = self._prepare()
        # Numbers of 16 bits overflow in the course of training; dynamic loss scales look for it.
        overflows = any(is_low(local.dtype) for local in self._locals.values())
        overflows |= any(node.operator == "loss_scale_update" for node in graph.nodes)
        self._overflows: Literal["ignore"] | None = "ignore" if overflows else None

    # Preparation

    def _local(self, value: Value) -> _Local:
        dtype = numpy_dtype(value.type.dtype, self.float_dtype)
        return _Local(value.name, local_shapes(value, self.mesh, self.communicator.ranks), dtype)

    def _prepare(self) -> tuple[Instruction, ...]:
        released = dying_values(self.graph, self._updated)
        program = []
        for node, names in zip(self.graph.nodes, released, strict=True):
            try:
                program.append(self._instruction(node, names))
            except ShardwrightError as error:
                raise ExecutionError(error.what, node_text(node), error.hint) from None
        return tuple(program)

    def _instruction(self, node: Node, released: tuple[str, ...]) -> Instruction:
        if node.operator == "redistribute":
            raise ExecutionError(
                f"`{node.name}` is a redistribution, which no rank can run",
                hint="lower it to collectives first",
            )
        operands = self.graph.operand_values(node)
        info = operator_info(node.operator, [value.type for value in operands], node.attributes)
        results = tuple(self._locals[value.name] for value in node.results)
        layouts = [value.layout for value in (*operands, *node.results)]
        bare = all(layout is None for layout in layouts)
        axes: tuple[str, ...] = ()
        if isinstance(info, Communication):
            # In a hand-written program no axes means all ranks.
            axes = info.axes or (self.mesh.names if bare else ())
        views = self._views_of(info, () if bare else _decided(layouts), len(operands))
        replaced = self._replaced.get(node.name, ())
        return Instruction(node, info, views, axes, results, released, replaced)

    def _views_of(
        self, info: OperatorInfo, layouts: tuple[Layout, ...], operands: int
    ) -> tuple[Mapping[int, ShardView], ...]:
        """Return the view of each hosted rank, shared by nodes of equal operators and layouts."""
        key = (info, layouts)  # equal operators are one instance
        if key not in self._views:
            self._views[key] = self._make_views(info, layouts[:operands], layouts[operands:])
        return self._views[key]

    def _make_views(
        self, info: OperatorInfo, taken: tuple[Layout, ...], left: tuple[Layout, ...]
    ) -> tuple[Mapping[int, ShardView], ...]:
        ranks = self.communicator.ranks
        if not left:
            return (dict.fromkeys(ranks, info.rule.view()),) * self.mesh.passes
        strategy, found = info.infer_layouts(
            taken, self.mesh, [layout.reduced() for layout in left]
        )
        if found != left:
            raise ExecutionError(
                f"the results are {', '.join(map(str, left))}, "
                f"`{info.name}` leaves {', '.join(map(str, found))}"
            )
        shared: dict[tuple[int, ...], ShardView] = {}
        views: list[dict[int, ShardView]] = []
        for number in range(self.mesh.passes):
            views.append({})
            for rank in ranks:
                at = rank + number * self.mesh.size
                place = tuple(self.mesh.index(at, axes) for _, axes in strategy.assignment)
                if place not in shared:
                    shared[place] = info.rule.view(strategy, self.mesh, at)
                views[number][rank] = shared[place]
        return tuple(views)

    # Execution

    def step(
        self, inputs: Mapping[str, Array], state: State, fetch: Sequence[str] = ()
    ) -> StepResult:
        """Run the program once, and update the state.

        Parameters
        ----------
        inputs : mapping of str to array
            Whole input tensors; each rank takes its slice.
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
        kept = self._kept(fetch)
        values = self._bind(inputs, state)
        step = _Step(values, state, self.communicator.ranks[0], kept, self._slices(inputs, values))
        for name in step.values:
            step.hold(name)
        begin, end = (self.loop.start, self.loop.stop) if self.loop else (len(self._program),) * 2
        with np.errstate(over=self._overflows, invalid=self._overflows):
            self._run_all(self._program[:begin], step)
            if self.loop is not None:
                self._run_loop(self._program[begin:end], self.loop, step)
            self._run_all(self._program[end:], step)
        result = StepResult(
            {name: values[name] for name in self.graph.outputs},
            {name: values[name] for name in fetch},
            step.memory.peak,
        )
        state.update([(name, values[new]) for name, new in self.graph.updates])
        return result

    def _run_all(self, program: Iterable[Instruction], step: "_Step") -> None:
        for instruction in program:
            if any(instruction.node.operands[i] in step.kept for i in instruction.replaced):
                instruction = replace(instruction, replaced=())  # a fetched value is returned
            self._run(instruction, step.values)
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
                    self._run(instruction, step.values, number)
                    for local in instruction.results:
                        step.hold(local.name)
                used = instruction.last_used
                self._free([n for n in used if last or n not in loop.kept], step)

    def _accumulate(
        self, instruction: Instruction, totals: Accumulators, step: "_Step", number: int
    ) -> None:
        assert isinstance(instruction.info, Communication)
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

    def _slices(
        self, inputs: Mapping[str, Array], values: Environment
    ) -> dict[str, list[dict[int, Array]]]:
        """Return the slices of inputs that are split over the passes, for each pass."""
        slices = {}
        for value in self.graph.inputs:
            if value.layout is None or not value.layout.mentions(self.mesh.in_time):
                continue
            whole, others = inputs[value.name], range(1, self.mesh.passes)
            parts = (scatter(value, whole, self.communicator, self.float_dtype, i) for i in others)
            slices[value.name] = [values[value.name], *parts]
        return slices

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

    def _bind(self, inputs: Mapping[str, Array], state: State) -> Environment:
        expected = {value.name for value in self.graph.inputs}
        if expected != set(inputs):
            raise ExecutionError(
                f"the inputs are {sorted(inputs)}, "
                f"graph `{self.graph.name}` expects {sorted(expected)}"
            )
        values = {}
        for value in self.graph.inputs:
            whole = inputs[value.name]
            values[value.name] = scatter(value, whole, self.communicator, self.float_dtype)
        for parameter in self.graph.parameters:
            values[parameter.name] = self._held(parameter.value, state)
        return values

    @cached_property
    def _made_in_passes(self) -> frozenset[str]:
        assert self.loop is not None
        body = self.graph.nodes[self.loop.start : self.loop.stop]
        return frozenset(r.name for n in body for r in n.results) - self.loop.accumulated

    def _held(self, value: Value, state: State) -> dict[int, Array]:
        if value.name not in state:
            raise ExecutionError(
                f"the state has no value for the parameter `{value.name}`",
                hint="start from `initialize` or a checkpoint; a failed step leaves gaps",
            )
        local, parts = self._locals[value.name], state[value.name]
        for rank in self.communicator.ranks:
            part = parts.get(rank)
            if part is None or part.shape != local.shapes[rank] or part.dtype != local.dtype:
                found = "nothing" if part is None else f"{part.dtype}{list(part.shape)}"
                raise ExecutionError(
                    f"the state of `{value.name}` on rank {rank} is {found}, "
                    f"expected {local.dtype}{list(local.shapes[rank])}"
                )
        return parts

    def _run(self, instruction: Instruction, values: Environment, number: int = 0) -> None:
        operands = [values[name] for name in instruction.node.operands]
        try:
            if isinstance(instruction.info, Communication):
                results = [self._move(instruction.info, instruction, operands[0], number)]
            elif instruction.replaced:
                kernel, views = partial(_kernel, instruction.info), instruction.views[number]
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

    def _move(
        self, info: Communication, instruction: Instruction, parts: dict[int, Array], number: int
    ) -> dict[int, Array]:
        axes, local = instruction.axes, instruction.results[0]
        if self.graph.mesh is None:
            views = instruction.views[number]
            moved = {rank: info.kernel(views[rank], p) for rank, p in parts.items()}
        elif not info.is_collective:
            extents = tuple(self.mesh.sizes[axis] for axis in axes)
            moved = {
                rank: info.own_part(part, self.mesh.index(rank, axes), extents)
                for rank, part in parts.items()
            }
        else:
            moved = self.communicator.exchange(info, axes, parts)
        return {rank: _settled(part, local, rank, instruction) for rank, part in moved.items()}

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
                found = _kernel(info, view, *arrays)
                whole = found if isinstance(found, tuple) else (found,)
                made = done[key] = [
                    _settled(array, local, rank, instruction)
                    for array, local in zip(whole, locals_, strict=True)
                ]
            for parts, array in zip(results, made, strict=True):
                parts[rank] = array
        return results


def _decided(layouts: Iterable[Layout | None]) -> tuple[Layout, ...]:
    known = []
    for layout in layouts:
        if layout is None:
            raise ExecutionError("some operands and results have a layout and some have none")
        known.append(layout)
    return tuple(known)


def _kernel(info: OperatorInfo, view: ShardView, *operands: Array) -> Array | tuple[Array, ...]:
    """Run a kernel; operands of 16 bits are computed in float32, as devices do.

    The results are rounded once, when they are stored.
    """
    return info.kernel(view, *(x.astype(np.float32) if is_low(x.dtype) else x for x in operands))


def _settled(array: Array, local: _Local, rank: int, instruction: Instruction) -> Array:
    """Return a result in its declared type, as a view of no larger buffer."""
    settled: Array = np.asarray(array, local.dtype)
    if settled.shape != local.shapes[rank]:
        raise ExecutionError(
            f"`{instruction.info.name}` gave a slice of shape {settled.shape} for "
            f"`{local.name}`, expected {local.shapes[rank]}",
            node_text(instruction.node),
        )
    owner = settled.base
    if owner is not None and getattr(owner, "nbytes", 0) > settled.nbytes:
        return settled.copy()
    return settled
