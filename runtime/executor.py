"""The executor: runs a program on numpy, for all ranks in this process.

A program without a mesh runs on one device. Where a graph has a mesh but its values have no layouts
(a hand-written parallel program), every rank runs the whole program on its own values.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.ir.errors import ExecutionError, ShardwrightError
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.layout import Layout
from shardwright.ir.liveness import dying_values
from shardwright.ir.text import node_text
from shardwright.ir.types import is_low, numpy_dtype
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.info import Array, OperatorInfo, operator_info
from shardwright.operators.rule import ShardView
from shardwright.runtime.communicator import ONE_DEVICE, Communicator
from shardwright.runtime.memory import LiveBytes
from shardwright.runtime.state import State, local_shapes, scatter

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

    `views` holds the part of each hosted rank, `axes` the groups of a communication operator.
    """

    node: Node
    info: OperatorInfo
    views: Mapping[int, ShardView]
    axes: tuple[str, ...]
    results: tuple[_Local, ...]
    last_used: tuple[str, ...]


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

    Raises
    ------
    ExecutionError
        If the program cannot run: it has a redistribution, layouts do not fit operators, or the
        communicator has another mesh.
    """

    def __init__(
        self, graph: Graph, communicator: Communicator, *, float_dtype: str | None = None
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
        self._locals = {name: self._local(value) for name, value in graph.values.items()}
        self._updated = {name for name, _ in graph.updates}
        self._views: dict[object, Mapping[int, ShardView]] = {}
        self._program = self._prepare()

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
        return Instruction(node, info, views, axes, results, released)

    def _views_of(
        self, info: OperatorInfo, layouts: tuple[Layout, ...], operands: int
    ) -> Mapping[int, ShardView]:
        """Return the view of each hosted rank, shared by nodes of equal operators and layouts."""
        key = (info, layouts)  # equal operators are one instance
        if key not in self._views:
            self._views[key] = self._make_views(info, layouts[:operands], layouts[operands:])
        return self._views[key]

    def _make_views(
        self, info: OperatorInfo, taken: tuple[Layout, ...], left: tuple[Layout, ...]
    ) -> Mapping[int, ShardView]:
        ranks = self.communicator.ranks
        if not left:
            return dict.fromkeys(ranks, info.rule.view())
        strategy, found = info.infer_layouts(
            taken, self.mesh, [layout.reduced() for layout in left]
        )
        if found != left:
            raise ExecutionError(
                f"the results are {', '.join(map(str, left))}, "
                f"`{info.name}` leaves {', '.join(map(str, found))}"
            )
        shared: dict[tuple[int, ...], ShardView] = {}
        views = {}
        for rank in ranks:
            place = tuple(self.mesh.index(rank, axes) for _, axes in strategy.assignment)
            if place not in shared:
                shared[place] = info.rule.view(strategy, self.mesh, rank)
            views[rank] = shared[place]
        return views

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
        rank, memory = self.communicator.ranks[0], LiveBytes()
        for name in values:
            memory.hold(values[name][rank])
        for instruction in self._program:
            self._run(instruction, values)
            for local in instruction.results:
                memory.hold(values[local.name][rank])
            for name in instruction.last_used:
                if name not in kept:
                    memory.release(values.pop(name)[rank])
                    if name in self._updated:
                        del state[name]
        result = StepResult(
            {name: values[name] for name in self.graph.outputs},
            {name: values[name] for name in fetch},
            memory.peak,
        )
        state.update([(name, values[new]) for name, new in self.graph.updates])
        return result

    def _kept(self, fetch: Sequence[str]) -> frozenset[str]:
        for name in fetch:
            if name not in self._locals:
                raise ExecutionError(f"graph `{self.graph.name}` has no value `{name}` to fetch")
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
            parts = scatter(value, inputs[value.name], self.communicator, self.float_dtype)
            values[value.name] = parts
        for parameter in self.graph.parameters:
            values[parameter.name] = self._held(parameter.value, state)
        return values

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

    def _run(self, instruction: Instruction, values: Environment) -> None:
        operands = [values[name] for name in instruction.node.operands]
        try:
            if isinstance(instruction.info, Communication):
                results = [self._move(instruction.info, instruction, operands[0])]
            else:
                results = self._compute(instruction, operands)
        except ShardwrightError:
            raise
        except (ValueError, TypeError, LookupError, ArithmeticError) as error:
            what = f"`{instruction.info.name}` failed: {error}"
            raise ExecutionError(what, node_text(instruction.node)) from error
        for local, parts in zip(instruction.results, results, strict=True):
            values[local.name] = parts

    def _move(
        self, info: Communication, instruction: Instruction, parts: dict[int, Array]
    ) -> dict[int, Array]:
        axes, local = instruction.axes, instruction.results[0]
        if self.graph.mesh is None:
            moved = {rank: info.kernel(instruction.views[rank], p) for rank, p in parts.items()}
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
        self, instruction: Instruction, operands: Sequence[Mapping[int, Array]]
    ) -> list[dict[int, Array]]:
        """Run the kernel on every hosted rank.

        Ranks with the same view and the same operand arrays share the result. Operands of 16 bits
        are computed in float32, and the results are rounded once, as devices do.
        """
        kernel, locals_ = instruction.info.kernel, instruction.results
        results: list[dict[int, Array]] = [{} for _ in locals_]
        done: dict[tuple[int, ...], list[Array]] = {}
        for rank, view in instruction.views.items():
            arrays = [parts[rank] for parts in operands]
            key = (id(view), *map(id, arrays))
            made = done.get(key)
            if made is None:
                found = kernel(view, *map(_widened, arrays))
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


def _widened(array: Array) -> Array:
    """Return an operand in the type that kernels compute in: at least float32."""
    return array.astype(np.float32) if is_low(array.dtype) else array


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
