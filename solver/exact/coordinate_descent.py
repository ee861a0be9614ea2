"""Coordinate descent: change one variable at a time while that lowers the cost and fits.

`anytime.local_search` descends too, in compiled loops over flat arrays; this one reads the tables
of a network, and looks for the cheapest strategy that fits, not for any that is cheaper.
"""

from __future__ import annotations

import numpy as np

from shardwright.solver.memory_rows import MemoryRows
from shardwright.solver.network import Network
from shardwright.solver.problem import Array

SWEEPS = 20  # at most: sums that differ by rounding alone could go round in circles


def descend(network: Network, rows: MemoryRows, choice: list[int]) -> list[int]:
    """Return a local optimum that fits, reached from ``choice``, which must fit.

    Each variable in turn takes its cheapest strategy that fits (the lowest index of equal ones),
    until a sweep changes nothing. One that is cheapest stays so until a neighbour changes, so
    sweeps pass over it. Those of equal layers share their costs.
    """
    choice, incident = list(choice), network.incident
    slack = rows.capacity - rows.profile(choice)
    waits = [len(unary) > 1 for unary in network.unary]
    tables, others = network.incident_tables, network.neighbours
    known: dict[tuple[int, ...], tuple[Array, float]] = {}
    for _ in range(SWEEPS):
        changed = False
        for index, unary in enumerate(network.unary):
            if not waits[index]:
                continue
            key = (id(unary), *tables[index], *[choice[other] for other in others[index]])
            if key not in known:
                total = unary
                for table, other in incident[index]:
                    total = total + table[:, choice[other]]
                known[key] = total, float(total.min())
            total, least = known[key]
            waits[index] = least < total.item(choice[index])
            if waits[index] and _move(rows, slack, choice, index, total):
                changed = True
                for other in others[index]:
                    waits[other] = len(network.unary[other]) > 1
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
    cheaper = total < total[current]
    for usage, span in uses:  # what does not fit alone does not fit with the others
        cheaper &= usage <= slack[span].min()
    candidates = np.flatnonzero(cheaper)
    for candidate in candidates[np.argsort(total[candidates], kind="stable")]:
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
