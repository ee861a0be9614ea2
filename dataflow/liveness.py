"""Liveness of buffers: from which node to which a program needs the memory of each value.

A view shares the buffer of its operand, so live ranges belong to buffers, not to values. Peak
memory, the live bytes of the timeline, and the tensors saved for backward are computed from these.
In a loop over micro-batches the live ranges are those of the passes after the first: accumulators
and values from before the loop live through all of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from shardwright.ir.graph import Graph
from shardwright.ir.liveness import Loop, loop_of
from shardwright.operators.views import buffer_roots, buffers_of


@dataclass(frozen=True)
class Liveness:
    """The live ranges of the buffers of a program; a buffer is named after the value it is made as.

    Parameters
    ----------
    roots : mapping of str to str
        The buffer of each view.
    uses : mapping of str to (list of int)
        For each buffer, positions of the nodes that define or read it or a view of it, ascending.
    touched : sequence of (tuple of str)
        For each position, the buffers that its node reads or defines.
    lasting : frozenset of str
        Buffers that outlive the program: parameters, outputs and updates.
    loop : Loop or None
        The loop over micro-batches.
    """

    roots: Mapping[str, str]
    uses: Mapping[str, list[int]]
    touched: Sequence[tuple[str, ...]]
    lasting: frozenset[str]
    loop: Loop | None = None

    def allocated_at(self, position: int) -> tuple[str, ...]:
        """Return the accumulators that are allocated before a node, where a loop begins."""
        if self.loop is None or position != self.loop.start:
            return ()
        return tuple(sorted(self.loop.accumulated))

    def is_accumulator(self, name: str) -> bool:
        """Return whether a buffer is allocated where a loop begins."""
        return self.loop is not None and name in self.loop.accumulated

    def freed(self) -> Iterator[tuple[str, list[int]]]:
        """Yield the buffers that are freed after their last use, with their uses."""
        return ((name, uses) for name, uses in self.uses.items() if name not in self.lasting)

    @cached_property
    def freed_after(self) -> Mapping[int, Sequence[str]]:
        """The buffers that are freed after each node, by its position."""
        freed: dict[int, list[str]] = {}
        for name, uses in self.freed():
            freed.setdefault(uses[-1], []).append(name)
        return freed


def liveness(graph: Graph) -> Liveness:
    """Return the live ranges of the buffers of a program."""
    roots = buffer_roots(graph.nodes)
    touched = [buffers_of(node, roots) for node in graph.nodes]
    uses: dict[str, list[int]] = {}
    for position, names in enumerate(touched):
        for name in names:
            uses.setdefault(name, []).append(position)
    lasting = {roots.get(name, name) for name in graph.kept()}
    lasting |= {parameter.name for parameter in graph.parameters}
    loop = loop_of(graph)
    if loop is not None:
        _extend(uses, loop, graph, roots)
    return Liveness(roots, uses, touched, frozenset(lasting), loop)


def _extend(uses: dict[str, list[int]], loop: Loop, graph: Graph, roots: Mapping[str, str]) -> None:
    """Extend the uses of buffers that live through the whole loop."""
    body = graph.nodes[loop.start : loop.stop]
    made = {r.name for node in body for r in node.results if r.name not in roots}
    for name, positions in uses.items():
        if name in loop.accumulated:
            positions.insert(0, loop.start)
        if name in loop.accumulated or name not in made:
            inside = any(loop.start <= position < loop.stop for position in positions)
            if inside and positions[-1] < loop.stop - 1:
                positions.append(loop.stop - 1)
