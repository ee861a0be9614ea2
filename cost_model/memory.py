"""Memory of an emitted program: what one rank holds at the fullest moment of a step."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shardwright.cost_model.roofline import value_bytes
from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh
from shardwright.operators.info import operator_class
from shardwright.operators.models.optimizer import optimizer_states

_KINDS = ("parameters", "optimizer states", "gradients", "inputs", "activations")


@dataclass(frozen=True)
class MemoryUseReport:
    """Bytes on one rank at the fullest moment.

    Parameters
    ----------
    peak_bytes : float
        The sum.
    by_kind : mapping of str to float
        Parameters (with what the model keeps untrained), optimizer states, gradients, inputs, and
        activations with all other buffers.
    at : str
        The node during which the peak is reached.
    """

    peak_bytes: float
    by_kind: Mapping[str, float]
    at: str


@dataclass(frozen=True)
class Buffers:
    """The buffers of a program on one rank, named after the values that define them.

    Parameters
    ----------
    sizes : mapping of str to float
        Bytes of every value; 0 for a view, and for what a parameter becomes, in its place.
    uses : mapping of str to (list of int)
        For each buffer, positions of the nodes that define or read it or a view of it, ascending.
    lasting : frozenset of str
        Buffers that outlive the program: parameters, outputs and updates.
    """

    sizes: Mapping[str, float]
    uses: Mapping[str, list[int]]
    lasting: frozenset[str]

    def mortal(self) -> Iterator[tuple[str, list[int]]]:
        """Yield the buffers that can be freed after their last use, and their uses."""
        return ((name, uses) for name, uses in self.uses.items() if name not in self.lasting)


def buffers(graph: Graph) -> Buffers:
    """Return the buffers of a program; without a mesh it runs whole on one device."""
    mesh = graph.mesh or Mesh(())
    views = {
        result.name
        for node in graph.nodes
        if operator_class(node.operator).is_view
        for result in node.results
    }
    replaced = {new for _, new in graph.updates}
    sizes = {
        name: 0.0 if name in views or name in replaced else value_bytes(value, mesh)
        for name, value in graph.values.items()
    }
    roots: dict[str, str] = {}  # of a view, the buffer that it looks at
    uses: dict[str, list[int]] = {}
    for position, node in enumerate(graph.nodes):
        if node.name in views and node.operands:
            roots[node.name] = roots.get(node.operands[0], node.operands[0])
        touched = (*node.operands, *(result.name for result in node.results))
        for name in dict.fromkeys(roots.get(name, name) for name in touched):
            uses.setdefault(name, []).append(position)
    lasting = {roots.get(name, name) for name in graph.kept()}
    lasting |= {parameter.name for parameter in graph.parameters}
    return Buffers(sizes, uses, frozenset(lasting))


def peak_memory(graph: Graph) -> MemoryUseReport:
    """Return the peak memory of one rank.

    Buffers are freed after their last use; views take nothing, and updates are made in place.

    Parameters
    ----------
    graph : Graph
        A program; without a mesh it runs whole on one device.
    """
    held = buffers(graph)
    sizes, kinds = held.sizes, _kinds(graph)
    now = dict.fromkeys(_KINDS, 0.0)
    for name in (*(v.name for v in graph.inputs), *(p.name for p in graph.parameters)):
        now[kinds[name]] += sizes[name]
    dies: dict[int, list[str]] = {}
    for name, uses in held.mortal():
        dies.setdefault(uses[-1], []).append(name)
    peak, at, best = sum(now.values()), "the start", dict(now)
    total = peak
    for position, node in enumerate(graph.nodes):
        for result in node.results:
            now[kinds[result.name]] += sizes[result.name]
            total += sizes[result.name]
        if total > peak:
            peak, at, best = total, node.name, dict(now)
        for name in dies.get(position, ()):
            now[kinds[name]] -= sizes[name]
            total -= sizes[name]
    return MemoryUseReport(peak, best, at)


def _kinds(graph: Graph) -> dict[str, str]:
    kinds = dict.fromkeys(graph.values, "activations")
    kinds.update((value.name, "inputs") for value in graph.inputs)
    states = optimizer_states(graph)
    for parameter in graph.parameters:
        kinds[parameter.name] = "optimizer states" if parameter.name in states else "parameters"
        gradient = f"{parameter.name}.grad"
        if parameter.trainable and gradient in graph.producers:
            kinds[gradient] = "gradients"
    return kinds
