"""Path relinking: assignments on a path between one that fits and a cheaper one that does not.

Where memory binds, equal layers want to change together: at the best prices one assignment changes
all of them and does not fit, another changes none and costs too much. An assignment on the path
between them changes as many layers as fit, at the cost of one boundary between the two.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from shardwright.solver.memory_rows import MemoryRows
from shardwright.solver.network import Network
from shardwright.solver.problem import FORBIDDEN


def breadth_first(network: Network) -> list[int]:
    """Return the variables breadth first, each component from a variable far from the others."""
    order: dict[int, None] = {}
    for start in range(len(network.unary)):
        if start not in order:
            farthest = _reachable(network, start)[-1]
            order.update(dict.fromkeys(_reachable(network, farthest)))
    return list(order)


def _reachable(network: Network, start: int) -> list[int]:
    """Return the variables reachable from one, breadth first."""
    seen, order, queue = {start}, [start], deque([start])
    while queue:
        for _, other in network.incident[queue.popleft()]:
            if other not in seen:
                seen.add(other)
                order.append(other)
                queue.append(other)
    return order


def relink(
    network: Network,
    rows: MemoryRows,
    order: Sequence[int],
    fitting: Sequence[int],
    cheap: Sequence[int],
) -> list[int]:
    """Return the cheapest assignment that fits on the path from `fitting` to `cheap`.

    The path changes the variables one by one in `order`; `fitting` itself must fit.
    """
    choice = list(fitting)
    slack = rows.capacity - rows.profile(choice)
    cost, forbidden, lowest, best_step = 0.0, 0, 0.0, 0
    for step, index in enumerate(order, start=1):
        new, old = cheap[index], choice[index]
        if new == old:
            continue
        cost += float(network.unary[index][new] - network.unary[index][old])
        for table, other in network.incident[index]:
            for value, sign in ((table[new, choice[other]], 1), (table[old, choice[other]], -1)):
                if value >= FORBIDDEN:  # until the neighbour changes too
                    forbidden += sign
                else:
                    cost += sign * float(value)
        for use in rows.by_variable.get(index, []):
            usage = rows.usages[use]
            slack[rows.first[use] : rows.last[use]] -= usage[new] - usage[old]
        choice[index] = new
        if not forbidden and cost < lowest and slack.min(initial=0.0) >= 0:
            lowest, best_step = cost, step
    best = list(fitting)
    for index in order[:best_step]:
        best[index] = cheap[index]
    return best
