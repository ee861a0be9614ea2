"""Sessions: a definition compiled for some devices, and trained step by step in this process.

`AutoParallel` and `Model` train so; `shardwright.compile` makes plans instead.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from shardwright.communication import get_group_size, world
from shardwright.compiler.compiled import Compiled
from shardwright.compiler.driver import compile_graph
from shardwright.compiler.options import (
    DEFAULTS,
    UNPARTITIONED,
    CompileOptions,
    Mode,
    decided_by_plan,
    no_effect,
    warn_of_idle_devices,
)
from shardwright.compiler.outer.meshes import meshes_of
from shardwright.cost_model.cluster import cluster
from shardwright.dataflow.trained import check_trained
from shardwright.input_layouts import input_layouts
from shardwright.ir.errors import ModelError, OptionError
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import DTYPES, TensorType
from shardwright.ir.values import POSITIVE_INTEGER, wrong_value
from shardwright.nn.optimizers import Optimizer
from shardwright.operators.info import Array, SplitCounts
from shardwright.operators.models.loss_scale import LossScale
from shardwright.operators.models.optimizer import Optimizer as Rule
from shardwright.runtime import Executor, LocalCommunicator, check_capacity, initialize
from shardwright.tracing import Definition, InputSpec, Network, trace


@dataclass(frozen=True)
class ParallelOptions:
    """The devices of a session, and the options of its compilation.

    Parameters
    ----------
    how : CompileOptions
        The options of the compilation; optimizer and loss scale are the model's own.
    devices : int
        Number of ranks.
    cluster : str
        Name or file of the cluster.
    dataset_strategy : str or tuple of tuple of int, optional
        Layout of the inputs: ``data_parallel``, ``full_batch``, or the slices of each dimension of
        each input; chosen by the search if not given.
    mesh : str or Mesh, optional
        Shape of the mesh, or ``search`` for the best of several; the cluster's default if not
        given.
    """

    how: CompileOptions = field(default_factory=lambda: CompileOptions(mode="stand_alone"))
    devices: int = 1
    cluster: str = "h100-pod"
    dataset_strategy: str | SplitCounts | None = None
    mesh: str | Mesh | None = None

    def __post_init__(self) -> None:
        POSITIVE_INTEGER.check("devices", self.devices)
        if not isinstance(self.cluster, str):
            raise wrong_value("cluster", self.cluster, "the name of a cluster, or a file")
        warn_of_idle_devices(self.how.mode, self.devices)
        if self.mesh is not None and not isinstance(self.mesh, str | Mesh):
            raise wrong_value("mesh", self.mesh, "a text such as `2x4`, or a `Mesh`")
        for name in ("dataset_strategy", "mesh"):
            if getattr(self, name) is None:
                continue
            if self.how.mode in UNPARTITIONED:
                raise no_effect(name, self.how.mode)
            if self.how.plan is not None:
                raise decided_by_plan(name)

    @staticmethod
    def of_this_world() -> "ParallelOptions":
        """Return the options of a script that asks for none: a hand-written parallel program."""
        size = get_group_size()
        mode: Mode = "hybrid_parallel" if size > 1 else "stand_alone"
        return ParallelOptions(CompileOptions(mode=mode), size)


class Session:
    """A training step that is compiled and run on ranks in this process.

    Parameters
    ----------
    definition : Definition
        The model.
    options : ParallelOptions
        Devices and options.
    seed : int
        Seed of the initial values.
    """

    def __init__(self, definition: Definition, options: ParallelOptions, seed: int = 0) -> None:
        if definition.loss is None:
            raise ModelError(
                f"`{definition.graph.name}` returns no real scalar first, a training step returns "
                f"its loss"
            )
        self.definition = definition
        self.compiled = compiled(definition, options)
        program = self.compiled.program
        communicator = LocalCommunicator(self.compiled.mesh)
        check_capacity(program, communicator.ranks)
        self.executor = Executor(program, communicator, in_place=True)
        self.state = initialize(program, seed, communicator, definition.initial)

    def __repr__(self) -> str:
        return f"<Session of {self.compiled!r}>"

    def step(self, batch: Sequence[Array]) -> float:
        """Train one step and return the loss before it.

        Parameters
        ----------
        batch : sequence of array
            The inputs, in order.
        """
        names = [spec.name for spec in self.definition.inputs]
        result = self.executor.step(dict(zip(names, batch, strict=True)), self.state)
        loss = next(iter(result.outputs.values()))
        return float(next(iter(loss.values())))  # that of a pipeline stage is on its ranks


def compiled(definition: Definition, options: ParallelOptions) -> Compiled:
    """Return the compiled program of a definition."""
    described, how = cluster(options.cluster), options.how
    how = replace(how, optimizer=definition.optimizer or Rule(), loss_scale=definition.loss_scale)
    if definition.precision is not None:
        how = replace(how, precision=one_precision(definition.precision, how.precision))
    if definition.micro_batches != 1:
        if how.micro_batches not in (definition.micro_batches, DEFAULTS["micro_batches"]):
            raise OptionError(
                f"the network has {definition.micro_batches} micro-batches, and the options say "
                f"`{how.micro_batches}`",
                hint="leave out one of them",
            )
        how = replace(how, micro_batches=definition.micro_batches)
    if how.mode not in UNPARTITIONED:
        how = replace(
            how,
            pins={**definition.pins, **how.pins},
            result_pins={**definition.result_pins, **how.result_pins},
        )

    def layouts_on(mesh: Mesh | None) -> Mapping[str, Layout]:
        if mesh is None:
            return {}
        return input_layouts(definition.inputs, options.dataset_strategy, mesh)

    meshes = meshes_of(described, options.devices, options.mesh, how)
    program = compile_graph(
        definition.graph, described, options.devices, how, meshes, layouts_on=layouts_on
    )
    check_trained(program.source)
    return program


def one_precision(own: str, asked: str) -> str:
    """Return the precision of a network that has one of its own.

    Raises
    ------
    OptionError
        If the options of the compilation say another one.
    """
    if asked not in (own, DEFAULTS["precision"]):
        raise OptionError(
            f"the network has the precision `{own}`, and the options say `{asked}`",
            hint="leave out one of them",
        )
    return own


def begin(
    network: Network,
    batch: Mapping[str, Array],
    options: ParallelOptions,
    *,
    loss_fn: Network | None = None,
    optimizer: Optimizer | None = None,
    loss_scale: LossScale = 1.0,
    seed: int = 0,
) -> Session:
    """Trace a network for the inputs of its first batch, and compile it.

    Parameters
    ----------
    network, loss_fn, optimizer, loss_scale
        As for `trace`.
    batch : mapping of str to array
        The inputs by name; with a loss the last one are the labels.
    options : ParallelOptions
        Devices and options.
    seed : int
        Seed of the initial values.
    """
    specs = [specify(name, array) for name, array in batch.items()]
    manual = options.how.mode == "hybrid_parallel"
    with world(options.devices if manual else 1):
        definition = trace(
            network, specs, loss_fn=loss_fn, optimizer=optimizer, loss_scale=loss_scale
        )
    return Session(definition, options, seed)


def specify(name: str, array: Any) -> InputSpec:
    """Return the specification of an input that fits an array.

    Raises
    ------
    ModelError
        If its element type is not supported.
    """
    array = np.asarray(array)
    dtype = array.dtype.name
    if dtype not in DTYPES:
        raise ModelError(
            f"the input `{name}` has the element type `{dtype}`, expected one of {DTYPES}",
            hint="put `transforms.TypeCast` into the pipeline of the data set",
        )
    whole = np.issubdtype(array.dtype, np.integer)
    high = int(array.max()) + 1 if whole and array.size else None
    return InputSpec(name, TensorType(dtype, array.shape), high)
