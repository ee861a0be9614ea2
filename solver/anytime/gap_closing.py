"""CP-SAT until nothing better exists, with two forms of the costs in turn.

Where the bound is near, costs from which it is taken out close the gap at once; where it is far,
the costs as given are better for the linear relaxation inside CP-SAT.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np

from shardwright.solver.anytime.cpsat_finish import Finish, reparametrise
from shardwright.solver.anytime.dual_ascent import used
from shardwright.solver.anytime.graph import entries_left
from shardwright.solver.problem import Array

if TYPE_CHECKING:
    from shardwright.solver.anytime.search import Search

FIRST_SLICE = 4.0
"""Seconds that each search gets at least."""

PLAN = (("part", 0.15), ("whole", 0.5), ("whole, as given", 0.5))
"""What is searched in turn, and for which part of the time that is left."""

FIRST_REACH = 1 / 8
"""Part of the gap that the first search looks into, and each later one twice as much."""

TIGHT_ROWS = 50

BUILDING = 2e-5
"""Seconds to build the model, for each entry of a table in it."""


def close(search: Search, seconds: float = math.inf) -> None:
    """Search with CP-SAT until the time is over or nothing better exists.

    The nearer the costs looked for are to the bound, the fewer strategies are possible. So a part
    of the gap comes first: either something is found there, or the bound rises by that part. Where
    the time does not suffice for that, the whole gap is next, in either form of the costs.
    """
    incumbent = search.incumbent
    incumbent.how = "presolve, message passing, cp-sat"
    until = time.monotonic() + min(seconds, max(incumbent.remaining, 0.0))
    turn, reach, too_large = 0, FIRST_REACH, 0
    keep = np.ones(len(search.graph.unary), bool)
    while time.monotonic() < until - 0.05 and not incumbent.closed:
        part, share = PLAN[turn % len(PLAN)]
        left = until - time.monotonic()
        slice_end = time.monotonic() + min(left, max(FIRST_SLICE, share * left))
        whole = part != "part"
        given = part == "whole, as given"
        before = incumbent.cost
        ended = _look(search, keep, 1.0 if whole else reach, slice_end, given, turn)
        too_large = too_large + 1 if ended is None else 0
        if too_large == len(PLAN):
            break
        if ended:
            reach = min(2 * reach, 1.0)
        elif incumbent.cost < before:  # the gap is another one: from the start
            turn += len(PLAN) - turn % len(PLAN)
        else:
            turn += 1


def _look(
    search: Search, keep: Array, reach: float, until: float, given: bool, turn: int
) -> bool | None:
    """Search a part of the gap for some time; return whether all of it was searched.

    Nothing is returned if even the model would take too long to build.
    """
    incumbent, ascent = search.incumbent, search.ascent
    target = min(incumbent.target, search.graph.ceiling)
    ascent.go_back()
    gap = target - ascent.best
    split = reparametrise(search.graph, search.rows, ascent.prices, ascent.messages, gap)
    incumbent.raise_bound(-(-split.floor // split.scale))
    keep &= split.unary <= split.scale * (math.ceil(target) - 1) - split.floor
    if given:
        free = np.zeros(len(ascent.prices))
        split = reparametrise(search.graph, search.rows, free, None, gap)
    bound = incumbent.bound - incumbent.constant
    cutoff = math.ceil(bound + reach * (target - bound))
    whole = reach >= 1 or cutoff >= target
    if whole:
        cutoff = math.ceil(target)
    most = split.scale * (cutoff - 1) - split.floor
    entries = entries_left(search.graph, keep & (split.unary <= most))
    if entries * BUILDING > until - time.monotonic():
        return None
    finish = Finish(search.graph, search.rows, split, keep, cutoff, search.offer)

    def remaining() -> float:
        return min(until - time.monotonic(), incumbent.remaining)

    workers, seed = search.workers, search.seed + turn
    proven = finish.run(incumbent.choice, _tight(search), remaining, seed, workers)
    if proven:
        # Nothing else costs less than the cutoff; without one known, nothing fits at all.
        incumbent.raise_bound(incumbent.target if whole else min(incumbent.target, cutoff))
    else:
        incumbent.raise_bound(min(finish.lower_bound(), cutoff))
    return proven


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
