"""Tensors that are saved for backward, as uses of memory of the choices that decide on them.

A tensor with one saving end (a reader or its writer) takes the bytes of that end. Several saving
ends may share one buffer: those that use the shared layout of the tensor's readers. The end that
runs first forward saves longest and always counts. For each other, a variable of its own (``copy``)
says whether it shares the buffer or saves a copy. The second counts as a copy unless the first
shares too, which is a state of the shared layout (`SharedLayout.saved`).

Nothing is counted that the emitted program does not hold, so a bound within the limit is a bound.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.profile import REGATHERED, WHEN_ENTERED
from shardwright.ir.graph import Graph, Value
from shardwright.ir.layout import Layout
from shardwright.operators.views import buffer_roots
from shardwright.search.space.context import BuildContext
from shardwright.search.space.distinct import DistinctLayouts
from shardwright.search.space.draft import EdgeEnd, is_freed
from shardwright.search.space.space import Choice

Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]
Integers = NDArray[np.int64]


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
        self,
        value: Value,
        savers: Sequence[EdgeEnd],
        writer: EdgeEnd,
        shared: EdgeEnd,
        states: Sequence[bool],
        entered: int = 0,
    ) -> None:
        """Count what the saving ends of one tensor hold.

        Parameters
        ----------
        value : Value
            The tensor.
        savers : sequence of EdgeEnd
            Where it is saved, in forward order.
        writer : EdgeEnd
            Where it is written.
        shared : EdgeEnd
            The shared layout of its readers; the writer where it has one reader.
        states : sequence of bool
            For each option of the shared layout, whether the first saver shares its buffer.
        entered : int
            When backward enters the segment of its producer.
        """
        for position, end in enumerate(savers):
            assert end.saved is not None
            if position == 0:
                last = self._freed(savers[-1])
                self._hold_first(value, end, writer, shared, (entered, last))
            elif end is not shared:
                shareable = np.array(states) if position == 1 else np.ones(len(states), dtype=bool)
                self.add_copy(value, end, shared, shareable)
        if savers and savers[0] is not writer and writer.remade is not None:
            self._hold_regathered(value, savers, writer)

    def hold_for_recomputation(
        self,
        value: Value,
        ends: Sequence[EdgeEnd],
        writer: EdgeEnd,
        shared: EdgeEnd,
        saved: bool,
    ) -> None:
        """Count a tensor that a second computation of its readers reads, until backward begins.

        Parameters
        ----------
        value : Value
            The tensor.
        ends : sequence of EdgeEnd
            Where operators read it whose gradient does not, and that may be recomputed.
        writer, shared : EdgeEnd
            Where it is written, and the shared layout of its readers.
        saved : bool
            Whether it is saved for a gradient, too; then these readers may share the buffer.
        """
        for end in ends if saved else ends[:1]:
            assert end.recomputed is not None
            if writer.remade is None and not saved and writer.kept is None:
                usage = self.context.bytes_at(value.type, end) * (end.recomputed > 0)
                self._hold(value, end.variable, usage, end)
            else:
                shareable = np.full(len(shared.layouts), saved)
                if writer.kept is not None:
                    shareable |= writer.kept > 0
                self.add_copy(value, end, shared, shareable)

    def _hold_first(
        self,
        value: Value,
        end: EdgeEnd,
        writer: EdgeEnd,
        shared: EdgeEnd,
        remade: tuple[int, int],
    ) -> None:
        """Count the bytes of the end that saves a tensor longest.

        If it is recomputed, then from one of two moments on: when backward enters the segment of
        its producer, or when the last saver reads it.
        """
        assert end.saved is not None
        if writer.remade is None:
            self._hold(value, end.variable, end.saved, end)
        elif end is writer:
            usage = np.where(is_freed(writer.remade), 0.0, end.saved)
            self._hold(value, end.variable, usage, end)
            size = np.minimum(end.saved, self.context.bytes_at(value.type, end))
            when = np.where(is_freed(writer.remade), writer.remade, 0)
            self._hold_remade(end.variable, size, when, remade, self._freed(end))
        else:
            self._add_first_copy(value, end, shared, remade)

    def _add_first_copy(
        self, value: Value, end: EdgeEnd, shared: EdgeEnd, remade: tuple[int, int]
    ) -> None:
        """Add the variable for whether a reader saves a copy, or reads what is recomputed.

        Of what is recomputed, the buffer of the shared layout or that of the reader is held: the
        smaller of the two in any case.
        """
        assert shared.remade is not None
        stop, states = self._freed(end), set(shared.remade[shared.remade > 0].tolist())
        early, late = remade[0] < remade[1] and WHEN_ENTERED in states, remade[1] < stop
        nothing = np.zeros(len(shared.layouts), dtype=bool)
        if not early and not late:
            if not shared.remade.all():
                self.add_copy(value, end, shared, nothing)
            return
        again = self._remade(value, end, shared)
        copy = self.add_copy(value, end, shared, nothing, again)
        first = len(self.context.draft.choices[copy].options) - len(again)
        size = np.array([0.0] * first + [option.size for option in again])
        when = np.array([0] * first + [option.when for option in again])
        self._hold_remade(copy, size, when, remade, stop)

    def _remade(self, value: Value, end: EdgeEnd, shared: EdgeEnd) -> tuple["_Remade", ...]:
        """Return the sizes that may be held of a recomputed tensor."""
        assert end.saved is not None
        assert shared.remade is not None
        own, sizes = end.saved, self.context.bytes_at(value.type, shared)
        options = []
        for when in sorted(set(shared.remade[shared.remade > 0].tolist())):
            met = sizes[shared.remade == when]
            options += [_Remade(size, when, True) for size in _distinct(own) if size <= met.max()]
            options += [_Remade(size, when, False) for size in _distinct(met) if size < own.max()]
        return tuple(options)

    def _hold_remade(
        self,
        variable: int,
        size: Floats,
        when: Integers,
        remade: tuple[int, int],
        stop: int,
    ) -> None:
        """Count a recomputed tensor until the last gradient that reads it."""
        entered, last = remade
        self.memory.hold_transient(variable, size * (when > 0), last, stop)
        early = when == WHEN_ENTERED
        if early.any():
            self.memory.hold_transient(variable, size * early, entered, min(last, stop))

    def _hold_regathered(self, value: Value, savers: Sequence[EdgeEnd], writer: EdgeEnd) -> None:
        """Count a regathered tensor as it is made, until it may be redistributed again.

        A recomputed reader may redistribute it before a gradient does.
        """
        assert writer.remade is not None
        again = writer.remade == REGATHERED
        if not again.any() or not self.context.is_counted(value.name):
            return
        due = min(self.memory.backward(end.moment) for end in savers)
        early = [
            (end.remade_at, end)
            for end in self.context.readers[value.name]
            if end.recomputed is not None and end.remade_at is not None and end.remade_at < due
        ]
        usage = self.context.bytes_at(value.type, writer) * again
        hold = self.memory.hold_saved if self.context.is_of_pass(value.name) else self.memory.hold
        hold(writer.variable, usage, savers[0].moment, min([due, *(moment for moment, _ in early)]))
        if len(early) == 1:
            self._hold_until_gradient(value, writer, early[0][1], due)

    def _hold_until_gradient(
        self, value: Value, writer: EdgeEnd, reader: EdgeEnd, due: int
    ) -> None:
        """Count a regathered tensor until a gradient reads it, unless its reader is recomputed."""
        assert writer.remade is not None
        assert reader.recomputed is not None
        assert reader.remade_at is not None
        context, again = self.context, writer.remade == REGATHERED
        bytes_made, remade = context.bytes_at(value.type, writer), reader.recomputed > 0
        sizes = _distinct(bytes_made[again])
        rows = [~again, again, *(again & (bytes_made == size) for size in sizes)]
        columns = [np.ones_like(remade), remade, *[~remade] * len(sizes)]
        options = (writer.layouts[0].layout,) * len(rows)
        copy = context.draft.add(Choice("copy", value.name, options), np.zeros(len(rows)))
        for end, allowed in ((writer, rows), (reader, columns)):
            table = np.where(np.array(allowed), 0.0, np.inf)
            key = ("regathered until", writer.key, reader.key, table.tobytes())
            context.draft.tie(copy, end.variable, context.intern(key, partial(np.copy, table)))
        usage = context.intern(
            ("regathered bytes", writer.key), lambda: np.array([0.0, 0.0, *sizes])
        )
        self.memory.hold(copy, usage, reader.remade_at, due)

    def add_copy(
        self,
        value: Value,
        end: EdgeEnd,
        shared: EdgeEnd,
        shareable: Booleans,
        remade: Sequence["_Remade"] = (),
    ) -> int:
        """Add the variable for whether a saving end shares the buffer of the shared layout.

        Its options are the layouts at the end, first shared, then as copies; then, where there is
        the choice, that the tensor is not needed, and that it is recomputed instead: once, or
        with so many bytes held.
        """
        context = self.context
        met, layouts = context.representatives(shared), context.representatives(end)
        again = tuple(remade) or ((None,) if shared.remade is not None else ())
        at = context.intern(("distinct layouts", end.key), lambda: DistinctLayouts(layouts))
        copies = _Copies(end, at, again)
        key = ("copy bytes", end.key, again)
        sizes = context.bytes_at(value.type, end) if end.saved is None else end.saved
        size = context.intern(key, lambda: copies.bytes(sizes))
        options = copies.options(len(size))
        copy = context.draft.add(Choice("copy", value.name, options), np.zeros(len(size)))
        self._hold(value, copy, size, end)
        used = context.intern(("copy used", *key), copies.used)
        context.draft.tie(copy, end.variable, used)
        reuse = context.intern(
            ("copy shared", shared.key, end.key, shareable.tobytes(), again),
            lambda: copies.reuse(shared, met, shareable, context.bytes_at(value.type, shared)),
        )
        context.draft.tie(copy, shared.variable, reuse)
        return copy

    def _hold(self, value: Value, variable: int, usage: Floats, end: EdgeEnd) -> None:
        """Count what an end saves, in every micro-batch in flight that has its own."""
        if not self.context.is_counted(value.name):
            return
        memory = self.memory
        hold = memory.hold_saved if self.context.is_of_pass(value.name) else memory.hold
        hold(variable, usage, end.moment, self._freed(end))

    def _freed(self, end: EdgeEnd) -> int:
        """Return until when a tensor is surely held for an end."""
        if end.saved is None and end.remade_at is not None:
            return end.remade_at
        return self.memory.backward(end.moment)


@dataclass(frozen=True)
class _Remade:
    """That a tensor is recomputed, and what is held of it: the smaller of two buffers.

    Parameters
    ----------
    size : float
        The bytes.
    when : int
        As in `OperatorTable.recomputed`.
    of_end : bool
        Whether the buffer of the reader is the smaller one; else that of the shared layout.
    """

    size: float
    when: int
    of_end: bool


@dataclass(frozen=True)
class _Copies:
    """The options of one saving end: shared, copied, not needed, recomputed.

    Parameters
    ----------
    end : EdgeEnd
        The saving end.
    at : DistinctLayouts
        The layouts of its options.
    again : tuple of _Remade or None
        The options in which the tensor is recomputed; None for any bytes.
    """

    end: EdgeEnd
    at: DistinctLayouts
    again: tuple[_Remade | None, ...]

    def options(self, count: int) -> tuple[Layout, ...]:
        """Return so many options; those without a copy have any layout."""
        at = self.at.layouts
        return (*at, *at, *at[:1] * (count - 2 * len(at)))

    def bytes(self, sizes: Floats) -> Floats:
        """Return the bytes that are saved with each option."""
        count = len(self.at.layouts)
        copied = [sizes[self.at.place == i].min() for i in range(count)]
        others = len(self.again) + (self.end.saved is None)
        return np.array([0.0] * count + copied + [0.0] * others)

    def used(self) -> Floats:
        """Constrain a copy to the layout that its reader uses."""
        same = self._same(self.at.place)
        again = self.end.recomputed if self.end.saved is None else None
        needed = np.ones(len(self.at.place), dtype=bool) if again is None else again > 0
        rows = [same & needed, same & needed]
        rows += [~needed[None, :]] if again is not None else []
        rows += [(needed & self._holds(option))[None, :] for option in self.again]
        return np.where(np.concatenate(rows), 0.0, np.inf)

    def _same(self, places: Integers) -> Booleans:
        """Return which of some layouts each of the distinct ones at the end is."""
        return np.arange(len(self.at.layouts))[:, None] == places

    def _holds(self, option: _Remade | None) -> Booleans:
        """Return with which options of the end a recomputed tensor takes so many bytes."""
        if option is None or self.end.saved is None:
            return np.ones(len(self.at.place), dtype=bool)
        saved = self.end.saved
        return saved == option.size if option.of_end else saved > option.size

    def reuse(
        self, shared: EdgeEnd, met: Sequence[Layout], shareable: Booleans, sizes: Floats
    ) -> Floats:
        """Allow to share a buffer only if the layouts match, and the first saver shares it too."""
        same = self._same(self.at.places(met)) & shareable
        remade = np.zeros(len(met), dtype=np.int64) if shared.remade is None else shared.remade
        rows = [same & (remade == 0), np.ones_like(same) & (remade == 0)]
        rows += [np.ones((1, len(met)), dtype=bool)] if self.end.saved is None else []
        for option in self.again:
            allowed = remade > 0
            if option is not None:
                fits = sizes >= option.size if option.of_end else sizes == option.size
                allowed = (remade == option.when) & fits
            rows.append(allowed[None, :])
        return np.where(np.concatenate(rows), 0.0, np.inf)


def _distinct(sizes: Floats) -> list[float]:
    return sorted(set(sizes.tolist()))


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
