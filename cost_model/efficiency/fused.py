"""Element-wise operators between products of experts, as one kernel.

Training software has the activation between two products of experts in one kernel, compiled or
written by hand: it reads what the products made and writes what the next one reads, and that of the
gradient makes what is between again instead of reading it. A kernel here is those of the
element-wise operators on rows of experts that read each other or the same in one pass: forward,
computed again, or backward.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from shardwright.cost_model.efficiency.work import is_bias_of_rows
from shardwright.ir.graph import Graph, Node
from shardwright.operators.elementwise.functions import Binary, Unary
from shardwright.operators.info import info_of, operator_class


@dataclass(frozen=True)
class Kernel:
    """Element-wise operators that run as one.

    Parameters
    ----------
    positions : tuple of int
        Their positions in the program.
    read, written : tuple of str
        The values that they read of other operators, and those that others read of them.
    made_again : tuple of str
        Values that a later kernel needs and makes again from what these read.
    kept : tuple of str
        What these read and no other pass reads, so that it is kept for that alone.
    clamped : tuple of str
        Rows of others that are clamped here, or whose gradients are cut off where they were.
    """

    positions: tuple[int, ...]
    read: tuple[str, ...]
    written: tuple[str, ...]
    made_again: tuple[str, ...]
    kept: tuple[str, ...]
    clamped: tuple[str, ...] = ()


def kernels(graph: Graph) -> tuple[Kernel, ...]:
    """Return the kernels of element-wise operators on rows of experts."""
    return graph.analysed("fused rows", lambda: tuple(_Fusion(graph).kernels()))


def kernel_of(graph: Graph) -> Mapping[int, Kernel]:
    """Return the kernel of each operator that is in one, by position."""
    return graph.analysed(
        "kernel of rows", lambda: {i: one for one in kernels(graph) for i in one.positions}
    )


class _Fusion:
    """The element-wise operators on rows of experts, and which are connected."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.at = {n.name: i for i, n in enumerate(graph.nodes) if _is_fused(n, graph)}
        self.first = {i: i for i in self.at.values()}
        known: dict[tuple[str, str], int] = {}  # by its pass and what it reads or makes
        for name, i in self.at.items():
            node = graph.nodes[i]
            for touched in (*node.operands, name):
                j = known.setdefault((_pass(node), touched), i)
                self.first[self._head(i)] = self._head(j)

    def _head(self, position: int) -> int:
        while self.first[position] != position:
            position = self.first[position]
        return position

    def kernels(self) -> Iterator[Kernel]:
        """Yield the kernels."""
        groups: dict[int, list[int]] = {}
        for position in sorted(self.at.values()):
            groups.setdefault(self._head(position), []).append(position)
        readers: dict[str, list[Node]] = {}
        for node in self.graph.nodes if groups else ():
            for name in node.operands:
                readers.setdefault(name, []).append(node)
        kept = {new for _, new in self.graph.updates} | set(self.graph.outputs)
        for positions in groups.values():
            yield self._kernel(positions, readers, kept)

    def _kernel(
        self, positions: list[int], readers: Mapping[str, list[Node]], kept: set[str]
    ) -> Kernel:
        nodes = [self.graph.nodes[i] for i in positions]
        names = [node.name for node in nodes]
        read = dict.fromkeys(o for node in nodes for o in self._sources(node.operands))
        written, again = list[str](), list[str]()
        for name in names:
            others = [node for node in readers.get(name, ()) if node.name not in names]
            if name in kept or any(node.name not in self.at for node in others):
                written.append(name)
            elif others:
                again.append(name)
        own = _pass(nodes[0])
        lost = (r for r in read if all(_pass(node) == own for node in readers.get(r, ())))
        clamped = tuple(dict.fromkeys(name for node in nodes for name in self._clamped(node)))
        parts = (tuple(positions), tuple(read), tuple(written), tuple(again), tuple(lost))
        return Kernel(*parts, clamped)

    def _clamped(self, node: Node) -> Iterable[str]:
        """Return the rows that a node clamps, or cuts off the gradients of: `relu` of a sum."""
        if node.operator not in ("relu", "relu_gradient"):
            return ()
        rectified = node if node.operator == "relu" else self._made(node.operands[1])
        summed = None if rectified is None else self._made(rectified.operands[0])
        return self._sources([summed.name]) if summed and summed.operator == "add_scalar" else ()

    def _made(self, name: str) -> Node | None:
        """Return the fused operator that makes a value."""
        return self.graph.nodes[self.at[name]] if name in self.at else None

    def _sources(self, names: Iterable[str]) -> Iterator[str]:
        """Yield what values are made of by operators of no kernel."""
        for name in names:
            position = self.at.get(name)
            if position is None:
                yield name
            else:
                yield from self._sources(self.graph.nodes[position].operands)


def _is_fused(node: Node, graph: Graph) -> bool:
    if len(node.results) != 1 or node.results[0].type.ragged is None:
        return False
    if not issubclass(operator_class(node.operator), Unary | Binary):
        return False
    return not is_bias_of_rows(info_of(graph, node))


def _pass(node: Node) -> str:
    role = node.provenance.role
    return role if role in ("forward", "recompute") else "backward"
