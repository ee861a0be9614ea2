"""Compilation of a cell for the devices that the context names, without running it.

MindSpore's own tests compile so: ``_cell_graph_executor.compile(net, *inputs)``. No process needs
to be started: `device_num` of the context says for how many ranks.
"""

import inspect
import operator
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from shardwright.communication import batch_parts, world
from shardwright.dataflow.cotangents import untrained_parameters
from shardwright.ir.errors import ModelError
from shardwright.ir.graph import Graph, Parameter
from shardwright.mindspore.calls import called, noted_calls
from shardwright.mindspore.common.group_info import save_group_info
from shardwright.mindspore.common.listings import (
    CompiledAlone,
    fused_gradients,
    graph_info,
    operator_count,
    parameter_layouts,
    strategies,
)
from shardwright.mindspore.common.replacements import replaced
from shardwright.mindspore.context import (
    ParallelMode,
    arrives_whole,
    get_auto_parallel_context,
    splits_operators,
)
from shardwright.mindspore.differentiated import Differentiated, differentiated_alone
from shardwright.mindspore.errors import as_mindspore
from shardwright.mindspore.parallel._cost_model_context import _get_algo_single_loop
from shardwright.mindspore.simulation import whole_inputs
from shardwright.mindspore.spread import finest_mesh, options_alone
from shardwright.mindspore.steps import jit
from shardwright.nn.cell import Cell, CellList
from shardwright.nn.optimizers import Optimizer
from shardwright.operators.models.loss_scale import LossScale
from shardwright.ops.composite import assigned_and_trained
from shardwright.ops.primitive import record_strategy
from shardwright.planner.options import UNPARTITIONED
from shardwright.session import ParallelOptions, compiled
from shardwright.tensor import Tensor, apply_all, tensors_in
from shardwright.tracer import current_tracer
from shardwright.tracing import Definition, InputSpec, Network, trace

ms_function = jit


class _CellGraphExecutor:
    """Compiles cells; keeps what it compiled by phase."""

    def __init__(self) -> None:
        self._kept: dict[str, CompiledAlone] = {}
        self._newest: WeakKeyDictionary[Cell, CompiledAlone] = WeakKeyDictionary()

    def program(self, phase: str) -> Graph:
        """Return the program of all ranks that was compiled as a phase.

        Raises
        ------
        ModelError
            If nothing was.
        """
        return self._compiled(phase).program

    def _compiled(self, phase: str) -> CompiledAlone:
        if phase not in self._kept:
            raise ModelError(f"nothing was compiled as `{phase}`", hint="call `compile` first")
        return self._kept[phase]

    def _get_shard_strategy(self, net: Cell) -> dict[str, list[list[int]]]:
        """Return how the operators of a cell are split: of each operand the slices.

        They are in the order of the program and numbered in it: ``Default/MatMul-op0``. MindSpore's
        names have the cells in between.

        Raises
        ------
        ModelError
            If the cell was not compiled, or without a search of strategies.
        """
        found = self._newest.get(net)
        listed = {} if found is None else strategies(found)
        if not listed:
            raise ModelError(
                f"there are no strategies of `{type(net).__name__}`",
                hint="call `compile` first, with `parallel_mode` `semi_auto_parallel` or another "
                "that splits operators",
            )
        return listed

    def _get_allreduce_fusion(self, net: Cell) -> dict[str, int]:
        """Return the number of the fused all-reduce of each parameter whose gradient is in one."""
        found = self._newest.get(net)
        return {} if found is None else fused_gradients(found.program)

    def compile(
        self,
        obj: Cell,
        *args: Any,
        phase: str = "predict",
        do_convert: bool = True,
        auto_parallel_mode: bool = False,
    ) -> tuple[str, bool]:
        """Compile a cell as the context says; return its phase, and whether it is new.

        Parameters
        ----------
        obj : Cell
            The cell: a training step, a network with gradients by inputs or parameters, or neither.
        *args : Tensor, number, or tuple of them
            Its inputs; the values of tensors are not read, other values are constants. Where ranks
            have parts of the inputs, by ``dataset_strategy``, they are those of one rank.
        phase : str
            Part of the name that is returned.
        do_convert, auto_parallel_mode : bool
            Have no meaning here: the context says how a cell is compiled.

        Raises
        ------
        RuntimeError
            If it cannot be compiled; the error is a `ShardwrightError` too.
        """
        name = f"{phase}.{id(obj)}"
        with as_mindspore():
            found = _compiled(obj, args)
        self._kept[name] = found
        self.keep(obj, found)
        return name, True

    def keep(self, cell: Cell, found: CompiledAlone) -> None:
        """Keep the newest program of a cell, and how its parameters are split."""
        self._newest[cell] = found
        get = get_auto_parallel_context
        divides = get("enable_parallel_optimizer")
        cell.parameter_layout_dict = parameter_layouts(found.program, found.mesh, divides)
        save_group_info(found, get("device_num"), get("global_rank"))

    @property
    def _graph_executor(self) -> "_CellGraphExecutor":
        """What MindSpore's tests ask for the operators of a program."""
        return self

    def get_parallel_graph_info(self, phase: str) -> dict[str, dict[str, Any]]:
        """Return the operators of a program by graph: their names, attributes and operands."""
        return graph_info(self._compiled(phase), replaced)

    def _get_num_parallel_ops(self, net: Cell) -> int:
        """Return how many operators of a cell MindSpore's search chooses strategies for.

        With `_set_algo_single_loop` those of the cells of a `CellList` count once.
        """
        self._get_shard_strategy(net)  # which raises where there are none
        inner = net.cells_and_names() if _get_algo_single_loop() else ()
        lists = [path.replace(".", "/") for path, cell in inner if isinstance(cell, CellList)]
        return operator_count(self._newest[net], lists)


def simulated(function: Network, inputs: Sequence[Any]) -> Any:
    """Compile a step for the ranks of the context; return zeros in place of what it returns."""
    with as_mindspore():
        found = _compiled(function, tuple(inputs))
    if isinstance(function, Cell):
        _cell_graph_executor.keep(function, found)
    return _zeros(found.returned)


def _zeros(item: Any) -> Any:
    if isinstance(item, tuple | list):
        return tuple(map(_zeros, item))
    return Tensor(np.zeros(item.shape), item.dtype) if isinstance(item, Tensor) else item


def _compiled(cell: Network, inputs: tuple[Any, ...]) -> CompiledAlone:
    arguments = [Tensor(item) if isinstance(item, np.ndarray) else item for item in inputs]
    if all(isinstance(item, Tensor) for item in arguments):
        arguments = [*whole_inputs(arguments)]
    return compile_alone(cell, arguments, options_alone(cell))


def compile_alone(
    cell: Network,
    arguments: Sequence[Any],
    options: ParallelOptions,
    optimizer: Optimizer | None = None,
    loss_scale: LossScale = 1.0,
) -> CompiledAlone:
    """Compile a cell for devices that are not there.

    Parameters
    ----------
    cell : Cell or callable
        A training step; or a network, which the optimizer trains, if there is one.
    arguments : sequence of Tensor, number, or tuple of them
        Its inputs; the values of tensors are not read.
    options : ParallelOptions
        Devices and options.
    optimizer : Optimizer, optional
        Updates the parameters; a training step applies its own.
    loss_scale : LossScale
        The factor on the loss, with an optimizer.

    Raises
    ------
    ShardwrightError
        If it cannot be compiled.
    """
    mode, devices = options.how.mode, options.devices
    rank = get_auto_parallel_context("global_rank")
    names = _input_names(cell, arguments)
    types = [tensor.type for tensor in tensors_in(arguments)]
    specs = [InputSpec(name, own) for name, own in zip(names, types, strict=True)]
    ranks = world(devices if mode == ParallelMode.HYBRID_PARALLEL else 1)
    parts = batch_parts(devices if mode == ParallelMode.DATA_PARALLEL else 1)
    with ranks, parts, differentiated_alone() as noted, noted_calls() as calls:
        whole = _Whole(cell, noted, arguments, 0 if optimizer else _output_slices(cell, options))
        definition = trace(
            whole,
            specs,
            optimizer=optimizer,
            loss_scale=loss_scale,
            only_rank=rank,
        )
    trains = optimizer is not None or bool(noted.outputs)
    definition = _without_unread(definition, names)
    definition = replace(definition, graph=_trained(definition.graph, noted, trains))
    if mode not in UNPARTITIONED:
        each = devices // get_auto_parallel_context("pipeline_stages")
        options = replace(options, mesh=finest_mesh(definition, each))
    found = compiled(definition, options)
    more = {"calls": calls, "rank": rank, "written": definition.graph, "returned": whole.returned}
    return CompiledAlone(**vars(found), **more)


def _output_slices(cell: Network, options: ParallelOptions) -> int:
    """Return into how many slices the first dimension of what a network returns is split.

    It is that of the batch, in a network that is not trained; 0 where the search chooses.
    """
    get = get_auto_parallel_context
    if not splits_operators() or not isinstance(cell, Cell) or cell.training:
        return 0
    if arrives_whole():
        return 1
    return options.devices // get("pipeline_stages")


def _input_names(cell: Network, arguments: Sequence[Any]) -> list[str]:
    """Return names of the tensors among inputs: those of the arguments of a cell, or numbers."""
    numbered = [f"input{i}" for i, _ in enumerate(tensors_in(arguments))]
    if not isinstance(cell, Cell) or len(numbered) != len(arguments):
        return numbered
    wanted = inspect.signature(cell.construct).parameters.values()
    names = [each.name for each in wanted if each.kind is each.POSITIONAL_OR_KEYWORD]
    taken = {parameter.name for parameter in cell.get_parameters()}
    fit = len(names) >= len(numbered) and not taken & {*names}
    return names[: len(numbered)] if fit else numbered


class _Whole(Cell):
    """A cell that returns a real scalar, as a training step does.

    It is made of the first result; where `slices` says how results are split by the batch and
    nothing is differentiated, of all of them as they are split: ranks keep their parts of results.
    """

    _auto_prefix = False
    wraps = "network"

    def __init__(
        self, cell: Network, noted: Differentiated, arguments: Sequence[Any], slices: int
    ) -> None:
        self.network, self._noted, self._arguments = cell, noted, arguments
        self._slices, self.returned = slices, None

    def construct(self, *inputs: Tensor) -> Any:
        self.returned = self.network(*_replaced(self._arguments, iter(inputs)))
        made = tuple(tensors_in(self.returned))
        outputs = tuple(tensors_in(self._noted.outputs))
        if outputs or not self._slices or current_tracer().optimizer is not None:
            return _number((outputs or made)[0])
        split = [virtual_output(tensor, self._slices) for tensor in made]
        numbers = [_number(tensor) for tensor in split]
        if len(numbers) == 1:
            return numbers[0]
        with called("", ()):
            return reduce(operator.add, (number.astype("float32") for number in numbers))


def _number(result: Tensor) -> Tensor:
    """Return a real scalar that is made of all of a result; it has no strategy in lists."""
    with called("", ()):
        real = result if result.type.is_float else result.astype("float32")
        return real.sum() if real.ndim else real


def virtual_output(result: Tensor, slices: int) -> Tensor:
    """Return a result of a network with slices of its first dimension, if they are equal."""
    if not result.ndim:
        return result
    count = 1 if result.shape[0] % slices else slices
    with called("VirtualOutput", (result,)):
        same = apply_all("identity", result)
        record_strategy(same, [result], ((count,) + (1,) * (result.ndim - 1),), None)
    return same[0]


def _replaced(arguments: Sequence[Any], tensors: Iterator[Tensor]) -> Iterator[Any]:
    """Yield arguments with other tensors in their places."""
    for item in arguments:
        if isinstance(item, tuple | list):
            yield tuple(_replaced(item, tensors))
        else:
            yield next(tensors) if isinstance(item, Tensor) else item


def _without_unread(definition: Definition, names: Sequence[str]) -> Definition:
    """Return a network; where `GetNext` makes inputs, without those of the cell that nobody reads.

    The strategy of the data set is that of what `GetNext` makes then.
    """
    graph = definition.graph
    if all(value.name in names for value in graph.inputs):
        return definition
    kept = [v for v in graph.inputs if v.name not in names or graph.uses.get(v.name)]
    names_kept = {value.name for value in kept}
    specs = tuple(spec for spec in definition.inputs if spec.name in names_kept)
    return replace(definition, graph=replace(graph, inputs=tuple(kept)), inputs=specs)


def _trained(graph: Graph, noted: Differentiated, trains: bool) -> Graph:
    """Return the graph whose trained parameters are what the cell is differentiated by.

    Weights of what is differentiated are parameters, too: they are split as it.
    """
    chosen = [value for value in graph.inputs if value.name in (*noted.inputs, *noted.weighing)]
    parameters = [
        Parameter(value, {"initializer": "data", "trainable": value.name in noted.inputs})
        for value in chosen
    ]
    inputs = tuple(value for value in graph.inputs if value not in chosen)
    graph = replace(graph, inputs=inputs, parameters=(*graph.parameters, *parameters))
    idle = untrained_parameters(graph) if trains else [p.name for p in graph.parameters]
    parameters = [
        replace(p, attributes={**p.attributes, "trainable": False}) if p.name in idle else p
        for p in graph.parameters
    ]
    assigned = {name for name, _ in graph.updates}
    for parameter in parameters:
        if parameter.name in assigned and parameter.trainable:
            raise assigned_and_trained(parameter.name)
    return replace(graph, parameters=tuple(parameters))


_cell_graph_executor = _CellGraphExecutor()
