"""Shared layouts: the layout to which a tensor is redistributed once, for several readers."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.profile import ONCE, EdgeLayout
from shardwright.ir.graph import Value
from shardwright.ir.layout import SharedLayout
from shardwright.search.space.context import BuildContext
from shardwright.search.space.draft import EdgeEnd
from shardwright.search.space.space import Choice

Floats = NDArray[np.float64]
Options = tuple[tuple[SharedLayout, ...], Floats, tuple[EdgeLayout, ...]]


def add_shared_layout(
    context: BuildContext,
    value: Value,
    writer: EdgeEnd,
    readers: Sequence[EdgeEnd],
    savers: Sequence[EdgeEnd],
    *,
    saved: bool,
) -> EdgeEnd:
    """Add the variable of the shared layout of a tensor's readers, and return its end.

    Parameters
    ----------
    context : BuildContext
        The space.
    value : Value
        The tensor.
    writer, readers : EdgeEnd
        Where it is written and read.
    savers : sequence of EdgeEnd
        Where it is saved for backward, in forward order.
    saved : bool
        Whether the first saver may share the buffer of the shared layout.
    """
    context.check_budget()
    first = savers[0] if saved else None
    keys = tuple((reader.key, reader is first) for reader in readers)
    passes = context.split_passes(value.name)
    gradient_passes = passes
    if context.micro is not None and context.micro.shares_gradient(value.name):
        gradient_passes = context.passes
    types = context.number_of_types(value.name)
    key = context.number(("shared layout", types, writer.key, keys, saved, gradient_passes))
    options, cost, layouts = context.intern(
        ("shared layout", key),
        lambda: _options(context, value, (writer, *readers), saved, gradient_passes),
    )
    variable = context.draft.add(Choice("tensor", value.name, options), cost)
    end = EdgeEnd(variable, key, layouts, writer.moment)
    end.passes, end.gradient_passes = passes, gradient_passes
    if writer.remade is not None:
        end.remade = np.array([option.remade for option in options])
        needed = any(r.needed is not None and r.needed.all() for r in readers)
        end.needed = np.full(len(options), needed)
    return end


def _options(
    context: BuildContext, value: Value, ends: Sequence[EdgeEnd], saved: bool, times: float
) -> Options:
    """Return the layouts that any end uses, with the cost of adding gradients there."""
    shared: dict[SharedLayout, None] = {}
    types = context.gradient_types(value.name)
    for edge in (edge for end in ends for edge in end.layouts):
        partial = edge.cotangent.partial if edge.cotangent is not None else ()
        layout = context.representative(edge.layout.with_partial(partial))
        shared[SharedLayout(layout.reduced(), layout.partial)] = None
    states = [(True, 0), (False, 0)] if saved else [(False, 0)]
    remade = ends[0].remade
    if remade is not None:  # what is recomputed has no buffer to share
        states = states if (remade == ONCE).any() else []
        codes = sorted(set(remade[remade > ONCE].tolist()))
        states = [*states, *((False, again) for again in codes)]
    options = tuple(
        replace(option, saved=save, remade=again) for save, again in states for option in shared
    )
    additions = times * max(sum(end.has_cotangent for end in ends[1:]) - 1, 0)
    accumulation = context.prices_in_step(value.name, times).accumulation
    reduced = types.reduced
    cost = np.array(
        [
            additions * accumulation(reduced, option.layout) if additions else 0.0
            for option in options
        ]
    )
    wanted = context.has_gradient(value.name)
    layouts = (
        EdgeLayout(option.layout, option.cotangent if wanted else None) for option in options
    )
    return options, cost, tuple(layouts)
