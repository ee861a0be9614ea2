"""The program of a worker: a training step that returns gradients instead of updating.

Before::

    w.next, w.m.next = momentum_update(w, w.grad, w.momentum)
    update w = w.next, w.momentum = w.m.next
    return loss

After, where servers hold ``w``::

    return loss, w.grad
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shardwright.ir.errors import ModelError
from shardwright.ir.graph import Graph, Node
from shardwright.ir.reachability import live
from shardwright.operators.info import info_of, operator_class
from shardwright.operators.models.optimizer import STEP, Update
from shardwright.server.lookups import Lookup
from shardwright.server.tables import Table


@dataclass(frozen=True)
class WorkerProgram:
    """The program of a worker, and the tables that servers hold for it.

    Parameters
    ----------
    graph : Graph
        Computes the loss, and then the gradient of each table.
    tables : tuple of Table
        The tables.
    gradients : tuple of str
        The value that is the gradient of each.
    rates : tuple of (str or None)
        The value that is the learning rate of each, where it follows the step.
    """

    graph: Graph
    tables: tuple[Table, ...]
    gradients: tuple[str, ...]
    rates: tuple[str | None, ...]


def worker_program(
    graph: Graph,
    served: Sequence[str],
    lookups: Sequence[Lookup] = (),
    hashed: bool = False,
) -> WorkerProgram:
    """Return the program of a worker, of a training step on one device.

    Parameters
    ----------
    graph : Graph
        The training step, with small tables where there are lookups.
    served : sequence of str
        The parameters on servers.
    lookups : sequence of Lookup
        The tables of which servers send rows.
    hashed : bool
        Whether these are divided by hash.

    Raises
    ------
    ModelError
        If servers cannot do the update of one.
    """
    updates = {node.operands[0]: node for node in graph.nodes if is_update(node)}
    missing = [name for name in served if name not in updates]
    if missing:
        raise ModelError(
            f"the parameter `{missing[0]}` is on the servers, and the optimizer does not update it",
            hint="give the optimizer all parameters on servers",
        )
    nodes = [updates[name] for name in served]
    made_by = {
        graph.producers[n.operands[1]].operator for n in nodes if n.operands[1] in graph.producers
    }
    if "clip_by_norm" in made_by:
        raise ModelError(
            f"the parameter `{served[0]}` is on the servers, which add up the gradients of the "
            f"workers, and each worker would clip its own",
            hint="train without servers, or without clipping",
        )
    types = {lookup.table: lookup.type for lookup in lookups}
    tables = tuple(
        replace(table, type=types[table.name], by_rows=True, hashed=hashed)
        if table.name in types
        else table
        for table in (_table(graph, node) for node in nodes)
    )
    gradients = tuple(node.operands[1] for node in nodes)
    rates = tuple(_rate(graph, node) for node in nodes)
    outputs = (*gradients, *(rate for rate in rates if rate is not None))
    return WorkerProgram(_without(graph, nodes, outputs), tables, gradients, rates)


def _rate(graph: Graph, node: Node) -> str | None:
    """Return the operand of an update that is the learning rate; None if it is an attribute."""
    info = info_of(graph, node)
    assert isinstance(info, Update)
    return node.operands[-1] if info.reads_rate else None


def is_update(node: Node) -> bool:
    """Return whether a node updates a parameter."""
    return issubclass(operator_class(node.operator), Update)


def _table(graph: Graph, node: Node) -> Table:
    info = info_of(graph, node)
    assert isinstance(info, Update)
    parameters = {parameter.name: parameter for parameter in graph.parameters}
    name, gradient, *rest = node.operands
    if info.is_guarded:
        raise ModelError(
            f"the parameter `{name}` is on the servers, under a dynamic loss scale",
            hint="use a `FixedLossScaleManager`",
        )
    if not info.by_rows:
        raise ModelError(
            f"the parameter `{name}` is on the servers, and `{node.operator}` needs whole matrices "
            "or blocks, of which a server has rows",
            hint="use `nn.AdamW`",
        )
    scalars = rest[info.states :]
    if info.counts_steps and scalars[0] != f"{STEP}.next":
        raise ModelError(f"the update `{node.operator}` of `{name}` cannot be done on a server")
    own = parameters[name]
    return Table(
        name,
        own.value.type,
        str(own.attributes.get("initializer", "normal")),
        node.operator,
        tuple(sorted(node.attributes.items())),
        tuple(
            str(parameters[state].attributes.get("initializer", "zeros"))
            for state in rest[: info.states]
        ),
        graph.values[gradient].type.dtype,
        scheduled=info.reads_rate,
    )


def _without(graph: Graph, dropped: Sequence[Node], results: Sequence[str]) -> Graph:
    """Return the program without some updates, and with some values as outputs too."""
    gone = {result.name for node in dropped for result in node.results}
    updates = tuple((old, new) for old, new in graph.updates if new not in gone)
    outputs = tuple(dict.fromkeys((*graph.outputs, *results)))
    others = [new for old, new in updates if old != STEP]
    needed = live(graph.nodes, [*outputs, *others])
    if STEP in needed.values:  # a learning rate follows it
        needed = live(graph.nodes, [*outputs, *(new for _, new in updates)])
    kept = {result.name for node in needed.nodes for result in node.results}
    updates = tuple((old, new) for old, new in updates if new in kept or new in needed.values)
    states: Mapping[str, str] = dict(updates)
    return replace(
        graph,
        nodes=needed.nodes,
        outputs=outputs,
        updates=updates,
        parameters=tuple(
            p for p in graph.parameters if p.name in needed.values or p.name in states
        ),
    )
