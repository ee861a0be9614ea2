"""Sessions: a definition compiled for some devices, and trained step by step.

All ranks are in this process; or, where a launcher started one for each, this process is one rank.
`AutoParallel` and `Model` train so; `shardwright.compile` makes plans instead.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from shardwright.communication import (
    batch_parts,
    processes,
    world,
)
from shardwright.compiler.plans.binding import rank_texts
from shardwright.compiler.plans.compiled import Compiled
from shardwright.feeding import Feed, Kind
from shardwright.input_layouts import parts_of_ranks, specify, whole_type
from shardwright.ir.errors import ExecutionError, ModelError
from shardwright.ir.files.writing import begins, failing_as, write_file
from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh
from shardwright.nn.optimizers import Optimizer
from shardwright.operators.info import Array
from shardwright.operators.models.loss_scale import LossScale
from shardwright.passes.manager import graphs_asked_for
from shardwright.planner.option_checks import (
    warn_of_repeated_work,
)
from shardwright.runtime import (
    Communicator,
    Executor,
    LocalCommunicator,
    MpiCommunicator,
    assemble,
    check_capacity,
    initialize,
    losses_of,
    scatter,
)
from shardwright.runtime.agreement import (
    all_equal,
    from_first,
)
from shardwright.runtime.communicator import Parts
from shardwright.runtime.faults import STANDING
from shardwright.session.compiling import (
    Agreed,
    ParallelOptions,
    check_same_options,
    check_together,
    compiled,
    compiled_together,
)
from shardwright.tracing import Definition, Network, trace

__all__ = [
    "Agreed",
    "ParallelOptions",
    "Session",
    "begin",
    "check_same_options",
    "check_together",
    "communicator_of",
    "compiled",
    "compiled_together",
    "same_everywhere",
    "write_programs",
]


class Session:
    """A training step that is compiled and run: on all ranks here, or on that of this process.

    Parameters
    ----------
    definition : Definition
        The model.
    options : ParallelOptions
        Devices and options.
    seed : int
        Seed of the initial values.
    kind, counts
        What a batch is; see `Feed`.

    Raises
    ------
    ModelError
        If the model returns no loss, or the processes that were started together trace different
        programs, or each would train alone.
    """

    def __init__(
        self,
        definition: Definition,
        options: ParallelOptions,
        seed: int = 0,
        kind: Kind = "whole",
        counts: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        if definition.loss is None:
            raise ModelError(
                f"`{definition.graph.name}` returns no real scalar first, a training step returns "
                f"its loss"
            )
        self.definition = definition
        self.agreed = compiled_together(definition, options)
        program = self.agreed.program
        communicator = communicator_of(self.agreed.mesh, options)
        check_capacity(program, communicator.ranks)
        if 0 in communicator.ranks and options.dataset_strategy is None:  # one says it for all
            warn_of_repeated_work(options.how.mode, program)
        write_programs(program, communicator.ranks)
        self.executor = Executor(program, communicator, in_place=True)
        self.feed = Feed(program, communicator, kind, counts, options.in_turn)
        initial = same_everywhere(definition)
        self.state = initialize(program, seed, communicator, initial)
        self._keep()

    def _keep(self) -> None:
        for name, parameter in self.definition.holders.items():
            parameter.keep_in(self, name)

    def continue_from(self, other: "Session") -> None:
        """Begin with the state of a session for batches of another shape."""
        for name, whole in other.values().items():
            if name in self.state:
                self.write(name, whole)
        self._keep()

    def __repr__(self) -> str:
        return f"<Session of {self.agreed.program.name} on {self.agreed.mesh}>"

    @property
    def compiled(self) -> Compiled:
        """The compilation, in the process that did it.

        Raises
        ------
        ExecutionError
            In the others of several processes.
        """
        if self.agreed.compiled is None:
            raise ExecutionError(
                "the first process has compiled the program, this one has its result alone",
                hint="ask process 0, or compile the model with `shardwright.compile`",
            )
        return self.agreed.compiled

    def step(self, batch: Sequence[Array]) -> float:
        """Train one step and return the loss before it, of the first rank in this process.

        Parameters
        ----------
        batch : sequence of array
            The inputs, in order.
        """
        with STANDING.step():
            result = self.executor.step(self.feed.inputs(batch), self.state)
            loss = result.outputs[self.executor.graph.outputs[0]]
            return losses_of(self.executor, loss)[self.executor.communicator.ranks[0]]

    def outputs(self, batch: Sequence[Array]) -> list[Array]:
        """Run a step, and return its whole outputs; of a program written by hand, the own ones.

        Parameters
        ----------
        batch : sequence of array
            The inputs, in order.
        """
        graph = self.executor.graph
        with STANDING.step():
            found = self.executor.step(self.feed.inputs(batch), self.state).outputs
            return [self._whole(name, found.get(name, {})) for name in graph.outputs]

    def read(self, name: str) -> Array:
        """Return the whole value of a parameter; where it is split, every process takes part."""
        return self._whole(name, self.state[name])

    def _whole(self, name: str, held: Parts) -> Array:
        program, communicator = self.executor.graph, self.executor.communicator
        layout = program.value(name).layout
        alone = layout is None and len(communicator.ranks) == 1  # a program written by hand
        if alone or (layout is not None and not layout.split_axes and layout.stage is None):
            return next(iter(held.values())).copy()
        parts = communicator.collect(held)
        return assemble(program, name, parts, communicator.mesh)

    def values(self) -> dict[str, Array]:
        """Return the whole state: parameters, buffers, and states of the optimizer."""
        return {name: self.read(name) for name in self.state}

    def parts(self) -> dict[str, Array]:
        """Return the part of the state that the rank of this process has.

        Raises
        ------
        ModelError
            If this process has several ranks.
        """
        ranks = self.executor.communicator.ranks
        if len(ranks) > 1:
            raise ModelError(
                f"the part of one rank is wanted, this process has {len(ranks)} ranks",
                hint="save whole tensors: `integrated_save=True`",
            )
        held = {name: parts.get(ranks[0]) for name, parts in self.state.items()}
        return {name: part.copy() for name, part in held.items() if part is not None}

    def write_part(self, name: str, part: Array) -> bool:
        """Give the rank of this process another part of a parameter, if it is one of its shape."""
        held, ranks = self.state[name], self.executor.communicator.ranks
        if len(ranks) > 1 or ranks[0] not in held or held[ranks[0]].shape != part.shape:
            return False
        held[ranks[0]] = part.astype(held[ranks[0]].dtype)
        return True

    def write(self, name: str, whole: Array) -> None:
        """Give a parameter another value."""
        value = self.executor.graph.value(name)
        self.state[name] = scatter(value, whole, self.executor.communicator)


def write_programs(program: Graph, ranks: Iterable[int]) -> None:
    """Write the program of each rank, ``rank_N/program.ir``, where the environment asks for graphs.

    Raises
    ------
    OutputError
        If a file cannot be written, or would replace something else.
    """
    folder, _ = graphs_asked_for()
    if folder is None:
        return
    ranks = list(ranks)
    for rank, text in zip(ranks, rank_texts(program, ranks), strict=True):
        path = folder.parent / f"rank_{rank}" / "program.ir"
        what = f"the program of rank {rank}"
        with failing_as(what, path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, text.encode(), what, begins(b"# rank "))


def communicator_of(mesh: Mesh, options: ParallelOptions) -> Communicator:
    """Return the communicator: of the rank of this process, or of all ranks if it is alone."""
    if processes() is None:
        return LocalCommunicator(mesh)
    return MpiCommunicator(mesh, deterministic=options.deterministic)


def same_everywhere(definition: Definition) -> Mapping[str, Array]:
    """Return the initial data of parameters: that of the first process, but of own parameters."""
    if processes() is None:
        return definition.initial
    parameters = {parameter.name: parameter for parameter in definition.graph.parameters}
    own = {
        name: array
        for name, array in definition.initial.items()
        if parameters[name].attributes.get("layerwise_parallel")
    }
    return {**from_first(lambda: dict(definition.initial)), **own}


def begin(
    network: Network,
    batch: Mapping[str, Array],
    options: ParallelOptions,
    *,
    loss_fn: Network | None = None,
    optimizer: Optimizer | None = None,
    loss_scale: LossScale = 1.0,
    seed: int = 0,
    ranks: int = 1,
    apart: bool = False,
    change: Callable[[Definition], Definition] = lambda definition: definition,
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
    ranks : int
        Number of ranks whose batches are one behind the other in a batch.
    apart : bool
        Whether the batch is that of this process's rank; where it is not said, it is if the
        processes have different batches.
    change : callable
        Returns the definition that is compiled, of the one that was traced.

    Raises
    ------
    ModelError
        If processes have different options.
    """
    manual = options.how.mode == "hybrid_parallel"
    check_same_options(options, seed)
    kind = _kind(batch, options, ranks, apart)
    size = options.devices
    before, after = (size, 1) if kind == "stacked" else (1, size if kind == "own" else 1)
    if manual and kind == "own":
        after = 1
    specs = [specify(name, array, before, after) for name, array in batch.items()]
    counts = parts_of_ranks(options.dataset_strategy, batch) if kind == "own" and not manual else {}
    specs = [
        replace(spec, type=whole_type(batch[spec.name], counts[spec.name])) if counts else spec
        for spec in specs
    ]
    parts = size if options.how.mode == "data_parallel" else 1
    with world(size if manual else 1, numbered=True), batch_parts(parts):
        definition = trace(
            network, specs, loss_fn=loss_fn, optimizer=optimizer, loss_scale=loss_scale
        )
    return Session(change(definition), options, seed, kind, counts)


def _kind(batch: Mapping[str, Array], options: ParallelOptions, ranks: int, apart: bool) -> Kind:
    manual = options.how.mode == "hybrid_parallel"
    if processes() is None:
        return "stacked" if manual and ranks == options.devices > 1 else "whole"
    check_together(options)
    return "own" if manual or apart or not all_equal(list(batch.values())) else "whole"
