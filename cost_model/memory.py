"""Memory of an emitted program: what one rank holds at the fullest moment of a step."""

from collections.abc import Mapping
from dataclasses import dataclass

from shardwright.cost_model.roofline import local_bytes
from shardwright.ir.graph import Graph, Value
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.operators.info import operator_info

_KINDS = ("parameters", "optimizer states", "gradients", "inputs", "activations")


@dataclass(frozen=True)
class MemoryUseReport:
    """Bytes on one rank at the fullest moment.

    Parameters
    ----------
    peak_bytes : float
        The sum.
    by_kind : mapping of str to float
        Parameters, optimizer states, gradients, inputs, and activations with all other buffers.
    at : str
        The node during which the peak is reached.
    """

    peak_bytes: float
    by_kind: Mapping[str, float]
    at: str


def peak_memory(graph: Graph) -> MemoryUseReport:
    """Return the peak memory of one rank.

    Buffers are freed after their last use; views take nothing, and updates are made in place.

    Parameters
    ----------
    graph : Graph
        A program; without a mesh it runs whole on one device.
    """
    mesh = graph.mesh or Mesh(())
    sizes = {value.name: _bytes(value, mesh) for value in graph.values.values()}
    for name in (*_views(graph), *(new for _, new in graph.updates)):
        sizes[name] = 0.0
    kinds = _kinds(graph)
    now = dict.fromkeys(_KINDS, 0.0)
    for name in (*(v.name for v in graph.inputs), *(p.name for p in graph.parameters)):
        now[kinds[name]] += sizes[name]
    dies = _last_uses(graph)
    peak, at, best = sum(now.values()), "the start", dict(now)
    total = peak
    for node in graph.nodes:
        for result in node.results:
            now[kinds[result.name]] += sizes[result.name]
            total += sizes[result.name]
        if total > peak:
            peak, at, best = total, node.name, dict(now)
        for name in dies.get(node.name, ()):
            now[kinds[name]] -= sizes[name]
            total -= sizes[name]
    return MemoryUseReport(peak, best, at)


def _bytes(value: Value, mesh: Mesh) -> float:
    return local_bytes(value.type, value.layout or Layout.replicated(value.type.rank), mesh)


def _kinds(graph: Graph) -> dict[str, str]:
    kinds = dict.fromkeys(graph.values, "activations")
    kinds.update((value.name, "inputs") for value in graph.inputs)
    for parameter in graph.parameters:
        kinds[parameter.name] = "parameters" if parameter.trainable else "optimizer states"
        if f"{parameter.name}.grad" in kinds:
            kinds[f"{parameter.name}.grad"] = "gradients"
    return kinds


def _views(graph: Graph) -> list[str]:
    found = []
    for node in graph.nodes:
        types = [value.type for value in graph.operand_values(node)]
        if operator_info(node.operator, types, node.attributes).is_view:
            found += [result.name for result in node.results]
    return found


def _last_uses(graph: Graph) -> dict[str, list[str]]:
    """Return for each node the values that nobody reads after it.

    A view keeps its operand alive; parameters and what leaves the program never die.
    """
    roots: dict[str, str] = {}
    views = set(_views(graph))
    for node in graph.nodes:
        if node.name in views and node.operands:
            roots[node.name] = roots.get(node.operands[0], node.operands[0])
    last: dict[str, str] = {}
    for node in graph.nodes:
        for name in (*node.operands, *(result.name for result in node.results)):
            last[roots.get(name, name)] = node.name
    forever = {roots.get(name, name) for name in graph.kept()}
    forever |= {parameter.name for parameter in graph.parameters}
    dies: dict[str, list[str]] = {}
    for name, node_name in last.items():
        if name not in forever:
            dies.setdefault(node_name, []).append(name)
    return dies
