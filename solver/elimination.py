"""Variable elimination (bucket elimination): the exact optimum of a network of small tree width.

Eliminating variable v replaces the factors over it by one message over its neighbours N:

    message(x_N) = min over x_v of the sum of the factors over v                 `least_sums`

After the last variable the constant is the optimum; in reverse, each variable takes the lowest
index among its best strategies, given those decided before. The order depends on the structure only
(smallest message first, then least depth of elimination, then lowest index), so that equal layers
are eliminated in the same order: a message is memoized by its factors, and without what it adds to
all choices alike, so that messages of one layer after the other soon are the same.

Where a message would be too large, the factors are split into groups with one message each (mini
buckets, Dechter and Rish 2003): then the value is a lower bound, and `exact` is false.
"""

from __future__ import annotations

import heapq
import math
import zlib
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardwright.solver.least_sums import LARGE, least_sums
from shardwright.solver.problem import Array, Identity
from shardwright.solver.work import SECONDS_OF, Budget

MESSAGE_LIMIT = 2**24
"""Largest message, in entries: 128 MiB."""

WORK_LIMIT = 2**31
"""Most additions for one message: some seconds."""

WORK_PER_SECOND = 2**30
"""Additions of elimination in a second of work."""

LARGE_PER_SECOND = 2**33
"""The same of messages of so many entries that their sums are compiled (`least_sums.LARGE`).

An elimination of 4.6e9 additions, of a layer of Llama 3 70B on 8 x 2 x 4, takes 0.45 s. At half, a
search of such meshes ends a tenth earlier; at twice, it takes longer than it says."""

SPACE_LIMIT = 2**27
"""Most entries of all messages together: 1 GiB."""

SMALLER = 16
"""Factor by which messages shrink when they take too long, or too much memory."""

LEAST_MESSAGE = 2**12
"""Smallest message limit; such messages take the time and memory that they need."""

JOINT_LIMIT = 2**25
"""Largest table of a variable and its neighbours that `Elimination.joints` forms."""


class OutOfTimeError(Exception):
    """The messages take more work than they may."""


class OutOfSpaceError(OutOfTimeError):
    """The messages take more memory than they may; smaller ones may do."""


Factor = int
"""Position in the list of factors: the variables' costs, the tables, then the messages."""


@dataclass(frozen=True)
class Group:
    """Factors that are minimised together, with the positions of their axes in `scope`.

    ``scope[0]`` is the eliminated variable; the message is over the others.
    """

    scope: tuple[int, ...]
    factors: tuple[tuple[Factor, tuple[int, ...]], ...]
    message: Factor


@dataclass(frozen=True)
class _Message:
    """A message less its least entry, `least`; equal keys are equal arrays."""

    key: int
    array: Array
    least: float
    content: Hashable


@dataclass(frozen=True)
class Relaxed:
    """The value of a minimisation (a lower bound unless exact) and the chosen strategies."""

    value: float
    choice: list[int]


_PLANS: dict[Hashable, tuple[list[tuple[int, ...]], list[list[Group]], bool, int]] = {}
_MOST_PLANS = 8  # the last ones: searches by several weights have one structure


class Elimination:
    """The elimination order and the groups of one structure, whatever the costs.

    Parameters
    ----------
    sizes : list of int
        Number of strategies of each variable.
    edges : iterable of (int, int)
        The pairs of variables that have a table, the lower one first.
    message_limit : int
        Largest message in entries.

    Attributes
    ----------
    budget : Budget
        Pays for the messages, and ends every `minimise` when it is spent.
    work : float
        Most additions of one `minimise`.
    space : float
        Most entries of all messages together.
    exact : bool
        Whether no message had to be split.
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
        self.budget, self.work = Budget(), math.inf
        self.space = SPACE_LIMIT if message_limit > LEAST_MESSAGE else math.inf
        self.exact = True
        self.largest_message = 1
        self.messages_computed = 0
        self.scopes: list[tuple[int, ...]] = [(index,) for index in range(len(sizes))]
        self.scopes += self.edges
        self.groups: list[list[Group]] = []
        self._plan_once()
        self._memo: dict[Hashable, _Message] = {}
        self._interned: dict[Hashable, _Message] = {}  # by their content
        # Of every factor, at the last costs; of a message without what is the same for all choices.
        self.values: list[Array] = []
        self.offsets: list[float] = []

    def _plan_once(self) -> None:
        """Take the plan of a structure that was planned before: other costs change nothing."""
        key = (tuple(self.sizes), tuple(self.edges), self.message_limit, WORK_LIMIT)
        known = _PLANS.get(key)
        if known is None:
            self._plan()
            while len(_PLANS) >= _MOST_PLANS:
                del _PLANS[next(iter(_PLANS))]
            _PLANS[key] = (self.scopes, self.groups, self.exact, self.largest_message)
        else:
            self.scopes, self.groups, self.exact, self.largest_message = known

    def _plan(self) -> None:
        """Choose the order, and the factors that go into each message."""
        # The factors over each variable, in order.
        waiting: list[dict[Factor, None]] = [{index: None} for index in range(len(self.sizes))]
        neighbours: list[set[int]] = [set() for _ in self.sizes]
        for factor, (first, second) in enumerate(self.edges, start=len(self.sizes)):
            for index in (first, second):
                waiting[index][factor] = None
            neighbours[first].add(second)
            neighbours[second].add(first)
        depth = [0] * len(self.sizes)
        newest = [self._priority(index, neighbours, depth) for index in range(len(self.sizes))]
        queue = list(newest)
        heapq.heapify(queue)
        while queue:
            entry = heapq.heappop(queue)
            index = entry[2]
            if entry is not newest[index]:
                continue  # its neighbours have changed since
            for other in self._eliminate(index, waiting, neighbours):
                depth[other] = max(depth[other], depth[index] + 1)
                newest[other] = self._priority(other, neighbours, depth)
                heapq.heappush(queue, newest[other])

    def _priority(
        self, index: int, neighbours: list[set[int]], depth: list[int]
    ) -> tuple[int, int, int]:
        entries = 1
        for other in neighbours[index]:
            entries *= self.sizes[other]
        return entries, depth[index], index

    def _eliminate(
        self, index: int, waiting: list[dict[Factor, None]], neighbours: list[set[int]]
    ) -> list[int]:
        """Form the groups of one variable; return its former neighbours."""
        groups = []
        for members, scope in self._split(index, list(waiting[index]), neighbours[index]):
            group = self._add_group(index, members, scope)
            groups.append(group)
            for variable in scope:
                others, near = waiting[variable], neighbours[variable]
                for member in members:
                    others.pop(member, None)
                others[group.message] = None
                near.update(scope)
                near.discard(variable)
                near.discard(index)
        self.groups.append(groups)
        return sorted(neighbours[index])

    def _add_group(self, index: int, members: list[Factor], scope: tuple[int, ...]) -> Group:
        """Return a new group of factors; its message is a new factor."""
        message = len(self.scopes)
        self.scopes.append(scope)
        positions = {variable: axis for axis, variable in enumerate((index, *scope))}
        factors = tuple(
            [(member, tuple(map(positions.__getitem__, self.scopes[member]))) for member in members]
        )
        self.largest_message = max(self.largest_message, self.entries(scope))
        return Group((index, *scope), factors, message)

    def _split(
        self, index: int, factors: list[Factor], neighbours: Iterable[int]
    ) -> list[tuple[list[Factor], tuple[int, ...]]]:
        """Group the factors so that no message is too large, in one group if possible.

        Each group comes with the scope of its message; that of one is all neighbours.
        """
        scope = tuple(sorted(neighbours))
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
        variables: set[int] = set().union(*map(self.scopes.__getitem__, factors))
        variables.discard(index)
        return tuple(sorted(variables))

    def entries(self, scope: tuple[int, ...]) -> int:
        """Return the size of a table over these variables."""
        entries = 1
        for variable in scope:
            entries *= self.sizes[variable]
        return entries

    @property
    def message_entries(self) -> int:
        """The entries of all messages, each on its own."""
        return sum(self.entries(group.scope[1:]) for groups in self.groups for group in groups)

    def minimise(
        self,
        unary: list[Array],
        tables: list[Array],
        unary_keys: Sequence[Hashable] | None = None,
        table_keys: Sequence[Hashable] | None = None,
    ) -> Relaxed:
        """Return the least total cost and an assignment decoded from the messages.

        Parameters
        ----------
        unary, tables : lists of float64 arrays
            In the order of the sizes and edges given to the constructor.
        unary_keys, table_keys : sequences of hashable, optional
            Equal keys promise equal arrays; the identities of the arrays by default.

        Raises
        ------
        OutOfTimeError
            If the budget is spent, or it takes more than `work`.
        OutOfSpaceError
            If the messages together have more entries than `space`.
        """
        values = [*unary, *tables]
        keys = list(map(Identity, unary) if unary_keys is None else unary_keys)
        keys += map(Identity, tables) if table_keys is None else table_keys
        messages = self._compute_messages(values, keys)
        self.values = values
        constant = sum(float(self.array(root.message)) for root in self.roots)
        return Relaxed(constant, self._decode(values, messages))

    def _compute_messages(self, values: list[Array], keys: list[Hashable]) -> list[_Message]:
        """Append every message to ``values``; those of the previous call are reused.

        Returns the messages, one object for each distinct group of factors.
        """
        memo: dict[Hashable, _Message] = {}
        messages: list[_Message] = []
        entries = work = 0
        self._interned = {message.content: message for message in self._memo.values()}
        self.offsets = [0.0] * len(values)
        for groups in self.groups:
            for group in groups:
                key = tuple([(keys[factor], axes) for factor, axes in group.factors])
                message = memo.get(key)
                if message is None:
                    message = self._memo.get(key)
                    if message is None:
                        entries += self.entries(group.scope[1:])
                        additions = self.entries(group.scope) * len(group.factors)
                        work += additions
                        if work > self.work or self.budget.is_spent:
                            raise OutOfTimeError
                        is_large = self.entries(group.scope) >= LARGE
                        rate = LARGE_PER_SECOND if is_large else WORK_PER_SECOND
                        self.budget.charge(SECONDS_OF.message + additions / rate)
                        self._check_space(entries, memo)
                        message = self._relative(self._message(group, values))
                        self.messages_computed += 1
                    memo[key] = message
                messages.append(message)
                keys.append(message.key)
                values.append(message.array)
                before = sum([self.offsets[factor] for factor, _ in group.factors])
                self.offsets.append(before + message.least)
        self._memo = memo
        return messages

    def _check_space(self, entries: int, memo: dict[Hashable, _Message]) -> None:
        """Forget the messages of the previous call, or give up, where new ones take the space."""
        if entries > self.space:
            raise OutOfSpaceError
        if entries > self.space / 2 and self._memo is not memo:
            self._memo, self.values = memo, []
            self._interned = {message.content: message for message in memo.values()}

    def _relative(self, array: Array) -> _Message:
        """Return a message less its least entry: the same array for an equal one."""
        least = float(array.min())
        least = least if math.isfinite(least) else 0.0
        array = array - least
        content = array.shape, zlib.crc32(np.ascontiguousarray(array).data)
        # Negative numbers are not identities of arrays.
        message = _Message(-self.messages_computed - 1, array, least, content)
        equal = self._interned.setdefault(content, message)
        if equal is not message and np.array_equal(equal.array, array):
            message = replace(equal, least=least)
        return message

    def array(self, factor: Factor) -> Array:
        """Return the costs of a factor for every choice of its variables, at the last costs."""
        return self.values[factor] + self.offsets[factor]

    def _message(self, group: Group, values: list[Array]) -> Array:
        shape = tuple(self.sizes[variable] for variable in group.scope)
        parts = [_broadcast(values[factor], axes, len(shape)) for factor, axes in group.factors]
        return least_sums(parts, shape)

    @property
    def can_complete(self) -> bool:
        """Whether `joints` is possible: exact, and no table too large."""
        largest = max((self.entries(group[0].scope) for group in self.groups), default=0)
        return self.exact and largest <= JOINT_LIMIT

    def joints(self) -> Iterator[tuple[Group, Array, Array]]:
        """Yield each group with the least total costs of its choices, the last group first.

        The first array is the least total cost of the network for every choice of the group's
        variables; the second is the part of it outside the group and the messages into it. Both are
        at the costs of the last `minimise`.
        """
        roots = {group.message for group in self.roots}
        total = sum(float(self.array(root)) for root in roots)
        outside = {root: np.array(total - float(self.array(root))) for root in roots}
        for (group,) in reversed(self.groups):
            rest = outside.pop(group.message)
            joint = self._joint(group, rest)
            yield group, joint, rest
            for factor, axes in group.factors:
                if self.is_message(factor):
                    outside[factor] = _without_message(joint, self.array(factor), axes)

    @property
    def roots(self) -> list[Group]:
        """The groups whose message is a constant, one a component."""
        return [group for groups in self.groups for group in groups if len(group.scope) == 1]

    def is_message(self, factor: Factor) -> bool:
        """Return whether a factor is a message, not a cost or a table of the network."""
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
            total = total + _broadcast(self.array(factor), axes, dimensions)
        return total

    def _decode(self, values: list[Array], messages: list[_Message]) -> list[int]:
        """Decide the variables in reverse order; ties go to the lowest index.

        Variables with the same messages, as in equal layers, are decided once for each choice of
        their neighbours.
        """
        choice, first = [0] * len(self.sizes), len(self.sizes) + len(self.edges)
        decided: dict[Hashable, int] = {}
        for groups in reversed(self.groups):
            index = groups[0].scope[0]
            if self.sizes[index] == 1:
                continue
            key: list[int] = []
            for group in groups:
                key.append(id(messages[group.message - first]))
                key += [choice[variable] for variable in group.scope[1:]]
            known = decided.get(tuple(key))
            if known is None:
                known = decided[tuple(key)] = self._best(groups, values, choice)
            choice[index] = known
        return choice

    def _best(self, groups: list[Group], values: list[Array], choice: list[int]) -> int:
        """Return the best strategy of the variable of some groups, the others as chosen."""
        index = groups[0].scope[0]
        factors = [factor for group in groups for factor, _ in group.factors]
        slices = [self._slice(values[factor], factor, index, choice) for factor in factors]
        total = slices[0]
        for part in slices[1:]:
            total = total + part
        return int(total.argmin())

    def _slice(self, value: Array, factor: Factor, index: int, choice: list[int]) -> Array:
        """Return a factor over one variable, the others as chosen."""
        scope = self.scopes[factor]
        if len(scope) == 1:
            return value
        return value[tuple([_ALL if v == index else choice[v] for v in scope])]


_ALL = slice(None)


def _broadcast(array: Array, axes: tuple[int, ...], dimensions: int) -> Array:
    """View an array as one with ``dimensions`` axes, its own at the positions ``axes``."""
    order = sorted(range(len(axes)), key=axes.__getitem__)
    shape = [1] * dimensions
    for axis, position in enumerate(axes):
        shape[position] = array.shape[axis]
    return array.transpose(order).reshape(shape)


def _without_message(joint: Array, message: Array, axes: tuple[int, ...]) -> Array:
    """Return the least of ``joint`` without ``message``, per choice of the message's variables."""
    others = tuple(axis for axis in range(joint.ndim) if axis not in axes)
    ascending = sorted(axes)
    least = joint.min(axis=others).transpose([ascending.index(axis) for axis in axes])
    with np.errstate(invalid="ignore"):
        rest: Array = least - message
    return np.where(np.isnan(rest), np.inf, rest)
