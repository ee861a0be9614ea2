"""Assignments that are one thing in a part of the graph and another in the rest.

Where memory binds, equal layers want to change together: at the best prices one answer changes
all of them and does not fit, another changes none and costs too much. Between the two lies an
assignment that changes as many layers as fit, for the price of one seam.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from shardwright.solver.memory import MemoryRows
from shardwright.solver.network import Network
from shardwright.solver.problem import FORBIDDEN


def along(network: Network) -> list[int]:
    """Return the variables breadth first, from one that lies at an end."""
    order: dict[int, None] = {}
    for start in range(len(network.unary)):
        if start not in order:
            end = _reached(network, start)[-1]
            order.update(dict.fromkeys(_reached(network, end)))
    return list(order)


def _reached(network: Network, start: int) -> list[int]:
    seen, order, waiting = {start}, [start], deque([start])
    while waiting:
        for _, other in network.incident[waiting.popleft()]:
            if other not in seen:
                seen.add(other)
                order.append(other)
                waiting.append(other)
    return order


def blend(
    network: Network,
    rows: MemoryRows,
    order: Sequence[int],
    fitting: Sequence[int],
    cheap: Sequence[int],
) -> list[int]:
    """Return the cheapest assignment that fits of those that are `cheap` up to a place in `order`.

    Beyond it they are `fitting`, which must fit.
    """
    choice = list(fitting)
    slack = rows.capacity - rows.profile(choice)
    cost, forbidden, least, place = 0.0, 0, 0.0, 0
    for position, index in enumerate(order):
        new, old = cheap[index], choice[index]
        if new == old:
            continue
        unary = network.unary[index]
        cost += float(unary[new] - unary[old])
        for table, other in network.incident[index]:
            for value, sign in ((table[new, choice[other]], 1), (table[old, choice[other]], -1)):
                if value >= FORBIDDEN:  # until its neighbour changes too
                    forbidden += sign
                else:
                    cost += sign * float(value)
        for use in rows.by_variable.get(index, []):
            usage = rows.usages[use]
            slack[rows.first[use] : rows.last[use]] -= usage[new] - usage[old]
        choice[index] = new
        if not forbidden and cost < least and slack.min(initial=0.0) >= 0:
            least, place = cost, position + 1
    best = list(fitting)
    for index in order[:place]:
        best[index] = cheap[index]
    return best
