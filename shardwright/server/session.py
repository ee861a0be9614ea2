"""Sessions of workers: the step is computed here, and parameters are updated on servers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from shardwright.communication import world
from shardwright.feeding import Feed
from shardwright.input_layouts import specify
from shardwright.ir.errors import ModelError
from shardwright.ir.graph import Graph
from shardwright.ir.types import numpy_dtype
from shardwright.nn.optimizers import Optimizer
from shardwright.operators.info import Array
from shardwright.operators.models.loss_scale import LossScale
from shardwright.operators.models.optimizer import STEP
from shardwright.operators.models.optimizer import Optimizer as Rule
from shardwright.planner.options import CompileOptions
from shardwright.runtime import Executor, LocalCommunicator, initialize, losses_of
from shardwright.server.context import Roles, settings
from shardwright.server.lookups import Indices, lookups_of, with_small_tables
from shardwright.server.programs import is_update, worker_program
from shardwright.server.roles import client_for, take_part
from shardwright.server.store import Task
from shardwright.server.tables import Ids
from shardwright.session import Agreed, ParallelOptions, Session, compiled
from shardwright.tracing import Definition, Network, trace


def is_on() -> bool:
    """Return whether parameters may be on servers."""
    return settings().enable_ps


class WorkerSession(Session):
    """A training step of one worker; see `Session`.

    Parameters
    ----------
    definition : Definition
        The model.
    seed : int
        Seed of the initial values.

    Raises
    ------
    ModelError
        If the model cannot be trained so.
    """

    def __init__(self, definition: Definition, options: ParallelOptions, seed: int = 0) -> None:
        if definition.loss is None:
            raise ModelError(
                f"`{definition.graph.name}` returns no real scalar first, a training step returns "
                f"its loss"
            )
        names, rule = served_names(definition), definition.optimizer or Rule()
        lookups = lookups_of(definition.graph, names, rule)
        self._indices = Indices(definition.graph, lookups, definition.initial)
        small = with_small_tables(definition.graph, lookups)
        self.definition = replace(definition, graph=small)
        self.agreed = Agreed.of(compiled(self.definition, options))
        self.program = worker_program(self.compiled.program, names, lookups, settings().hash_rows)
        roles = Roles.of_environment()
        _check_others(self.compiled.program, names, roles.workers)
        graph, communicator = self.program.graph, LocalCommunicator()
        self.graph = graph
        self.executor = Executor(graph, communicator, in_place=True)
        self.feed = Feed(graph, communicator, "whole")
        self._numbers = {table.name: i for i, table in enumerate(self.program.tables)}
        own = [p for p in graph.parameters if p.name not in self._numbers]
        kept = {p.name for p in own}
        initial = {n: a for n, a in definition.initial.items() if n in kept}
        self.state = initialize(replace(graph, parameters=tuple(own)), seed, communicator, initial)
        task = Task(self.program.tables, roles.workers, settings().synchronous, seed)
        self.client = client_for(task, self._initial)
        if STEP in self.state:  # a learning rate follows it
            self.state[STEP] = {0: np.asarray(self.client.step)}
        self._pulled: dict[int, Array] = {}  # which the next step overwrites
        self._dense = [i for i, table in enumerate(task.tables) if not table.by_rows]
        self._keep()

    def _initial(self, table: int) -> Array:
        """Return the initial values of a table that no server can draw."""
        return np.asarray(self.definition.initial[self.program.tables[table].name])

    def step(self, batch: Sequence[Array]) -> float:
        """Pull parameters, compute the loss and the gradients, and push these."""
        tables = self.program.tables
        self._pulled = self.client.pull(self._dense, self._pulled)
        for number, array in self._pulled.items():
            self.state[tables[number].name] = {0: array}
        found = self._indices.rows(batch)
        rows = {}
        for lookup, (ids, _) in zip(self._indices.lookups, found, strict=True):
            number = self._numbers[lookup.table]
            self.state[lookup.table] = {0: self._small_table(number, ids)}
            rows[number] = ids
        inputs = [*batch, *(array for _, arrays in found for array in arrays)]
        result = self.executor.step(self.feed.inputs(inputs), self.state)
        self._push({name: parts[0] for name, parts in result.outputs.items()}, rows)
        loss = result.outputs[self.graph.outputs[0]]
        return losses_of(self.executor, loss)[0]

    def _small_table(self, number: int, rows: Ids) -> Array:
        """Return a small table that begins with some rows."""
        kind = self.graph.values[self.program.tables[number].name].type
        small = np.zeros(kind.shape, numpy_dtype(kind.dtype))
        pulled = self.client.pull_rows(number, rows)
        small[: len(rows)] = pulled.reshape(-1, *kind.shape[1:])
        return small

    def _push(self, outputs: Mapping[str, Array], rows: Mapping[int, Ids]) -> None:
        """Push the gradients: whole, or of some rows."""
        gradients = {i: outputs[name] for i, name in enumerate(self.program.gradients)}
        by_rows = {
            number: (ids, gradients[number][: len(ids)].reshape(len(ids), -1))
            for number, ids in rows.items()
        }
        rates = {i: float(outputs[n]) for i, n in enumerate(self.program.rates) if n is not None}
        self.client.push({i: gradients[i] for i in self._dense}, by_rows, rates)

    def read(self, name: str) -> Array:
        """Return the whole value of a parameter, from the servers if it is there."""
        if name not in self._numbers:
            return next(iter(self.state[name].values())).copy()
        number = self._numbers[name]
        return self.client.pull([number])[number]

    def values(self) -> dict[str, Array]:
        """Return the values of all parameters and buffers, and the states that are here."""
        names = dict.fromkeys((*self.state, *self._numbers))
        return {name: self.read(name) for name in names}

    def write(self, name: str, whole: Array) -> None:
        """Give a parameter another value.

        Raises
        ------
        ModelError
            If it is on the servers.
        """
        if name in self._numbers:
            raise ModelError(
                f"the parameter `{name}` is on the servers, which have its value",
                hint="load values before the training begins",
            )
        super().write(name, whole)

    def continue_from(self, other: Session) -> None:
        """Begin with the state of a session for batches of another shape."""
        for name in self.state:
            if name not in self._numbers:
                self.write(name, other.read(name))
        self._keep()


def served_names(definition: Definition) -> tuple[str, ...]:
    """Return the parameters of a model that are on servers.

    Raises
    ------
    ModelError
        If there are none.
    """
    holders = definition.holders.items()
    names = tuple(n for n, holder in holders if holder.is_served and holder.requires_grad)
    if not names:
        raise ModelError(
            "parameter servers are on, and no trained parameter is on them",
            hint="call `network.set_param_ps()` before the training",
        )
    return names


def _check_others(graph: Graph, served: Sequence[str], workers: int) -> None:
    """Refuse that several workers each train a parameter of their own.

    Raises
    ------
    ModelError
        If they would.
    """
    trained = [node.operands[0] for node in graph.nodes if is_update(node)]
    others = [name for name in trained if name not in served]
    if workers > 1 and others:
        raise ModelError(
            f"the parameter `{others[0]}` is not on the servers, and each of {workers} workers "
            f"would train its own",
            hint="call `set_param_ps` of the whole network",
        )


def begin(
    network: Network,
    batch: Mapping[str, Array],
    options: ParallelOptions,
    *,
    loss_fn: Network | None = None,
    optimizer: Optimizer | None = None,
    loss_scale: LossScale = 1.0,
    seed: int = 0,
) -> WorkerSession:
    """Trace a network for the inputs of its first batch, for a worker of parameter servers.

    Parameters
    ----------
    network, batch, options, loss_fn, optimizer, loss_scale, seed
        As for `shardwright.session.begin`.

    Raises
    ------
    ModelError
        If the options split the model over devices.
    """
    take_part()
    mode = options.how.mode
    if mode not in ("stand_alone", "hybrid_parallel"):
        raise ModelError(
            f"parameters are on servers, and the mode is `{mode}`, expected `stand_alone`",
            hint="leave out `AutoParallel`: every worker has the whole model",
        )
    if getattr(network, "micro_batches", 1) != 1:
        raise ModelError(
            "parameters are on servers, and the network accumulates gradients of micro-batches",
            hint="leave out `GradAccumulation`, and use smaller batches",
        )
    alone = CompileOptions(mode="stand_alone", precision=options.how.precision)
    specs = [specify(name, array) for name, array in batch.items()]
    with world(1):
        definition = trace(
            network, specs, loss_fn=loss_fn, optimizer=optimizer, loss_scale=loss_scale
        )
    return WorkerSession(definition, ParallelOptions(alone), seed)
