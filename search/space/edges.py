"""Edges: the pairwise tables that price a tensor between its writer and its readers."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shardwright.ir.graph import Value
from shardwright.search.space.context import BuildContext
from shardwright.search.space.draft import EdgeEnd
from shardwright.search.space.shared_layouts import sharing_states

Floats = NDArray[np.float64]


def connect(
    context: BuildContext,
    value: Value,
    writer: EdgeEnd,
    reader: EdgeEnd,
    savers: Sequence[EdgeEnd] = (),
) -> None:
    """Price a tensor between two ends; the first saver may share the buffer of the other end."""
    context.check_time()
    shares = (savers[:1] == [writer], savers[:1] == [reader])
    key = ("edges", value.type, writer.key, reader.key, shares)

    def make() -> Floats:
        table = _priced(context, value, writer, reader)
        for end, other, first in ((writer, reader, shares[1]), (reader, writer, shares[0])):
            if first:
                table = _with_sharing(context, table, end, other, of_rows=end is writer)
        return table

    context.draft.connect(writer, reader, value.type, context.intern(key, make))


def _priced(context: BuildContext, value: Value, writer: EdgeEnd, reader: EdgeEnd) -> Floats:
    profile = context.profile
    if reader.is_output:
        return profile.output(value.type, writer.layouts, reader.layouts[0])
    table = profile.edges(value.type, writer.layouts, reader.layouts)
    if not writer.fixes_consumers:
        return table
    targets = [edge.layout for edge in reader.layouts]
    equal = [[edge.layout == target for target in targets] for edge in writer.layouts]
    return np.where(equal, table, np.inf)


def _with_sharing(
    context: BuildContext, table: Floats, end: EdgeEnd, other: EdgeEnd, *, of_rows: bool
) -> Floats:
    """Forbid that the first saver shares the buffer of a shared layout that it does not use."""
    states = sharing_states(context.draft, end)
    if not states:
        return table
    layouts = context.representatives(other)
    equal = np.array([[a == b for b in layouts] for a in context.representatives(end)])
    allowed = equal | ~np.array(states)[:, None]
    return np.where(allowed if of_rows else allowed.T, table, np.inf)
