"""Tensors that are saved for backward, as uses of memory of the choices that decide on them.

A tensor with one saving end (a reader or its writer) takes the bytes of that end. Several saving
ends may share one buffer: those that use the layout at which all readers of the tensor meet. The
end that runs first forward saves longest and always counts. For each other, a variable of its own
(``copy``) says whether it shares the buffer or saves a copy. The second counts as a copy unless the
first shares too, which is a state of the shared layout (`SharedLayout.saved`).

Nothing is counted that the emitted program does not hold, so a bound within the limit is a bound.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.dataflow.liveness import buffer_roots
from shardwright.ir.decisions import SharedLayout
from shardwright.ir.graph import Graph, Value
from shardwright.ir.layout import Layout
from shardwright.search.space.draft import Draft, EdgeEnd
from shardwright.search.space.memory import MemoryAccount
from shardwright.search.space.space import Choice
from shardwright.solver.problem import Pair

Floats = NDArray[np.float64]
Once = Callable[[object, Callable[[], Any]], Any]


class SavedTensors:
    """Counts the tensors that backward reads.

    Parameters
    ----------
    draft : Draft
        Gets the variables of copies.
    memory : MemoryAccount
        Gets the uses.
    once : callable
        Interns what equal layers have in common.
    representative : callable
        Returns the layout that stands for a layout.
    """

    def __init__(
        self,
        draft: Draft,
        memory: MemoryAccount,
        once: Once,
        representative: Callable[[Layout], Layout],
    ) -> None:
        self.draft, self.memory, self.once = draft, memory, once
        self.representative = representative

    def layouts(self, end: EdgeEnd) -> list[Layout]:
        """Return the layout at an end for each of its options."""
        return [self.representative(port.layout) for port in end.ports]

    def hold(
        self,
        value: Value,
        savers: Sequence[EdgeEnd],
        shared_layout: EdgeEnd,
        states: Sequence[bool],
    ) -> None:
        """Count what the saving ends of one tensor hold.

        Parameters
        ----------
        value : Value
            The tensor.
        savers : sequence of EdgeEnd
            Where it is saved, in forward order.
        shared_layout : EdgeEnd
            The shared layout of its readers; the writer where it has one reader.
        states : sequence of bool
            For each option of the shared_layout, whether the first saver shares its buffer.
        """
        for position, end in enumerate(savers):
            assert end.saved is not None
            if position == 0:
                self.memory.hold(end.variable, end.saved, end.moment, self._freed(end))
            elif end is not shared_layout:
                shareable = np.array(states) if position == 1 else np.ones(len(states), dtype=bool)
                self.add_copy(value, end, shared_layout, shareable)

    def add_copy(
        self, value: Value, end: EdgeEnd, shared_layout: EdgeEnd, shareable: NDArray[np.bool_]
    ) -> None:
        """Add the variable for whether a saving end shares the buffer of the shared_layout.

        Its options are the layouts at the end: first shared, then as copies.
        """
        at = tuple(dict.fromkeys(self.layouts(end)))
        size = self.once(("copied", end.key, at), lambda: self._copied(end, at))
        copy = self.draft.add(Choice("copy", value.name, at + at), np.zeros(2 * len(at)))
        self.memory.hold(copy, size, end.moment, self._freed(end))
        read = self.once(("read", end.key), lambda: _equal(at, self.layouts(end)))
        key = ("shared", shared_layout.key, end.key, shareable.tobytes())
        shared = self.once(key, lambda: _shared(at, self.layouts(shared_layout), shareable))
        self.draft.copies.append(Pair(copy, end.variable, read, "copy"))
        self.draft.copies.append(Pair(copy, shared_layout.variable, shared, "copy"))

    def _copied(self, end: EdgeEnd, at: Sequence[Layout]) -> Floats:
        assert end.saved is not None
        layouts = np.array([at.index(layout) for layout in self.layouts(end)])
        sizes = [end.saved[layouts == i].min() for i in range(len(at))]
        return np.array([0.0] * len(at) + sizes)

    def _freed(self, end: EdgeEnd) -> int:
        return self.memory.backward(end.moment)


def _equal(at: Sequence[Layout], layouts: Sequence[Layout]) -> Floats:
    """Forbid that a copy has another layout than its reader uses."""
    same = np.array([[one == other for other in layouts] for one in at])
    return np.where(np.concatenate([same, same]), 0.0, np.inf)


def _shared(
    at: Sequence[Layout], layouts: Sequence[Layout], shareable: NDArray[np.bool_]
) -> Floats:
    """Forbid that a buffer is shared where the layouts differ, or the first saver does not."""
    same = np.array([[one == other for other in layouts] for one in at]) & shareable
    return np.where(np.concatenate([same, np.ones_like(same)]), 0.0, np.inf)


def savers_of(ends: Sequence[EdgeEnd]) -> list[EdgeEnd]:
    """Return the ends at which a tensor is saved for backward, in forward order."""
    return sorted((end for end in ends if end.saved is not None), key=lambda end: end.moment)


def states_of(draft: Draft, end: EdgeEnd) -> list[bool]:
    """Return for each option of a shared_layout whether the first saver shares it; else nothing."""
    options = draft.choices[end.variable].options
    states = [option.saved for option in options if isinstance(option, SharedLayout)]
    return states if any(states) else []


def counted_views(graph: Graph, savers: Callable[[str], int]) -> Mapping[str, str]:
    """Return of each value that shares a buffer with others which of them is counted.

    A view shows the buffer of its operand, so of a group of views one value counts: the one with
    the most savers. Of views of a parameter or of a constant none but the source does.
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
