"""Variable elimination: the exact optimum of a network of small tree width.

Eliminating variable v replaces the factors that mention it by one over its neighbours N:

    message(x_N) = min over x_v of the sum of the factors that mention v         `_minimise_out`

After the last variable the constant is the optimum; going back, each variable takes the lowest
index among its best strategies given those already decided. The order is chosen once for the
structure (smallest message first, then the variable whose neighbourhood has been touched least,
then the lowest index), so that equal layers are eliminated alike: a message depends only on the
factors it is made of, and is computed once for equal factors (`_messages`).

Where a message would be too large, the factors are split into groups with a message each (mini
buckets, Dechter and Rish 2003): then the value is a lower bound, and `exact` is false.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from shardwright.solver.problem import Array

MESSAGE_LIMIT = 2**24
"""Largest message, in entries: 128 MiB."""

WORK_LIMIT = 2**31
"""Most additions for one message: some seconds."""

JOINT_LIMIT = 2**25
"""Largest table of a variable and its neighbours that `Elimination.joints` forms."""

CHUNK = 2**16
"""Entries of one broadcast sum: it stays in the cache."""


class OutOfTimeError(Exception):
    """The messages take longer than they may."""


Factor = int
"""Position in the list of factors: the variables' costs, the tables, then the messages."""


@dataclass(frozen=True)
class Group:
    """Factors that are minimised together, and where the axes of each stand in `scope`.

    ``scope[0]`` is the variable that goes; the message is over the others.
    """

    scope: tuple[int, ...]
    factors: tuple[tuple[Factor, tuple[int, ...]], ...]
    message: Factor


@dataclass(frozen=True)
class Relaxed:
    """The value of a minimisation (a lower bound unless exact) and the decided strategies."""

    value: float
    choice: list[int]


class Elimination:
    """The order and the groups for one structure; costs can be changed without a new order.

    Parameters
    ----------
    sizes : list of int
        Strategies of each variable.
    edges : iterable of (int, int)
        The pairs of variables that have a table, the lower one first.
    message_limit : int
        Largest message in entries.

    Attributes
    ----------
    patience : float
        Seconds that `minimise` may take before it raises `OutOfTimeError`.
    """

    def __init__(
        self,
        sizes: list[int],
        edges: Iterable[tuple[int, int]],
        message_limit: int = MESSAGE_LIMIT,
    ) -> None:
        self.sizes = sizes
        self.edges = list(edges)
        self.message_limit = message_limit
        self.patience = math.inf
        self.exact = True
        self.largest_message = 1
        self.messages_computed = 0
        self._deadline = math.inf
        self.scopes: list[tuple[int, ...]] = [(index,) for index in range(len(sizes))]
        self.scopes += self.edges
        self.groups: list[list[Group]] = []
        self._plan()
        self._known: dict[Hashable, tuple[int, Array]] = {}
        self.values: list[Array] = []  # of every factor, at the last costs

    def _plan(self) -> None:
        """Choose the order; write down which factors go into which message."""
        waiting: list[list[Factor]] = [[index] for index in range(len(self.sizes))]
        neighbours: list[set[int]] = [set() for _ in self.sizes]
        for factor, (first, second) in enumerate(self.edges, start=len(self.sizes)):
            for index in (first, second):
                waiting[index].append(factor)
            neighbours[first].add(second)
            neighbours[second].add(first)
        touched = [0] * len(self.sizes)
        newest = [self._priority(index, neighbours, touched) for index in range(len(self.sizes))]
        queue = list(newest)
        heapq.heapify(queue)
        while queue:
            entry = heapq.heappop(queue)
            index = entry[2]
            if entry is not newest[index]:
                continue  # its neighbours have changed since
            changed = self._eliminate(index, waiting, neighbours)
            for other in changed:
                touched[other] = max(touched[other], touched[index] + 1)
                newest[other] = self._priority(other, neighbours, touched)
                heapq.heappush(queue, newest[other])

    def _priority(
        self, index: int, neighbours: list[set[int]], touched: list[int]
    ) -> tuple[int, int, int]:
        entries = 1
        for other in neighbours[index]:
            entries *= self.sizes[other]
        return entries, touched[index], index

    def _eliminate(
        self, index: int, waiting: list[list[Factor]], neighbours: list[set[int]]
    ) -> list[int]:
        """Form the groups of one variable; return its former neighbours."""
        groups = []
        for members, scope in self._split(index, waiting[index]):
            message = len(self.scopes)
            self.scopes.append(scope)
            positions = {variable: axis for axis, variable in enumerate((index, *scope))}
            factors = tuple(
                [
                    (member, tuple([positions[variable] for variable in self.scopes[member]]))
                    for member in members
                ]
            )
            groups.append(Group((index, *scope), factors, message))
            self.largest_message = max(self.largest_message, self.entries(scope))
            for variable in scope:
                waiting[variable] = [
                    factor for factor in waiting[variable] if factor not in members
                ] + [message]
            for variable in scope:
                neighbours[variable].update(scope)
                neighbours[variable] -= {variable, index}
        self.groups.append(groups)
        return sorted(neighbours[index])

    def _split(
        self, index: int, factors: list[Factor]
    ) -> list[tuple[list[Factor], tuple[int, ...]]]:
        """Group the factors so that no message is too large: one group, if it can be.

        With each group goes the scope of its message.
        """
        scope = self._scope_without(index, factors)
        if self._fits(index, scope):
            return [(factors, scope)]
        self.exact = False
        groups: list[tuple[list[Factor], tuple[int, ...]]] = []
        for factor in sorted(factors, key=lambda member: -len(self.scopes[member])):
            for position, (members, _) in enumerate(groups):
                scope = self._scope_without(index, [*members, factor])
                if self._fits(index, scope):
                    groups[position] = [*members, factor], scope
                    break
            else:
                groups.append(([factor], self._scope_without(index, [factor])))
        return groups

    def _fits(self, index: int, scope: tuple[int, ...]) -> bool:
        entries = self.entries(scope)
        return entries <= self.message_limit and entries * self.sizes[index] <= WORK_LIMIT

    def _scope_without(self, index: int, factors: list[Factor]) -> tuple[int, ...]:
        variables = {variable for factor in factors for variable in self.scopes[factor]}
        return tuple(sorted(variables - {index}))

    def entries(self, scope: tuple[int, ...]) -> int:
        """Return the size of a table over these variables."""
        entries = 1
        for variable in scope:
            entries *= self.sizes[variable]
        return entries

    def minimise(
        self, unary: list[Array], tables: list[Array], tokens: list[Hashable] | None = None
    ) -> Relaxed:
        """Return the least total cost and an assignment that the messages lead to.

        Parameters
        ----------
        unary, tables : lists of float64 arrays
            In the order of the sizes and edges given to the constructor.
        tokens : list of hashable, optional
            What identifies each of the `unary` arrays; equal tokens promise equal arrays. Without
            it, and for the tables, the same object is the same array.

        Raises
        ------
        OutOfTimeError
            If it takes longer than `patience`.
        """
        self._deadline = time.monotonic() + self.patience
        names: list[Hashable] = list(tokens) if tokens else [id(array) for array in unary]
        names += [id(table) for table in tables]
        values = [*unary, *tables]
        self._messages(values, names)
        self.values = values
        constant = sum(
            float(values[group.message])
            for groups in self.groups
            for group in groups
            if len(group.scope) == 1
        )
        return Relaxed(constant, self._decide(values))

    def _messages(self, values: list[Array], names: list[Hashable]) -> None:
        """Append every message to ``values``; what the previous call knew is not computed again."""
        known: dict[Hashable, tuple[int, Array]] = {}
        for groups in self.groups:
            for group in groups:
                key = tuple((names[factor], axes) for factor, axes in group.factors)
                found = known.get(key) or self._known.get(key)
                if found is None:
                    self.messages_computed += 1
                    shape = tuple(self.sizes[variable] for variable in group.scope)
                    parts = [
                        _spread(values[factor], axes, len(shape)) for factor, axes in group.factors
                    ]
                    # Negative, so that it is no `id` of an array.
                    found = (-self.messages_computed, _minimise_out(parts, shape, self._deadline))
                known[key] = found
                names.append(found[0])
                values.append(found[1])
        self._known = known

    @property
    def can_complete(self) -> bool:
        """Whether `joints` is possible: all exact, and no table too large."""
        largest = max((self.entries(group[0].scope) for group in self.groups), default=0)
        return self.exact and largest <= JOINT_LIMIT

    def joints(self) -> Iterator[tuple[Group, Array, Array]]:
        """Yield each group with the least totals that its choices allow, the last group first.

        The first array is the least total cost of the network for every choice of the group's
        variables, the second what of that lies outside the group and the messages into it. They
        belong to the costs of the last `minimise`.
        """
        roots = {group.message for group in self.roots}
        total = sum(float(self.values[root]) for root in roots)
        outside = {root: np.array(total - float(self.values[root])) for root in roots}
        for (group,) in reversed(self.groups):
            rest = outside.pop(group.message)
            joint = self._joint(group, rest)
            yield group, joint, rest
            for factor, axes in group.factors:
                if self.is_message(factor):
                    outside[factor] = _outside(joint, self.values[factor], axes)

    @property
    def roots(self) -> list[Group]:
        """The groups whose message is a constant, one for each component."""
        return [group for groups in self.groups for group in groups if len(group.scope) == 1]

    def is_message(self, factor: Factor) -> bool:
        """Whether a factor is a message, not a cost or a table of the network."""
        return factor >= len(self.sizes) + len(self.edges)

    def marginals(self) -> list[Array]:
        """Return, for each strategy, the least total cost of an assignment that chooses it."""
        result: list[Array] = [np.zeros(0)] * len(self.sizes)
        for group, joint, _ in self.joints():
            result[group.scope[0]] = joint.reshape(joint.shape[0], -1).min(axis=1)
        return result

    def _joint(self, group: Group, outside: Array) -> Array:
        """Return the total cost for every choice of one variable and its neighbours."""
        dimensions = len(group.scope)
        total = np.broadcast_to(outside, tuple(self.sizes[index] for index in group.scope))
        for factor, axes in group.factors:
            total = total + _spread(self.values[factor], axes, dimensions)
        return total

    def _decide(self, values: list[Array]) -> list[int]:
        """Go back through the order; ties go to the lowest index."""
        choice, whole = [0] * len(self.sizes), slice(None)
        for groups in reversed(self.groups):
            index = groups[0].scope[0]
            if self.sizes[index] == 1:
                continue
            factors = [factor for group in groups for factor, _ in group.factors]
            # A line of each table, and the costs themselves.
            lines = [
                values[factor]
                if len(self.scopes[factor]) == 1
                else values[factor][
                    tuple([whole if v == index else choice[v] for v in self.scopes[factor]])
                ]
                for factor in factors
            ]
            total = lines[0]
            for line in lines[1:]:
                total = total + line
            choice[index] = int(total.argmin())
        return choice


def _spread(array: Array, axes: tuple[int, ...], dimensions: int) -> Array:
    """View an array whose axes stand at ``axes`` among ``dimensions``, ready to broadcast."""
    order = sorted(range(len(axes)), key=axes.__getitem__)
    shape = [1] * dimensions
    for axis, position in enumerate(axes):
        shape[position] = array.shape[axis]
    return array.transpose(order).reshape(shape)


def _outside(joint: Array, message: Array, axes: tuple[int, ...]) -> Array:
    """Return the least of ``joint`` without ``message``, per choice of the message's variables."""
    others = tuple(axis for axis in range(joint.ndim) if axis not in axes)
    ascending = sorted(axes)
    least = joint.min(axis=others).transpose([ascending.index(axis) for axis in axes])
    with np.errstate(invalid="ignore"):
        rest: Array = least - message
    return np.where(np.isnan(rest), np.inf, rest)


def _minimise_out(parts: list[Array], shape: tuple[int, ...], deadline: float) -> Array:
    """Return the minimum over the first axis of the broadcast sum of ``parts``."""
    entries = 1
    for size in shape[1:]:
        entries *= size
    step = max(1, CHUNK // entries)
    best: Array | None = None
    for start in range(0, shape[0], step):
        total: Array = np.zeros(1)
        for part in sorted(parts, key=lambda part: part.size):
            if time.monotonic() > deadline:
                raise OutOfTimeError
            total = total + (part[start : start + step] if part.shape[0] > 1 else part)
        least = np.broadcast_to(total, (total.shape[0], *shape[1:])).min(axis=0)
        best = least if best is None else np.minimum(best, least)
    assert best is not None
    return best
