"""The buffers of an emitted program on one rank: their bytes, live ranges and kinds."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from shardwright.dataflow.cotangents import gradient_name
from shardwright.dataflow.liveness import Liveness, liveness
from shardwright.ir.errors import OptionError
from shardwright.ir.graph import Graph, Node, Value, value_bytes
from shardwright.ir.liveness import loop_of
from shardwright.ir.mesh import Mesh
from shardwright.ir.registry import Registry, explained
from shardwright.operators.info import operator_class, operator_info
from shardwright.operators.workspace import WithWorkspace

NamesOf = Callable[[Graph], Iterable[str]]
"""Returns the values of a program that are of a kind of memory."""

KINDS: Registry[NamesOf] = Registry("kind of memory")
"""The kinds of memory that are told apart, by name."""

register_memory_kind = KINDS.under
"""Register a function that returns the values of a kind of memory, under the name of the kind.

Reports, plans and pages then tell these values apart from the kind that they have otherwise."""


@dataclass(frozen=True)
class MemoryUseReport:
    """Peak memory of one rank.

    Parameters
    ----------
    peak_bytes : float
        The sum.
    by_kind : mapping of str to float
        Parameters (with buffers of the model, and copies in lower precision), optimizer states,
        gradients, inputs, and activations with all other buffers.
    at : str
        The node during which the peak is reached.
    by_group : tuple of float
        Peak memory of a rank of each device group of a pipeline; `peak_bytes` is the greatest.
    host_bytes : float
        Peak bytes of its tensors in host memory.
    window_bytes : float or None
        Of the overlapped step, bytes that gathers ahead may take, and as many the gradients that
        wait to be reduced; None for the program in its order.
    """

    peak_bytes: float
    by_kind: Mapping[str, float]
    at: str
    by_group: tuple[float, ...] = ()
    host_bytes: float = 0.0
    window_bytes: float | None = None


@dataclass(frozen=True, eq=False)
class Buffers:
    """The buffers of a program on one rank; compared by identity.

    Parameters
    ----------
    sizes : mapping of str to float
        Bytes of every value; 0 for a view, and for the new value of a parameter, which is updated
        in place. An input counts with the slices of all passes over micro-batches.
    live : Liveness
        Their live ranges.
    workspaces : mapping of str to float
        Bytes that a node holds while it runs beside its operands and results, by its name; those
        of other nodes are 0.
    hosted : mapping of str to float
        Bytes of every tensor in host memory; on the device it takes none.
    """

    sizes: Mapping[str, float]
    live: Liveness
    workspaces: Mapping[str, float]
    hosted: Mapping[str, float] = field(default_factory=dict)


def buffers(graph: Graph) -> Buffers:
    """Return the buffers of a program; without a mesh it runs whole on one device."""
    return graph.analysed("buffers", lambda: _buffers(graph))


def _buffers(graph: Graph) -> Buffers:
    mesh, live = graph.mesh or Mesh(()), liveness(graph)
    in_place = {new for _, new in graph.updates}
    known: dict[tuple[int, int], float] = {}  # by type and layout, of which there are few objects
    sizes = {}
    for name, value in graph.values.items():
        key = id(value.type), id(value.layout)
        if name in live.roots or name in in_place:
            sizes[name] = 0.0
            continue
        if key not in known:
            known[key] = value_bytes(value, mesh)
        sizes[name] = known[key]
    for value in graph.inputs if mesh.in_time else ():
        if value.layout is not None:
            fed = replace(value, layout=value.layout.without(mesh.in_time))
            sizes[value.name] = value_bytes(fed, mesh)
    hosted = {name: sizes[name] for name, value in graph.values.items() if value.type.in_host}
    sizes |= dict.fromkeys(hosted, 0.0)
    return Buffers(sizes, live, workspaces(graph.nodes, graph.values, mesh), hosted)


def workspaces(
    nodes: Iterable[Node], values: Mapping[str, Value], mesh: Mesh
) -> Mapping[str, float]:
    """Return the bytes that operators hold while they run, by their nodes."""
    found = {}
    for node in nodes:
        if issubclass(operator_class(node.operator), WithWorkspace):
            read = [values[name] for name in node.operands]
            info = operator_info(node.operator, [value.type for value in read], node.attributes)
            assert isinstance(info, WithWorkspace)
            taken = [value.known_layout for value in read]
            found[node.name] = info.workspace_bytes(taken, mesh)
    return found


def told_kinds(graph: Graph) -> dict[str, str]:
    """Return the kind of memory of every value, one of `KINDS`."""
    kinds = buffer_kinds(graph)
    for kind in KINDS:
        with explained(KINDS[kind], f"the kind of memory `{kind}`", OptionError):
            kinds.update((name, kind) for name in KINDS[kind](graph) if name in kinds)
    return kinds


def buffer_kinds(graph: Graph) -> dict[str, str]:
    """Return what every value is of a training step: one of the kinds that are registered here."""
    kinds = dict.fromkeys(graph.values, "activations")
    kinds.update((value.name, "inputs") for value in graph.inputs)
    for parameter in graph.parameters:
        is_state, gradient = parameter.role == "state", gradient_name(parameter.name)
        kinds[parameter.name] = "optimizer states" if is_state else "parameters"
        if parameter.trainable and gradient in graph.producers:
            kinds[gradient] = "gradients"
    parameters = {parameter.name for parameter in graph.parameters}
    for node in graph.nodes:
        if node.operator == "cast" and node.operands[0] in parameters:
            kinds[node.name] = "parameters"
    loop = loop_of(graph)
    for name in loop.accumulated if loop is not None else ():
        origin = graph.producers[name].provenance
        if origin.role == "gradient_redistribution" and kinds.get(origin.tensor) == "parameters":
            kinds[name] = "gradients"
    return kinds


def _no_others(_: Graph) -> Iterable[str]:
    """Return nothing: `buffer_kinds` tells these kinds."""
    return ()


for _kind in ("parameters", "optimizer states", "gradients", "inputs", "activations"):
    KINDS.add(_kind, _no_others)


def written_in_place(graph: Graph, held: Buffers) -> dict[int, list[str]]:
    """Return for each position the parameters that its node overwrites."""
    position = {result.name: i for i, node in enumerate(graph.nodes) for result in node.results}
    written: dict[int, list[str]] = {}
    for parameter, new in graph.updates:
        if new in position and held.live.roots.get(new, new) != parameter:
            written.setdefault(position[new], []).append(parameter)
    return written


def deferrable_bytes(node: Node, queue: str, graph: Graph, held: Buffers) -> float:
    """Return the bytes that a gather takes, or that wait for a reduction; 0 for other nodes."""
    if queue == "gathers":
        return sum(held.sizes[result.name] for result in node.results)
    if queue != "reductions" or node.provenance.role == "update":
        return 0.0
    lasting = held.live.lasting
    roots = {held.live.roots.get(name, name) for name in node.operands}
    return sum(held.sizes[name] for name in roots - lasting)
