"""Segments: the stretches of a program within which tensors are recomputed together.

What a gradient reads is computed again from what is saved. If nothing were saved, the first
gradient would have the whole forward pass computed again, and nothing would be gained. So the
program is divided in segments, and what a segment hands on is saved. A numbered cell (``blocks/0``)
is a segment; where a model has none, segments end where one tensor is handed on, and have several
operators.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby

from shardwright.ir.graph import Graph, Node

_LEAST = 8  # operators of a segment of a program without numbered cells


@lru_cache(maxsize=4096)  # the nodes of a layer have few scopes
def block_of(scope: str) -> str:
    """Return the outermost numbered cell of a scope: ``blocks/0`` of ``blocks/0/attention``."""
    parts = scope.split("/")
    first = next((i for i, part in enumerate(parts) if part.isdigit()), None)
    if first is None:
        return ""
    last = first
    while last < len(parts) and parts[last].isdigit():
        last += 1
    return "/".join(parts[:last])


def blocks_by_stage(graph: Graph) -> tuple[int, ...]:
    """Return how many numbered cells each pipeline stage of a program computes; none without."""
    found: list[set[str]] = [set() for _ in range(graph.stages)]
    for node in graph.nodes:
        stage, block = graph.stage_of(node), block_of(node.scope)
        if stage is not None and block and node.provenance.phase == "forward":
            found[stage].add(block)
    return tuple(map(len, found))


def segments(graph: Graph) -> dict[str, int]:
    """Return the number of the segment of each operator."""
    blocks = [block_of(node.scope) for node in graph.nodes]
    named = any(blocks)
    found: dict[str, int] = {}
    number = 0
    if named:
        of_block: dict[str, int] = {}
        for block, members in groupby(graph.nodes, lambda node: block_of(node.scope)):
            number += 1
            at = of_block.setdefault(block, number) if block else number
            found.update((node.name, at) for node in members)
        return found
    for stretch in _stretches(graph):
        number += 1
        found.update((node.name, number) for node in stretch)
    return found


def _stretches(graph: Graph) -> Iterator[list[Node]]:
    """Yield stretches of the program that hand on one tensor each."""
    position = {node.name: i for i, node in enumerate(graph.nodes)}
    last = {
        node.name: max(
            (position[n.name] for value in node.results for n, _ in graph.uses[value.name]),
            default=-1,
        )
        for node in graph.nodes
    }
    stretch: list[Node] = []
    open_until: dict[str, int] = {}
    for i, node in enumerate(graph.nodes):
        stretch.append(node)
        if any(name in graph.producers for name in node.operands):
            open_until[node.name] = last[node.name]
        open_until = {name: until for name, until in open_until.items() if until > i}
        if len(stretch) >= _LEAST and set(open_until) <= {node.name}:
            yield stretch
            stretch = []
    if stretch:
        yield stretch
