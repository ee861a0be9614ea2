"""Coordinate descent: change one variable at a time while that lowers the cost and fits.

`anytime.local_search` descends too, in compiled loops over flat arrays; this one reads the tables
of a network, and looks for the cheapest strategy that fits, not for any that is cheaper.
"""

from __future__ import annotations

import numpy as np

from shardwright.solver.memory_rows import MemoryRows
from shardwright.solver.network import Network
from shardwright.solver.problem import Array

SWEEPS = 20


def descend(network: Network, rows: MemoryRows, choice: list[int]) -> list[int]:
    """Return a local optimum that fits, reached from ``choice``, which must fit.

    Each variable in turn takes its cheapest strategy that fits (the lowest index of equal ones),
    until a sweep changes nothing.
    """
    choice = list(choice)
    slack = rows.capacity - rows.profile(choice)
    for _ in range(SWEEPS):
        changed = False
        for index, unary in enumerate(network.unary):
            if len(unary) == 1:
                continue
            total = unary
            for table, other in network.incident[index]:
                total = total + table[:, choice[other]]
            if total.min() < total[choice[index]]:
                changed |= _move(rows, slack, choice, index, total)
        if not changed:
            break
    return choice


def _move(rows: MemoryRows, slack: Array, choice: list[int], index: int, total: Array) -> bool:
    """Change a variable to its cheapest strategy that fits; update ``slack``."""
    uses = [
        (rows.usages[position], slice(rows.first[position], rows.last[position]))
        for position in rows.by_variable.get(index, [])
    ]
    current = choice[index]
    for usage, span in uses:
        slack[span] += usage[current]
    for candidate in np.argsort(total, kind="stable"):
        if candidate == current:
            break
        for usage, span in uses:
            slack[span] -= usage[candidate]
        if all(slack[span].min() >= 0 for _, span in uses):
            choice[index] = int(candidate)
            return True
        for usage, span in uses:
            slack[span] += usage[candidate]
    for usage, span in uses:
        slack[span] -= usage[current]
    return False
