"""A fast heuristic for wide networks: variables are joined in the order of their tables' weight.

Joining v to u keeps for every strategy of u the best one of v, given the table between them:

    f(a) = argmin_b T_uv(a, b) + c_v(b)      c_u(a) += T_uv(a, f(a)) + c_v(f(a))

and every other table of v becomes one of u: T_uw(a, y) += T_vw(f(a), y). At the end a constant is
left. The answer is optimal where the tables form a tree, or agree.
"""

import heapq
from collections.abc import Mapping, Sequence

import numpy as np

from shardwright.solver.problem import Array


def join(costs: Sequence[Array], tables: Mapping[tuple[int, int], Array]) -> list[int]:
    """Return a cheap assignment; it avoids infinite costs where single tables show them.

    Parameters
    ----------
    costs : sequence of array
        The cost vector of each variable.
    tables : mapping of (int, int) to array
        At most one for two variables.

    Examples
    --------
    >>> import numpy as np
    >>> apart = np.array([[5.0, 0.0], [0.0, 5.0]])
    >>> join([np.zeros(2), np.array([1.0, 0.0]), np.zeros(2)], {(0, 1): apart, (1, 2): apart})
    [0, 1, 0]
    """
    return _Joining(costs, tables).assignment()


class _Joining:
    """Groups of joined variables; one member stands for each group."""

    def __init__(self, costs: Sequence[Array], tables: Mapping[tuple[int, int], Array]) -> None:
        self.costs = dict(enumerate(costs))
        self.members = {i: {i: np.arange(len(cost))} for i, cost in self.costs.items()}
        self.tables: dict[int, dict[int, Array]] = {i: {} for i in self.costs}
        self.queue: list[tuple[float, int, int, int]] = []
        self.changes: dict[tuple[int, int], int] = {}
        for (one, other), table in tables.items():
            self._connect(one, other, table)

    def assignment(self) -> list[int]:
        """Join all groups that tables connect, then decide each group."""
        while self.queue:
            _, one, other, change = heapq.heappop(self.queue)
            if other in self.tables.get(one, {}) and self.changes[one, other] == change:
                self._join(one, other)
        best = {i: int(cost.argmin()) for i, cost in self.costs.items()}
        choice = {m: int(f[best[i]]) for i, group in self.members.items() for m, f in group.items()}
        return [choice[i] for i in range(len(choice))]

    def _connect(self, one: int, other: int, table: Array) -> None:
        """Set the table of two groups; queue it by the mean cost of a wrong choice."""
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
