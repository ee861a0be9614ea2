"""Variable elimination with Pareto fronts: every message keeps undominated (cost, use) states.

Where memory binds, the cheapest assignment does not consist of cheapest parts. So a message keeps,
for every choice of its variables, all partial assignments that no other dominates in cost and use.
The prices p found before prune them: with

    gap(state) = (its cost + p . its use) - (the least such sum for the same choice)  >= 0,

an assignment costs at least the priced total of its choices plus the gaps of its parts, so a state
for which that reaches the incumbent's cost is pruned. If more than `width` states remain in a
message, those with the highest bound are set aside, and the least bound among them is reported.
Equal layers give equal sums, so the fronts stay short where an enumeration would meet every
symmetric assignment.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shardwright.solver.elimination import Elimination, Group
from shardwright.solver.memory_rows import MemoryRows
from shardwright.solver.network import Network
from shardwright.solver.problem import Array
from shardwright.solver.work import SECONDS_OF

JOIN_LIMIT = 40
"""A join makes at most this many times `width` states before pruning."""

DOMINATORS = 12
"""With several rows, the number of the best states of a choice that a state is compared with."""


@dataclass
class States:
    """Partial assignments; every array has one entry a state.

    Parameters
    ----------
    key : integers
        The choice of the message's variables, as a flat index.
    cost, gap, bound : floats
        The cost so far; the gap (see the module); the least priced total of a whole assignment.
    use : floats of shape (states, rows)
    label : integers
        The strategy of the eliminated variable.
    parents : list of integers
        For each incoming message, the position of its state.
    """

    key: Array
    cost: Array
    gap: Array
    bound: Array
    use: Array
    label: Array
    parents: list[Array]

    def __len__(self) -> int:
        return len(self.key)

    def take(self, places: Array) -> States:
        """Return the states at these places."""
        parents = [parent[places] for parent in self.parents]
        return States(
            key=self.key[places],
            cost=self.cost[places],
            gap=self.gap[places],
            bound=self.bound[places],
            use=self.use[places],
            label=self.label[places],
            parents=parents,
        )


@dataclass(frozen=True)
class FrontierAnswer:
    """The best assignment below the cutoff, if any, and a bound on all others below it."""

    choice: list[int] | None
    bound: float


class Frontier:
    """One network, the binding rows, and the prices that prune.

    Parameters
    ----------
    network : Network
    rows : MemoryRows
    prices : array
        One for each row; the last `elimination.minimise` was at these prices.
    binding : list of int
        The rows that the search respects; all with a price must be among them.
    elimination : Elimination
    """

    def __init__(
        self,
        network: Network,
        rows: MemoryRows,
        prices: Array,
        binding: list[int],
        elimination: Elimination,
    ) -> None:
        self.network = network
        self.elimination = elimination
        self.capacity = rows.capacity[binding]
        self.spent = float(prices[binding] @ self.capacity)
        self.use = use_in_rows(network, rows, binding)
        self.width = 0
        self.threshold = math.inf
        self.set_aside = math.inf
        self._tables = list(network.tables.values())

    def search(self, cutoff: float, width: int, keep_going: Callable[[], bool]) -> FrontierAnswer:
        """Search for the best assignment that costs less than ``cutoff``.

        Returns
        -------
        FrontierAnswer
            Every assignment that respects the rows and costs less than the answer (or than
            ``cutoff``, if there is none) costs at least the bound.
        """
        total = sum(float(self.elimination.array(root.message)) for root in self.elimination.roots)
        error = 1e-12 * (abs(total) + abs(self.spent))
        self.threshold = cutoff + self.spent + error
        self.width, self.set_aside = width, math.inf
        least = total
        starts = {}
        for group, joint, outside in self.elimination.joints():
            starts[group.message] = (self._start(group, joint), outside)
        messages: dict[int, States] = {}
        for (group,) in self.elimination.groups:
            start, outside = starts.pop(group.message)
            messages[group.message] = self._message(group, start, outside, messages)
            if not len(messages[group.message]):
                return FrontierAnswer(None, self._proven(cutoff, error))
            if not keep_going():
                return FrontierAnswer(None, least - self.spent - error)
        return self._finish(messages, total, cutoff, error)

    def _proven(self, cutoff: float, error: float) -> float:
        return min(cutoff, self.set_aside - self.spent - error)

    def _start(self, group: Group, joint: Array) -> tuple[tuple[Array, ...], Array]:
        """Return the choices of the group's variables that can lead below the threshold."""
        places = np.nonzero(joint < self.threshold)
        return places, joint[places]

    def _message(
        self,
        group: Group,
        start: tuple[tuple[Array, ...], Array],
        outside: Array,
        messages: dict[int, States],
    ) -> States:
        places, bound = start
        states = States(
            key=np.arange(len(bound)),
            cost=self._own_cost(group, places),
            gap=np.zeros(len(bound)),
            bound=bound,
            use=self.use[group.scope[0]][places[0]],
            label=places[0],
            parents=[],
        )
        for factor, axes in group.factors:
            if self.elimination.is_message(factor):
                shape = self.elimination.values[factor].shape
                keys = _flat([places[axis] for axis in axes], shape, len(bound))
                states = self._join(states, keys, messages[factor])
        shape = outside.shape
        states.key = _flat([place[states.key] for place in places[1:]], shape, len(states))
        message = self.elimination.array(group.message)
        inside = (np.broadcast_to(outside, message.shape) + message).ravel()
        states.gap = np.maximum(states.bound - inside[states.key], 0.0)
        return self._narrow(_undominated(states))

    def _own_cost(self, group: Group, places: tuple[Array, ...]) -> Array:
        """Return the cost, without prices, of the factors that are no messages."""
        elimination = self.elimination
        cost = np.zeros(len(places[0]))
        for factor, axes in group.factors:
            if elimination.is_message(factor):
                continue
            if factor < len(elimination.sizes):
                array = self.network.unary[factor]
            else:
                array = self._tables[factor - len(elimination.sizes)]
            cost += array[tuple(places[axis] for axis in axes)]
        return cost

    def _join(self, states: States, keys: Array, other: States) -> States:
        """Join each state with the states of a message that have the same choice.

        ``keys`` holds the key in the message of each choice, which ``states.key`` indexes.
        """
        wanted = keys[states.key]
        room = self.threshold - states.bound
        # Sorted by key, then gap; both in one number, so that one search finds the last state.
        scale = float(other.gap.max()) * 1.001 or 1.0
        ranks = other.key + other.gap / scale
        order = np.argsort(ranks, kind="stable")
        ranks = ranks[order]
        first = np.searchsorted(ranks, wanted)
        last = np.searchsorted(ranks, wanted + np.minimum(room / scale + 1e-9, 1.0 - 1e-9))
        counts = np.maximum(last - first, 0)
        counts = self._limit(states, counts)
        left = np.repeat(np.arange(len(states)), counts)
        offsets = np.arange(len(left)) - np.repeat(np.cumsum(counts) - counts, counts)
        right = order[first[left] + offsets]
        self.elimination.budget.charge(len(left) * SECONDS_OF.state)
        bound = states.bound[left] + other.gap[right]
        use = states.use[left] + other.use[right]
        kept = (bound < self.threshold) & (use <= self.capacity).all(axis=1)
        left, right = left[kept], right[kept]
        return States(
            key=states.key[left],
            cost=states.cost[left] + other.cost[right],
            gap=states.gap[left],
            bound=bound[kept],
            use=use[kept],
            label=states.label[left],
            parents=[*(parent[left] for parent in states.parents), right],
        )

    def _limit(self, states: States, counts: Array) -> Array:
        """Set aside the states with the highest bound if their join would be too large."""
        most = JOIN_LIMIT * self.width
        if counts.sum() <= most:
            return counts
        order = np.argsort(states.bound, kind="stable")
        kept = np.cumsum(counts[order]) <= most
        kept[0] = True
        gone = order[~kept]
        self.set_aside = min(self.set_aside, float(states.bound[gone].min()))
        counts = counts.copy()
        counts[gone] = 0
        return counts

    def _narrow(self, states: States) -> States:
        """Keep the `width` states with the lowest bound."""
        if len(states) <= self.width:
            return states
        order = np.argsort(states.bound, kind="stable")
        self.set_aside = min(self.set_aside, float(states.bound[order[self.width]]))
        return states.take(np.sort(order[: self.width]))

    def _finish(
        self, messages: dict[int, States], total: float, cutoff: float, error: float
    ) -> FrontierAnswer:
        """Join the components; return the cheapest assignment."""
        roots = self.elimination.roots
        alone = [messages[root.message] for root in roots if len(messages[root.message]) == 1]
        several = [root for root in roots if len(messages[root.message]) > 1]
        zero = np.zeros(1, dtype=np.int64)
        states = States(
            key=zero,
            cost=np.array([sum(float(lone.cost[0]) for lone in alone)]),
            gap=np.zeros(1),
            bound=np.array([total + sum(float(lone.gap[0]) for lone in alone)]),
            use=sum((lone.use for lone in alone), np.zeros((1, len(self.capacity)))),
            label=zero,
            parents=[],
        )
        if (states.use > self.capacity).any():
            return FrontierAnswer(None, self._proven(cutoff, error))
        for root in several:
            states = self._narrow(_undominated(self._join(states, zero, messages[root.message])))
        proven = self._proven(cutoff, error)
        below = np.flatnonzero(states.cost < cutoff)
        if not below.size:
            return FrontierAnswer(None, proven)
        best = int(below[states.cost[below].argmin()])
        pending = [(root, 0) for root in roots if len(messages[root.message]) == 1]
        pending += [
            (root, int(parent[best])) for root, parent in zip(several, states.parents, strict=True)
        ]
        choice = self._trace(pending, messages)
        return FrontierAnswer(choice, min(proven, float(states.cost[best]) - error))

    def _trace(self, pending: list[tuple[Group, int]], messages: dict[int, States]) -> list[int]:
        """Decode an assignment: follow the states back to the choices of their parents."""
        choice = [0] * len(self.network.unary)
        makers = {group.message: group for (group,) in self.elimination.groups}
        while pending:
            group, place = pending.pop()
            states = messages[group.message]
            choice[group.scope[0]] = int(states.label[place])
            children = [
                factor for factor, _ in group.factors if self.elimination.is_message(factor)
            ]
            pending += [
                (makers[factor], int(parent[place]))
                for factor, parent in zip(children, states.parents, strict=True)
            ]
        return choice


def use_in_rows(network: Network, rows: MemoryRows, binding: list[int]) -> list[Array]:
    """Return, for each variable, its use above the base: (strategies, rows)."""
    use = [np.zeros((size, len(binding))) for size in network.sizes]
    for position, variable in enumerate(rows.variables):
        extra = rows.usages[position] - rows.lowest[position]
        for column, row in enumerate(binding):
            if rows.first[position] <= row < rows.last[position]:
                use[variable][:, column] += extra
    return use


def _flat(places: list[Array], shape: tuple[int, ...], count: int) -> Array:
    """Return the flat index of places in an array of this shape."""
    if not places:
        return np.zeros(count, dtype=np.int64)
    return np.asarray(np.ravel_multi_index(tuple(places), shape))


def _undominated(states: States) -> States:
    """Drop states that another one of the same choice dominates in cost and every use.

    Exact with one row; with several, a state is compared with the best few of its choice.
    """
    if len(states) < 2:
        return states
    if states.use.shape[1] == 1:
        order = np.lexsort((states.cost, states.use[:, 0], states.key))
        return states.take(np.sort(order[_descending_records(states, order)]))
    order = np.lexsort((states.bound, states.key))
    states = states.take(order)
    starts = np.flatnonzero(np.diff(states.key, prepend=states.key[0] - 1))
    sizes = np.diff(starts, append=len(states))
    segment = np.repeat(np.arange(len(starts)), sizes)
    kept = np.ones(len(states), dtype=bool)
    for rank in range(min(DOMINATORS, int(sizes.max()))):
        best = np.minimum(starts + rank, starts + sizes - 1)[segment]
        dominated = (states.cost[best] <= states.cost) & (states.use[best] <= states.use).all(
            axis=1
        )
        kept &= ~dominated | (np.arange(len(states)) <= best) | ~kept[best]
    return states.take(np.flatnonzero(kept))


def _descending_records(states: States, order: Array) -> Array:
    """Mark, along ``order``, the states cheaper than all before them with the same key."""
    cost, key = states.cost[order], states.key[order]
    rank = np.empty(len(cost), dtype=np.int64)
    rank[np.lexsort((np.arange(len(cost)), cost))] = np.arange(len(cost))
    group = np.cumsum(np.diff(key, prepend=key[0]) != 0)
    # All ranks of a later key are below those of an earlier one: the minimum restarts.
    level = rank - group * (len(cost) + 1)
    lowest = np.minimum.accumulate(level)
    return np.asarray(level == lowest)
