"""Local search on an assignment: repair, coordinate descent, and exchanges.

`State.costs` holds the cost of every strategy, given the strategies of the neighbours; a change
updates it along one row of each table. `State.free` holds the memory left in each row.

- `repair` trades cost for memory in the fullest row until the assignment fits;
- `descend` takes changes of one variable, then of two neighbours at once, that fit and gain;
- `exchange` takes a change that gains but does not fit, and repairs; it undoes both if the repair
  costs more than the gain.

The exact search has a descent of its own over the tables of a network (`exact.coordinate_descent`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shardwright.solver.anytime.compiled import compiled
from shardwright.solver.anytime.graph import Graph, Rows
from shardwright.solver.problem import Array


class State(NamedTuple):
    """An assignment, the memory left, and the costs given the neighbours.

    `barrier` holds for each variable a row that had no room for it, or -1: most changes that do
    not fit fail there, which is tested first.
    """

    choice: Array
    free: Array
    costs: Array
    barrier: Array


class LocalSearch:
    """Improves assignments of one problem."""

    def __init__(self, graph: Graph, rows: Rows) -> None:
        self.graph, self.rows = graph, rows
        self.trail = np.zeros((4096, 2), np.int64)

    def start(self, choice: Array) -> State:
        """Return the state of an assignment."""
        barrier = np.full(len(choice), -1)
        state = State(choice.copy(), self.rows.capacity.copy(), self.graph.unary.copy(), barrier)
        fill(self.graph, self.rows, state)
        return state

    def improve(self, choice: Array, thoroughly: bool = True) -> State | None:
        """Repair an assignment and descend from it; return None if the repair fails."""
        state = self.start(choice)
        most = 20 * len(choice) + 1000
        if repair(self.graph, self.rows, state, self.trail, np.inf, most, -1) < 0:
            return None
        descend(self.graph, self.rows, state, thoroughly)
        return state

    def cost(self, choice: Array) -> float:
        """Return the cost of an assignment, without the constant."""
        return float(total_cost(self.graph, choice))

    def allowed(self, choice: Array) -> bool:
        """Return whether no chosen entry is forbidden."""
        graph = self.graph
        unary = graph.unary[graph.offset[:-1] + choice]
        rows = graph.place + choice[graph.first] * graph.size[graph.second]
        entries = graph.tables[rows + choice[graph.second]]
        return bool((unary < graph.big).all() and (entries < graph.big).all())

    def fits(self, choice: Array) -> bool:
        """Return whether an assignment fits into memory."""
        return bool((self.start(choice).free >= 0).all())


@compiled
def total_cost(graph: Graph, choice: Array) -> float:
    """Return the cost of an assignment."""
    offset, unary, first, second = graph.offset, graph.unary, graph.first, graph.second
    size, place, tables = graph.size, graph.place, graph.tables
    total = 0.0
    for v in range(len(size)):
        total += unary[offset[v] + choice[v]]
    for e in range(len(first)):
        total += tables[place[e] + choice[first[e]] * size[second[e]] + choice[second[e]]]
    return total


@compiled
def fill(graph: Graph, rows: Rows, state: State) -> None:
    """Compute `costs` and `free`, which hold the variables' own costs and the capacity."""
    offset, size, first, second = graph.offset, graph.size, graph.first, graph.second
    place, tables, transposed = graph.place, graph.tables, graph.transposed
    choice, free, costs = state.choice, state.free, state.costs
    for e in range(len(first)):
        u, v = first[e], second[e]
        row = place[e] + choice[u] * size[v]
        for b in range(size[v]):
            costs[offset[v] + b] += tables[row + b]
        row = place[e] + choice[v] * size[u]
        for a in range(size[u]):
            costs[offset[u] + a] += transposed[row + a]
    for k in range(len(rows.owner)):
        amount = rows.amount[rows.place[k] + choice[rows.owner[k]]]
        if amount:
            for t in range(rows.first[k], rows.last[k]):
                free[t] -= amount


@compiled
def occupy(rows: Rows, state: State, v: int, a: int, b: int) -> None:
    """Replace the memory of v with strategy a by its memory with b."""
    first, last, place, amount, free = rows.first, rows.last, rows.place, rows.amount, state.free
    for k in range(rows.start[v], rows.start[v + 1]):
        more = amount[place[k] + b] - amount[place[k] + a]
        if more:
            for t in range(first[k], last[k]):
                free[t] -= more


@compiled
def overfull(rows: Rows, state: State, v: int, a: int, b: int) -> int:
    """Return an overfull row in which v uses more with b than with a, or -1."""
    first, last, place, amount, free = rows.first, rows.last, rows.place, rows.amount, state.free
    for k in range(rows.start[v], rows.start[v + 1]):
        if amount[place[k] + b] > amount[place[k] + a]:
            for t in range(first[k], last[k]):
                if free[t] < 0:
                    return t
    return -1


@compiled
def more_at(rows: Rows, state: State, v: int, b: int, t: int) -> int:
    """Return the additional memory of v in row t with strategy b."""
    a, more = state.choice[v], 0
    for k in range(rows.start[v], rows.start[v + 1]):
        if rows.first[k] <= t < rows.last[k]:
            more += rows.amount[rows.place[k] + b] - rows.amount[rows.place[k] + a]
    return more


@compiled
def reprice(graph: Graph, state: State, v: int, b: int) -> float:
    """Change v to strategy b and update its neighbours' costs; return the additional cost."""
    offset, size, first, second = graph.offset, graph.size, graph.first, graph.second
    place, tables, transposed, costs = graph.place, graph.tables, graph.transposed, state.costs
    a = state.choice[v]
    for k in range(graph.ahead_start[v], graph.ahead_start[v + 1]):
        e = graph.ahead[k]
        u = second[e]
        new, old, to = place[e] + b * size[u], place[e] + a * size[u], offset[u]
        for c in range(size[u]):
            costs[to + c] += tables[new + c] - tables[old + c]
    for k in range(graph.behind_start[v], graph.behind_start[v + 1]):
        e = graph.behind[k]
        u = first[e]
        new, old, to = place[e] + b * size[u], place[e] + a * size[u], offset[u]
        for c in range(size[u]):
            costs[to + c] += transposed[new + c] - transposed[old + c]
    state.choice[v] = b
    return costs[offset[v] + b] - costs[offset[v] + a]


@compiled
def change(graph: Graph, rows: Rows, state: State, v: int, b: int) -> float:
    """Change v to strategy b, whether it fits or not; return the additional cost."""
    occupy(rows, state, v, state.choice[v], b)
    return reprice(graph, state, v, b)


@compiled
def change_if_it_fits(graph: Graph, rows: Rows, state: State, v: int, b: int) -> bool:
    """Change v to strategy b if that fits; return whether it does."""
    a, t = state.choice[v], state.barrier[v]
    if t >= 0 and more_at(rows, state, v, b, t) > max(state.free[t], 0):
        return False
    occupy(rows, state, v, a, b)
    t = overfull(rows, state, v, a, b)
    if t < 0:
        reprice(graph, state, v, b)
        return True
    state.barrier[v] = t
    occupy(rows, state, v, b, a)
    return False


@compiled
def repair(
    graph: Graph, rows: Rows, state: State, trail: Array, budget: float, most: int, barred: int
) -> int:
    """Make the assignment fit, by the change with the least cost a byte in the fullest row.

    Return the number of changes, the first of which are in the trail as (variable, old strategy),
    or -1 - that number on failure: the cost has grown by the budget, no change helps, or there are
    more than ``most``. The variable ``barred`` does not change.
    """
    offset, size, costs = graph.offset, graph.size, state.costs
    first, last, owner = rows.first, rows.last, rows.owner
    place, amount, free, choice = rows.place, rows.amount, state.free, state.choice
    spent, steps = 0.0, 0
    while len(free):
        t = free.argmin()
        over = -free[t]
        if over <= 0:
            break
        best_v, best_b, best = -1, -1, np.inf
        for k in range(len(owner)):
            if not first[k] <= t < last[k]:
                continue
            v = owner[k]
            if v == barred:
                continue
            a = choice[v]
            for b in range(size[v]):
                less = amount[place[k] + a] - amount[place[k] + b]
                if less > 0:
                    more = costs[offset[v] + b] - costs[offset[v] + a]
                    score = more / min(less, over) if more > 0 else more * less
                    if score < best:
                        best_v, best_b, best = v, b, score
        if best_v < 0 or steps >= most:
            return -1 - steps
        if steps < len(trail):
            trail[steps, 0], trail[steps, 1] = best_v, choice[best_v]
        spent += change(graph, rows, state, best_v, best_b)
        steps += 1
        if spent >= budget:
            return -1 - steps
    return steps


@compiled
def descend(graph: Graph, rows: Rows, state: State, pairs: bool) -> None:
    """Change one variable, or two neighbours, wherever that fits and gains, to a local optimum."""
    offset, size, costs, choice = graph.offset, graph.size, state.costs, state.choice
    improved = True
    while improved:
        improved = False
        for v in range(len(size)):
            for b in range(size[v]):
                if costs[offset[v] + b] < costs[offset[v] + choice[v]] and change_if_it_fits(
                    graph, rows, state, v, b
                ):
                    improved = True
        if pairs and not improved:
            improved = descend_by_pairs(graph, rows, state)


@compiled
def descend_by_pairs(graph: Graph, rows: Rows, state: State) -> bool:
    """Change the two variables of a pair at once wherever that fits and gains."""
    offset, size, costs, choice = graph.offset, graph.size, state.costs, state.choice
    first, second, place, tables = graph.first, graph.second, graph.place, graph.tables
    apart = np.empty(size.max())
    improved = False
    for e in range(len(first)):
        u, v = first[e], second[e]
        row = place[e] + choice[u] * size[v]
        now, cost_u, cost_v = (
            tables[row + choice[v]],
            costs[offset[u] + choice[u]],
            costs[offset[v] + choice[v]],
        )
        for b in range(size[v]):  # additional cost of v with b, without this table
            apart[b] = costs[offset[v] + b] - cost_v - tables[row + b] + now
        least = apart[: size[v]].min()
        for a in range(size[u]):
            row = place[e] + a * size[v]
            alone = costs[offset[u] + a] - cost_u - tables[row + choice[v]]
            if alone + least >= 0:  # no entry of a table is negative
                continue
            for b in range(size[v]):
                if alone + apart[b] + tables[row + b] < 0 and change_both(
                    graph, rows, state, u, a, v, b
                ):
                    improved = True
                    break
            if choice[u] == a:
                break
    return improved


@compiled
def change_both(graph: Graph, rows: Rows, state: State, u: int, a: int, v: int, b: int) -> bool:
    """Change u to strategy a and v to strategy b if that fits; return whether it does."""
    old_u, old_v = state.choice[u], state.choice[v]
    for t in (state.barrier[u], state.barrier[v]):
        if t >= 0:
            more = more_at(rows, state, u, a, t) + more_at(rows, state, v, b, t)
            if more > max(state.free[t], 0):
                return False
    occupy(rows, state, u, old_u, a)
    occupy(rows, state, v, old_v, b)
    at_u, at_v = overfull(rows, state, u, old_u, a), overfull(rows, state, v, old_v, b)
    if at_u < 0 and at_v < 0:
        reprice(graph, state, u, a)
        reprice(graph, state, v, b)
        return True
    if at_u >= 0:
        state.barrier[u] = at_u
    if at_v >= 0:
        state.barrier[v] = at_v
    occupy(rows, state, u, a, old_u)
    occupy(rows, state, v, b, old_v)
    return False


@compiled
def exchange(graph: Graph, rows: Rows, state: State, trail: Array, order: Array, most: int) -> int:
    """Try changes that gain but do not fit, each with the repair it needs; return the successes."""
    offset, size, costs, choice = graph.offset, graph.size, state.costs, state.choice
    successes = 0
    for v in order:
        for b in range(size[v]):
            old = choice[v]
            gain = costs[offset[v] + old] - costs[offset[v] + b]
            if gain <= 0:
                continue
            change(graph, rows, state, v, b)
            steps = repair(graph, rows, state, trail, gain, most, v)
            if steps >= 0:
                successes += 1
                continue
            for step in range(-2 - steps, -1, -1):
                change(graph, rows, state, trail[step, 0], trail[step, 1])
            change(graph, rows, state, v, old)
    return successes
