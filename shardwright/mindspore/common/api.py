"""Compilation of a cell for the devices that the context names, without running it.

MindSpore's own tests compile so: ``_cell_graph_executor.compile(net, *inputs)``. No process needs
to be started: `device_num` of the context says for how many ranks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import gcd
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from shardwright.compiler.accounting import split_counts
from shardwright.compiler.compiled import Compiled
from shardwright.cost_model.cluster import prime_factors
from shardwright.dataflow.cotangents import untrained_parameters
from shardwright.ir.errors import ModelError, ShardwrightError
from shardwright.ir.graph import Graph, Parameter
from shardwright.mindspore.context import ParallelMode, get_auto_parallel_context
from shardwright.mindspore.gradients import Differentiated, differentiated_alone
from shardwright.mindspore.steps import jit
from shardwright.mindspore.train.model import from_context
from shardwright.nn.cell import Cell
from shardwright.ops.names import name_of
from shardwright.session import ParallelOptions, compiled
from shardwright.tensor import Tensor, tensors_in
from shardwright.tracing import Definition, InputSpec, trace

ms_function = jit
_MOST_AXES = 4  # of a mesh that is searched
_HOST = 8  # ranks of a host: an axis of a mesh is within one, or between them


class _Executor:
    """Compiles cells; keeps what it compiled by phase."""

    def __init__(self) -> None:
        self._kept: dict[str, Compiled] = {}
        self._newest: WeakKeyDictionary[Cell, Compiled] = WeakKeyDictionary()

    def program(self, phase: str) -> Graph:
        """Return the program of all ranks that was compiled as a phase.

        Raises
        ------
        ModelError
            If nothing was.
        """
        if phase not in self._kept:
            raise ModelError(f"nothing was compiled as `{phase}`", hint="call `compile` first")
        return self._kept[phase].program

    def _get_shard_strategy(self, net: Cell) -> dict[str, list[list[int]]]:
        """Return how the operators of a cell are split: of each operand the slices.

        They are in the order of the program and numbered in it: ``Default/MatMul-op0``. MindSpore's
        names have the cells in between, and where an operator stands for several of ours, one name.

        Raises
        ------
        ModelError
            If the cell was not compiled, or without a search of strategies.
        """
        found = self._newest.get(net)
        counts = {} if found is None else split_counts(found)
        if found is None or not counts:
            raise ModelError(
                f"there are no strategies of `{type(net).__name__}`",
                hint="call `compile` first, with `parallel_mode` `semi_auto_parallel` or another "
                "that splits operators",
            )
        return {
            f"Default/{name_of(node.operator)}-op{i}": [list(each) for each in counts[node.name]]
            for i, node in enumerate(found.source.nodes)
        }

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
            Its inputs; the values of tensors are not read, other values are constants.
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
        try:
            found = _compiled(obj, args)
        except ShardwrightError as error:
            raise _as_mindspore(error) from error
        self._kept[name] = self._newest[obj] = found
        return name, True


def _compiled(cell: Cell, inputs: tuple[Any, ...]) -> Compiled:
    arguments = [Tensor(item) if isinstance(item, np.ndarray) else item for item in inputs]
    specs = [InputSpec(f"input{i}", x.type) for i, x in enumerate(tensors_in(arguments))]
    with differentiated_alone() as noted:
        definition = trace(_Whole(cell, noted, arguments), specs)
    definition = replace(definition, graph=_trained(definition, noted))
    return compiled(definition, _options(cell))


def _options(cell: Cell) -> ParallelOptions:
    """Return the options of the context, for as many devices as it names."""
    mode = get_auto_parallel_context("parallel_mode")
    devices = get_auto_parallel_context("device_num")
    if mode in (ParallelMode.STAND_ALONE, ParallelMode.HYBRID_PARALLEL):
        return ParallelOptions.of_this_world()
    spread = from_context(cell, mode)
    return replace(spread.options, devices=devices, mesh=_finest(devices))


def _finest(devices: int) -> str | None:
    """Return the mesh that is split in most ways, of those that can be searched."""
    inner = gcd(devices, _HOST)
    levels = [[*reversed(prime_factors(size))] for size in (devices // inner, inner)]
    while sum(map(len, levels)) > _MOST_AXES:
        level = max(levels, key=len)
        level[-2:] = [level[-2] * level[-1]]
        level.sort(reverse=True)
    return "x".join(str(size) for level in levels for size in level) or None


class _Whole(Cell):
    """A cell whose first result is a real scalar, as that of a training step is."""

    _auto_prefix = False

    def __init__(self, cell: Cell, noted: Differentiated, arguments: Sequence[Any]) -> None:
        self.network, self._noted, self._arguments = cell, noted, arguments

    def construct(self, *inputs: Tensor) -> Any:
        made = tuple(tensors_in(self.network(*_replaced(self._arguments, iter(inputs)))))
        first = (tuple(tensors_in(self._noted.outputs)) or made)[0]
        real = first if first.type.is_float else first.astype("float32")
        return real.sum() if real.ndim else real


def _replaced(arguments: Sequence[Any], tensors: Iterator[Tensor]) -> Iterator[Any]:
    """Yield arguments with other tensors in their places."""
    for item in arguments:
        if isinstance(item, tuple | list):
            yield tuple(_replaced(item, tensors))
        else:
            yield next(tensors) if isinstance(item, Tensor) else item


def _trained(definition: Definition, noted: Differentiated) -> Graph:
    """Return the graph whose trained parameters are what the cell is differentiated by."""
    graph = definition.graph
    chosen = [value for value in graph.inputs if value.name in noted.inputs]
    parameters = [Parameter(value, {"initializer": "data", "trainable": True}) for value in chosen]
    inputs = tuple(value for value in graph.inputs if value not in chosen)
    graph = replace(graph, inputs=inputs, parameters=(*graph.parameters, *parameters))
    idle = [p.name for p in graph.parameters] if not noted.outputs else untrained_parameters(graph)
    parameters = [
        replace(p, attributes={**p.attributes, "trainable": False}) if p.name in idle else p
        for p in graph.parameters
    ]
    return replace(graph, parameters=tuple(parameters))


def _as_mindspore(error: ShardwrightError) -> Exception:
    """Return an error that is one of MindSpore's, too."""
    kind = type(error)
    both = type(kind.__name__, (kind, RuntimeError), {})
    return both(error.what, error.where, error.hint)


_cell_graph_executor = _Executor()
