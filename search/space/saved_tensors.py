"""Tensors that are saved for backward, as uses of memory of the choices that decide on them.

A tensor with one saving end (a reader or its writer) takes the bytes of that end. Several saving
ends may share one buffer: those that use the shared layout of the tensor's readers. The end that
runs first forward saves longest and always counts. For each other, a variable of its own (``copy``)
says whether it shares the buffer or saves a copy. The second counts as a copy unless the first
shares too, which is a state of the shared layout (`SharedLayout.saved`).

Nothing is counted that the emitted program does not hold, so a bound within the limit is a bound.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from shardwright.dataflow.liveness import buffer_roots
from shardwright.ir.graph import Graph, Value
from shardwright.ir.layout import Layout
from shardwright.search.space.context import BuildContext
from shardwright.search.space.draft import EdgeEnd
from shardwright.search.space.space import Choice

Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]


class SavedTensors:
    """Counts the tensors that are saved for backward.

    Parameters
    ----------
    context : BuildContext
        The space.
    """

    def __init__(self, context: BuildContext) -> None:
        self.context, self.memory = context, context.memory

    def hold(
        self, value: Value, savers: Sequence[EdgeEnd], shared: EdgeEnd, states: Sequence[bool]
    ) -> None:
        """Count what the saving ends of one tensor hold.

        Parameters
        ----------
        value : Value
            The tensor.
        savers : sequence of EdgeEnd
            Where it is saved, in forward order.
        shared : EdgeEnd
            The shared layout of its readers; the writer where it has one reader.
        states : sequence of bool
            For each option of the shared layout, whether the first saver shares its buffer.
        """
        for position, end in enumerate(savers):
            assert end.saved is not None
            if position == 0:
                self.memory.hold(end.variable, end.saved, end.moment, self._freed(end))
            elif end is not shared:
                shareable = np.array(states) if position == 1 else np.ones(len(states), dtype=bool)
                self.add_copy(value, end, shared, shareable)

    def add_copy(self, value: Value, end: EdgeEnd, shared: EdgeEnd, shareable: Booleans) -> None:
        """Add the variable for whether a saving end shares the buffer of the shared layout.

        Its options are the layouts at the end: first shared, then as copies.
        """
        context, layouts = self.context, self.context.representatives(end)
        at = tuple(dict.fromkeys(layouts))
        size = context.intern(("copy bytes", end.key, at), lambda: _copy_bytes(end, at, layouts))
        copy = context.draft.add(Choice("copy", value.name, at + at), np.zeros(2 * len(at)))
        self.memory.hold(copy, size, end.moment, self._freed(end))
        used = context.intern(("copy used", end.key), lambda: _copy_is_used(at, layouts))
        context.draft.tie(copy, end.variable, used)
        key = ("copy shared", shared.key, end.key, shareable.tobytes())
        reuse = context.intern(
            key, lambda: _may_share(at, context.representatives(shared), shareable)
        )
        context.draft.tie(copy, shared.variable, reuse)

    def _freed(self, end: EdgeEnd) -> int:
        return self.memory.backward(end.moment)


def _copy_bytes(end: EdgeEnd, at: Sequence[Layout], layouts: Sequence[Layout]) -> Floats:
    assert end.saved is not None
    positions = np.array([at.index(layout) for layout in layouts])
    sizes = [end.saved[positions == i].min() for i in range(len(at))]
    return np.array([0.0] * len(at) + sizes)


def _copy_is_used(at: Sequence[Layout], layouts: Sequence[Layout]) -> Floats:
    """Constrain a copy to the layout that its reader uses."""
    same = np.array([[one == other for other in layouts] for one in at])
    return np.where(np.concatenate([same, same]), 0.0, np.inf)


def _may_share(at: Sequence[Layout], layouts: Sequence[Layout], shareable: Booleans) -> Floats:
    """Allow to share a buffer only if the layouts match, and the first saver shares it too."""
    same = np.array([[one == other for other in layouts] for one in at]) & shareable
    return np.where(np.concatenate([same, np.ones_like(same)]), 0.0, np.inf)


def counted_views(graph: Graph, savers: Callable[[str], int]) -> Mapping[str, str]:
    """Return for each value that shares a buffer with others the one that is counted.

    A view shares the buffer of its operand, so of a group of views one value counts: the one with
    the most savers. Of the views of a parameter or of a constant, only the source counts.
    """
    roots = buffer_roots(graph.nodes)
    constants = {node.name for node in graph.nodes if not node.operands and node.name in roots}
    fixed = {parameter.name for parameter in graph.parameters} | constants
    groups: dict[str, list[str]] = {}
    for name, root in roots.items():
        groups.setdefault(root, [root]).append(name)
    counted = {}
    for root, names in groups.items():
        chosen = root if root in fixed else max(names, key=savers)
        counted.update(dict.fromkeys(names, chosen))
    return counted
