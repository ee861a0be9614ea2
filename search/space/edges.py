"""Edges: the pairwise tables that price a tensor between its writer and its readers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.profile import (
    REGATHERED,
    WHEN_ENTERED,
    WHEN_READ,
    CostProfile,
    EdgeLayout,
)
from shardwright.ir.graph import Value
from shardwright.ir.layout import Layout
from shardwright.search.space.context import BuildContext
from shardwright.search.space.draft import EdgeEnd, is_recomputed, sharing_states
from shardwright.search.space.gradients import GradientTypes

Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]


@dataclass(frozen=True)
class Link:
    """Which of the writer and the only reader of a tensor may be recomputed.

    Parameters
    ----------
    alone : bool
        Whether the writer may be recomputed without its reader.
    kept : bool
        Whether the writer may be saved where its reader is recomputed.
    """

    alone: bool = True
    kept: bool = True

    def allowed(self, writer: EdgeEnd, reader: EdgeEnd) -> Booleans:
        """Return which options go together."""
        nothing = np.zeros(1, dtype=bool)
        remade = (nothing if writer.remade is None else is_recomputed(writer.remade))[:, None]
        reading = nothing if reader.recomputed is None else reader.recomputed > 0
        return (self.alone | ~remade | reading) & (self.kept | remade | ~reading)


def connect(
    context: BuildContext,
    value: Value,
    writer: EdgeEnd,
    reader: EdgeEnd,
    savers: Sequence[EdgeEnd] = (),
    link: Link | None = None,
) -> None:
    """Price a tensor between two ends; the first saver may share the buffer of the other end.

    `link` restricts which of its writer and its reader are recomputed.
    """
    shares = (savers[:1] == [writer], savers[:1] == [reader])
    times = (writer.passes, writer.gradient_passes, reader.passes, reader.gradient_passes)
    of_parameters = value.name in context.of_parameters
    types = context.number_of_types(value.name)
    key = ("edge", types, writer.key, reader.key, shares, link, times, of_parameters)

    def make() -> tuple[Floats, Booleans | None]:
        context.check_budget()
        context.check_tables(len(writer.layouts), len(reader.layouts))
        again = _again(writer, reader)
        table = _priced(context, value, writer, reader)
        for end, other, first in ((writer, reader, shares[1]), (reader, writer, shares[0])):
            if first:
                table = _with_sharing(context, table, end, other, of_rows=end is writer)
        if again is not None:
            table = table + _second(context, value, writer, reader, again)
        if writer.remade is not None and writer.position >= 0 and reader.saved is not None:
            table = np.where(_is_idle(context, value, writer, reader), np.inf, table)
        if link is not None:
            table = np.where(link.allowed(writer, reader), table, np.inf)
        if writer.remade is not None and reader.remade is not None:
            table = np.where(writer.remade[:, None] == reader.remade, table, np.inf)
        if writer.remade is not None and reader.recomputed is not None:
            late = (writer.remade[:, None] == WHEN_READ) & (reader.recomputed == WHEN_ENTERED)
            table = np.where(late, np.inf, table)  # what is computed early reads what is, too
        return table, again

    table, again = context.intern(key, make)
    context.draft.connect(
        writer,
        reader,
        value.type,
        table,
        again,
        of_parameters=of_parameters,
        gradient=context.gradient_types(value.name).reduced,
    )


def equal_layouts(sources: Sequence[Layout], targets: Sequence[Layout]) -> Booleans:
    """Return which of two sequences of layouts are equal, as a table."""
    numbers: dict[Layout, int] = {}
    one, other = (
        np.array([numbers.setdefault(layout, len(numbers)) for layout in layouts])
        for layouts in (sources, targets)
    )
    return np.equal.outer(one, other)


def _again(writer: EdgeEnd, reader: EdgeEnd) -> Booleans | None:
    """Return where a tensor is redistributed a second time; None for nowhere."""
    if writer.remade is None or reader.needed is None:
        return None
    again = (writer.remade > 0)[:, None] & reader.needed
    return again if again.any() else None


def _is_idle(context: BuildContext, value: Value, writer: EdgeEnd, reader: EdgeEnd) -> Booleans:
    """Return where a tensor is regathered for its only reader, and no bytes are saved so."""
    assert writer.remade is not None
    less = context.bytes_at(value.type, writer)[:, None] < context.bytes_at(value.type, reader)
    return (writer.remade == REGATHERED)[:, None] & ~less


def _second(
    context: BuildContext, value: Value, writer: EdgeEnd, reader: EdgeEnd, again: Booleans
) -> Floats:
    """Return the cost of the second redistribution, with its exchange of halos."""
    sources = [EdgeLayout(edge.layout, None) for edge in writer.layouts]
    targets = [EdgeLayout(edge.layout, None) for edge in reader.layouts]
    moves = context.prices_of(value.name).second.edges(value.type, sources, targets)
    exchange = 0.0 if reader.exchange is None else reader.exchange
    return np.where(again, min(writer.passes, reader.passes) * (moves + exchange), 0.0)


def _priced(context: BuildContext, value: Value, writer: EdgeEnd, reader: EdgeEnd) -> Floats:
    profile = context.prices_of(value.name)
    if reader.is_output and context.micro is None:
        return profile.output(value.type, writer.layouts, reader.layouts[0])
    types = context.gradient_types(value.name)
    table = times_edges(profile, types, writer, reader, value.name in context.of_parameters)
    if not writer.fixes_consumers:
        return table
    targets = [edge.layout for edge in reader.layouts]
    equal = equal_layouts([edge.layout for edge in writer.layouts], targets)
    return np.where(equal, table, np.inf)


def times_edges(
    profile: CostProfile,
    types: GradientTypes,
    writer: EdgeEnd,
    reader: EdgeEnd,
    of_parameters: bool = False,
) -> Floats:
    """Return the cost of redistributing a tensor, and its gradient, as often as a step does.

    A tensor made in every pass over micro-batches and read after the last is accumulated in the
    layout of its writer, then redistributed once; a gradient likewise in that of its reader, which
    converts it before it is reduced in another type. That of a value received once from another
    stage is accumulated only: its writer has no cotangents. `of_parameters` says that the tensor is
    made of parameters alone.
    """
    table = _times_moved(profile, types, writer, reader, of_parameters)
    if types.is_converted:
        prices = profile.in_step(reader.gradient_passes, of_parameters)
        table = table + reader_conversions(prices, types, reader)[None, :]
    return table


def reader_conversions(profile: CostProfile, types: GradientTypes, reader: EdgeEnd) -> Floats:
    """Return the cost of converting the gradients that an operator returns, for each option.

    A shared layout adds up gradients that are converted already.
    """
    layouts = [edge.cotangent for edge in reader.layouts]
    costs = np.zeros(len(layouts))
    if reader.position >= 0:
        at = [i for i, layout in enumerate(layouts) if layout is not None]
        given = [layout for layout in layouts if layout is not None]
        costs[at] = reader.gradient_passes * types.conversions(profile, given)
    return costs


def _times_moved(
    profile: CostProfile,
    types: GradientTypes,
    writer: EdgeEnd,
    reader: EdgeEnd,
    of_parameters: bool,
) -> Floats:
    tensor = types.tensor
    passes = max(writer.passes, reader.passes, writer.gradient_passes, reader.gradient_passes)
    if passes == 1:
        prices = profile.in_step(1, of_parameters)
        return types.edges(prices, writer.layouts, reader.layouts)
    starts = [EdgeLayout(edge.layout, None) for edge in writer.layouts]
    ends = [EdgeLayout(edge.layout, None) for edge in reader.layouts]
    times = min(writer.passes, reader.passes)
    table = times * profile.in_step(times, of_parameters).edges(tensor, starts, ends)
    if writer.passes > reader.passes:
        passes = writer.passes
        sums = [types.sum_of_values(profile, edge.layout, passes) for edge in starts]
        table = table + np.array(sums)[:, None]
    back = [i for i, edge in enumerate(reader.layouts) if edge.cotangent is not None]
    if not back:
        return table
    cotangents = [EdgeLayout(e.cotangent, None) for e in reader.layouts if e.cotangent is not None]
    due = [EdgeLayout(e.cotangent, None) for e in writer.layouts if e.cotangent is not None]
    if len(due) == len(starts):
        times = min(writer.gradient_passes, reader.gradient_passes)
        prices = profile.in_step(times, of_parameters).of_gradients
        table[:, back] += times * prices.edges(types.reduced, cotangents, due).T
    if reader.gradient_passes > writer.gradient_passes:
        passes = reader.gradient_passes
        sums = [
            types.accumulation(profile, edge.layout, passes, of_parameters=of_parameters)
            for edge in cotangents
        ]
        table[:, back] += np.array(sums)[None, :]
    return table


def _with_sharing(
    context: BuildContext, table: Floats, end: EdgeEnd, other: EdgeEnd, *, of_rows: bool
) -> Floats:
    """Forbid that the first saver shares the buffer of a shared layout that it does not use."""
    states = sharing_states(context.draft, end)
    if not states:
        return table
    layouts = context.representatives(other)
    equal = equal_layouts(context.representatives(end), layouts)
    allowed = equal | ~np.array(states)[:, None]
    return np.where(allowed if of_rows else allowed.T, table, np.inf)
