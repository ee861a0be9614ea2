"""CP-SAT until nothing better exists, with two forms of the costs in turn.

Where the bound is near, costs from which it is taken out close the gap at once; where it is far,
the costs as given are better for the linear relaxation inside CP-SAT.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np

from shardwright.solver.large.ascent import used
from shardwright.solver.large.finish import Finish, reparametrise
from shardwright.solver.problem import Array

if TYPE_CHECKING:
    from shardwright.solver.large.search import Search

FIRST_SLICE = 8.0
"""Seconds for the first search; each later one gets longer."""

LONGER = 2.0

TIGHT_ROWS = 50


def close(search: Search) -> None:
    """Search with CP-SAT until the time is over or nothing better exists."""
    incumbent = search.incumbent
    incumbent.how = "presolve, message passing, cp-sat"
    ascent = search.ascent
    keep = np.ones(len(search.graph.unary), bool)
    seconds, turn = FIRST_SLICE, 0
    while incumbent.remaining > 0.05 and not incumbent.closed:
        gap = min(incumbent.target, search.graph.big) - ascent.best
        ascent.prices = ascent.best_prices
        ascent.messages.restore(ascent.best_messages)
        split = reparametrise(search.graph, search.rows, ascent.prices, ascent.messages, gap)
        incumbent.raise_bound(-(-split.floor // split.scale))
        known = _known(search)
        keep &= split.unary <= split.scale * (known - 1) - split.floor
        if turn % 2 == 1:
            free = np.zeros(len(ascent.prices))
            split = reparametrise(search.graph, search.rows, free, None, gap)
        finish = Finish(search.graph, search.rows, split, keep, known, search.offer)
        until = time.monotonic() + seconds

        def remaining(until: float = until) -> float:
            return min(until - time.monotonic(), incumbent.remaining)

        hint = incumbent.choice
        proven = finish.run(hint, _tight(search), remaining, search.seed + turn, search.workers)
        incumbent.raise_bound(incumbent.target if proven else finish.lower_bound())
        seconds, turn = seconds * LONGER, turn + 1


def _known(search: Search) -> int:
    """Return what an assignment must cost less than."""
    if search.incumbent.choice is None:
        return int(search.graph.big)
    return int(search.incumbent.target)


def _tight(search: Search) -> Array:
    """Return rows in which little is left, not close to one another."""
    choice = search.incumbent.choice
    if choice is None:
        return np.zeros(0, np.int64)
    left = (search.rows.capacity - used(search.rows, choice)).astype(np.float64)
    apart = len(left) // 100
    found: list[int] = []
    while len(found) < min(TIGHT_ROWS, len(left)):
        row = int(left.argmin())
        if left[row] == math.inf:
            break
        found.append(row)
        left[max(row - apart, 0) : row + apart + 1] = math.inf
    return np.array(found, dtype=np.int64)
