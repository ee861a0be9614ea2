"""A good assignment of a wide network at once: variables are joined, the dearest table first.

Joining v to u keeps for every strategy of u the best one of v, given the table between them:

    f(a) = argmin_b T_uv(a, b) + c_v(b)      c_u(a) += T_uv(a, f(a)) + c_v(f(a))

and every other table of v becomes one of u: T_uw(a, y) += T_vw(f(a), y). What is left in the end
is a constant. The answer is the optimum where the tables form a tree, or agree.
"""

import heapq
from collections.abc import Mapping, Sequence

import numpy as np

from shardwright.solver.problem import Array


def join(costs: Sequence[Array], tables: Mapping[tuple[int, int], Array]) -> list[int]:
    """Return a cheap assignment; infinite costs are avoided where tables of two allow it.

    Parameters
    ----------
    costs : sequence of array
        Of the strategies of each variable.
    tables : mapping of (int, int) to array
        At most one for each two variables.

    Examples
    --------
    >>> import numpy as np
    >>> apart = np.array([[5.0, 0.0], [0.0, 5.0]])
    >>> join([np.zeros(2), np.array([1.0, 0.0]), np.zeros(2)], {(0, 1): apart, (1, 2): apart})
    [0, 1, 0]
    """
    return _Joining(costs, tables).assignment()


class _Joining:
    """Groups of joined variables, each named after one of its members."""

    def __init__(self, costs: Sequence[Array], tables: Mapping[tuple[int, int], Array]) -> None:
        self.costs = dict(enumerate(costs))
        self.members = {i: {i: np.arange(len(cost))} for i, cost in self.costs.items()}
        self.tables: dict[int, dict[int, Array]] = {i: {} for i in self.costs}
        self.queue: list[tuple[float, int, int, int]] = []
        self.changes: dict[tuple[int, int], int] = {}
        for (one, other), table in tables.items():
            self._connect(one, other, table)

    def assignment(self) -> list[int]:
        """Join all that tables connect, and let each group choose."""
        while self.queue:
            _, one, other, change = heapq.heappop(self.queue)
            if other in self.tables.get(one, {}) and self.changes[one, other] == change:
                self._join(one, other)
        best = {i: int(cost.argmin()) for i, cost in self.costs.items()}
        found = {m: int(f[best[i]]) for i, group in self.members.items() for m, f in group.items()}
        return [found[i] for i in range(len(found))]

    def _connect(self, one: int, other: int, table: Array) -> None:
        """Put a table between two groups, and queue it by what a wrong choice costs on average."""
        self.tables[one][other], self.tables[other][one] = table, table.T
        ends = min(one, other), max(one, other)
        self.changes[ends] = self.changes.get(ends, 0) + 1
        weight = float((table - table.min()).mean())
        heapq.heappush(self.queue, (-weight, *ends, self.changes[ends]))

    def _join(self, one: int, other: int) -> None:
        kept, gone = one, other
        if len(self.members[kept]) < len(self.members[gone]):
            kept, gone = other, one
        total = self.tables[kept].pop(gone) + self.costs.pop(gone)
        follows = total.argmin(axis=1)
        self.costs[kept] = self.costs[kept] + total.min(axis=1)
        for member, function in self.members.pop(gone).items():
            self.members[kept][member] = function[follows]
        for neighbour, table in self.tables.pop(gone).items():
            if neighbour == kept:
                continue
            del self.tables[neighbour][gone]
            moved = table[follows]
            if neighbour in self.tables[kept]:
                moved = moved + self.tables[kept][neighbour]
            self._connect(kept, neighbour, moved)
