"""Liveness of values, and the loop over micro-batches.

Where a mesh has an axis that is run in time, the nodes from the first to the last whose layouts
mention it, or which are marked ``in_passes``, form a loop: each pass runs all of them. The nodes
before run once, and so do the nodes after, which read what the passes have accumulated. Buffers,
which several values may share, are in `dataflow.liveness`.
"""

from collections.abc import Container, Sequence, Set
from dataclasses import dataclass

from shardwright.ir.attributes import Attributes
from shardwright.ir.errors import IRError
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.mesh import Mesh
from shardwright.ir.text import node_text

_ACCUMULATING = ("all_reduce", "all_gather")


@dataclass(frozen=True)
class Loop:
    """The loop over micro-batches of a program.

    Parameters
    ----------
    start, stop : int
        The nodes at these positions, the last excluded, run in every pass.
    passes : int
        Number of passes.
    axes : tuple of str
        The axis of the mesh that is run in time.
    accumulated : frozenset of str
        Values that every pass adds to, or writes a part of; they are known after the last one.
    kept : frozenset of str
        Values from before the loop that it reads, so that they live until its end.
    """

    start: int
    stop: int
    passes: int
    axes: tuple[str, ...]
    accumulated: frozenset[str]
    kept: frozenset[str]

    def times(self, position: int) -> int:
        """Return how often the node at a position runs in a step."""
        return self.passes if self.start <= position < self.stop else 1


def loop_of(graph: Graph) -> Loop | None:
    """Return the loop of a program; None where nothing is run in time."""
    mesh = graph.mesh
    if mesh is None or not mesh.in_time:
        return None
    return graph.analysed("loop", lambda: _loop_of(graph, mesh))


def _loop_of(graph: Graph, mesh: Mesh) -> Loop | None:
    axes = mesh.in_time
    layouts = {id(value.layout): value.layout for value in graph.values.values()}  # few
    mentioning = {key for key, one in layouts.items() if one is not None and one.mentions(axes)}
    split = {name for name, value in graph.values.items() if id(value.layout) in mentioning}
    inside = [
        i
        for i, node in enumerate(graph.nodes)
        if not split.isdisjoint(node.operands)
        or any([result.name in split for result in node.results])
        or node.attributes.get("in_passes")
    ]
    if not inside:
        return None
    start, stop = inside[0], inside[-1] + 1
    body = graph.nodes[start:stop]
    made = {result.name for node in body for result in node.results}
    return Loop(
        start,
        stop,
        mesh.passes,
        axes,
        frozenset(r.name for n in body if accumulates(n, axes) for r in n.results),
        frozenset(name for node in body for name in node.operands) - made,
    )


def times_run(graph: Graph) -> list[int]:
    """Return for each node how often it runs in a step."""
    loop = loop_of(graph)
    if loop is None:
        return [1] * len(graph)
    return [loop.times(position) for position in range(len(graph))]


def execution_order(graph: Graph, passes: int | None = None) -> list[tuple[int, int]]:
    """Return the positions of the nodes in the order in which a step runs them, with their pass.

    Parameters
    ----------
    graph : Graph
        A program.
    passes : int, optional
        The number of passes over micro-batches, where it is not that of the program.
    """
    loop, count = loop_of(graph), len(graph)
    if loop is None:
        return [(position, 0) for position in range(count)]
    order = [(position, 0) for position in range(loop.start)]
    body, passes = range(loop.start, loop.stop), passes or loop.passes
    order += [(position, number) for number in range(passes) for position in body]
    return [*order, *((position, 0) for position in range(loop.stop, count))]


def accumulates(node: Node, axes: tuple[str, ...]) -> bool:
    """Return whether a node reduces or concatenates over axes that are run in time."""
    return accumulates_over(node.operator, node.attributes, axes)


def accumulates_over(operator: str, attributes: Attributes, axes: tuple[str, ...]) -> bool:
    """Return whether an operator with some attributes does; see `accumulates`."""
    over = attributes.get("axes", ())
    return (
        operator in _ACCUMULATING
        and isinstance(over, tuple)
        and not set(axes).isdisjoint(map(str, over))
    )


def mentions(graph: Graph, node: Node, axes: tuple[str, ...]) -> bool:
    """Return whether the layout of an operand or result of a node mentions some axes."""
    values = (*graph.operand_values(node), *node.results)
    return any(value.layout is not None and value.layout.mentions(axes) for value in values)


def check_loop(graph: Graph) -> None:
    """Check that the passes of a loop can run one after the other.

    Communication over the axis accumulates, and does nothing else; no node of the loop reads what
    is accumulated, and nothing after it what a single pass has made.

    Raises
    ------
    IRError
        At the first node that breaks a rule.
    """
    loop = loop_of(graph)
    if loop is None:
        return
    body = graph.nodes[loop.start : loop.stop]
    for node in body:
        _check_communication(node, loop)
        for name in node.operands:
            if name in loop.accumulated:
                raise IRError(
                    f"`{name}` is read in a pass of the loop over `{loop.axes[0]}`, and known "
                    f"after the last pass only",
                    node_text(node),
                )
    single = {result.name for node in body for result in node.results} - loop.accumulated
    read = [(name, node) for node in graph.nodes[loop.stop :] for name in node.operands]
    for name, node in read:
        if name in single:
            raise _of_one_pass(graph.values[name], loop, node_text(node))
    for name in sorted(graph.kept() & single):
        raise _of_one_pass(graph.values[name], loop, f"graph {graph.name}")


def _of_one_pass(value: Value, loop: Loop, where: str) -> IRError:
    return IRError(
        f"`{value.name}` is made anew in every pass of the loop over `{loop.axes[0]}`, and read "
        f"after it",
        where,
        "accumulate it with an `all_reduce` over the axis",
    )


def _check_communication(node: Node, loop: Loop) -> None:
    over = node.attributes.get("axes", ())
    if not isinstance(over, tuple) or set(loop.axes).isdisjoint(map(str, over)):
        return
    if node.operator == "mirror":  # the identity
        return
    if not accumulates(node, loop.axes) or over != loop.axes:
        raise IRError(
            f"`{node.operator}` communicates over {list(over)}, expected an `all_reduce` or an "
            f"`all_gather` over `{loop.axes[0]}` alone: the axis is run in time",
            node_text(node),
        )


def dying_values(graph: Graph, updated: Container[str] = ()) -> tuple[tuple[str, ...], ...]:
    """Return for each node the values that are dead after it, in the last pass of a loop.

    A result without a reader dies at its own node. Parameters outlive the program, except those
    that an update replaces. Values from before a loop that it reads live until its last node.

    Parameters
    ----------
    graph : Graph
        A program.
    updated : container of str
        Parameters that an update replaces.
    """
    lasting = {p.name for p in graph.parameters if p.name not in updated}
    return dying_after(graph.nodes, lasting, loop_of(graph))


def dying_after(
    nodes: Sequence[Node], lasting: Set[str], loop: Loop | None
) -> tuple[tuple[str, ...], ...]:
    """Return for each of some nodes the values that are dead after it; see `dying_values`.

    Parameters
    ----------
    nodes : sequence of Node
        The nodes of a program in the order in which they run, those of its loop in their places.
    lasting : set of str
        Values that outlive the program.
    loop : Loop, optional
        Its loop.
    """
    seen: set[str] = set()
    dying = []
    for position, node in reversed(list(enumerate(nodes))):
        touched = dict.fromkeys((*node.operands, *(result.name for result in node.results)))
        if loop is not None and position == loop.stop - 1:
            touched |= dict.fromkeys(sorted(loop.kept))
        names = tuple(name for name in touched if name not in seen and name not in lasting)
        seen.update(names)
        dying.append(names)
    return tuple(reversed(dying))
