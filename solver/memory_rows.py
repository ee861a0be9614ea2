"""The rows of the memory constraint: the times at which memory can run out, and prices on them.

A time is dropped if all uses that are live then are live at another time whose base is as large, or
if even the largest uses fit. Training keeps nearly everything live until the loss, so a handful of
rows remain. The base is the memory that every strategy of a variable needs; the rest must fit into

    capacity(t) = limit - base(t)

The anytime solver has rows of its own (`anytime.graph.Rows`): 64-bit integers in flat arrays, as
its compiled loops need them; `uncovered` and `profile` serve both.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from shardwright.ir.rounding import OF_SUM
from shardwright.solver.network import Network
from shardwright.solver.problem import Array, distinct

EXACT_BELOW = 2.0**53


class MemoryRows:
    """The rows of the memory constraint of a network.

    Parameters
    ----------
    network : Network
    limit : float
        Rows that cannot exceed it are dropped.

    Attributes
    ----------
    times, base, capacity : arrays
        Of each row.
    variables, usages, lowest, first, last
        Of each use that varies: its variable, its memory by strategy, the least of that, and the
        range of rows in which it is live.
    by_variable : dict of int to list of int
        The positions of the uses of each variable.
    """

    def __init__(self, network: Network, limit: float) -> None:
        uses = [
            (index, use.usage, use.start, use.end)
            for index, memory in enumerate(network.memory)
            for use in memory
        ]
        least, most = _extremes([usage for _, usage, _, _ in uses])
        self.lowest = least
        starts = np.array([start for _, _, start, _ in uses], dtype=np.int64)
        ends = np.array([end for _, _, _, end in uses], dtype=np.int64)
        spread = most - least
        varies = spread > 0
        points = np.array(sorted({*starts.tolist(), *ends.tolist()}), dtype=np.int64)
        base = profile(points, starts, ends, self.lowest)
        top = base + profile(points, starts, ends, spread)
        kept = uncovered(points, starts[varies], ends[varies], base) & (top > limit)
        self.times, self.base = points[kept], base[kept]
        self.exact = all(_is_whole(usage) for usage in distinct(usage for _, usage, _, _ in uses))
        self.capacity = self.capacity_for(limit)
        varying = np.flatnonzero(varies)
        first = np.searchsorted(self.times, starts[varying])
        last = np.searchsorted(self.times, ends[varying])
        live = first < last
        self.first, self.last = first[live], last[live]
        positions = varying[live]
        self.variables = np.array([uses[position][0] for position in positions], dtype=np.int64)
        self.usages = [uses[position][1] for position in positions]
        self.lowest = self.lowest[positions]
        self._index_uses(network)

    def _index_uses(self, network: Network) -> None:
        """Store the uses as one array, and the positions of those of each variable."""
        self._usage_keys = list(map(network.arrays.key, self.usages))
        self._flat = np.concatenate([*self.usages, np.zeros(0)])
        sizes = np.array([len(usage) for usage in self.usages], dtype=np.int64)
        self._offsets = np.cumsum(sizes) - sizes
        self.by_variable: dict[int, list[int]] = {}
        for position, variable in enumerate(self.variables):
            self.by_variable.setdefault(int(variable), []).append(position)

    def __len__(self) -> int:
        return len(self.times)

    def capacity_for(self, limit: float) -> Array:
        """Return the memory left above the base in each row."""
        if self.exact and limit < EXACT_BELOW:
            return np.asarray(np.floor(limit) - self.base)
        return np.asarray(limit * (1 + OF_SUM) - self.base)

    @property
    def hopeless(self) -> bool:
        """Whether the base alone exceeds the limit."""
        return bool((self.capacity < 0).any())

    def profile(self, choice: list[int]) -> Array:
        """Return the use above the base in each row."""
        chosen = np.asarray(choice, dtype=np.int64)[self.variables]
        extra = self._flat[self._offsets + chosen] - self.lowest
        size = len(self.times) + 1
        change = np.bincount(self.first, extra, size) - np.bincount(self.last, extra, size)
        return np.cumsum(change)[:-1]

    def priced(
        self, network: Network, prices: Array, weight: float = 1.0
    ) -> tuple[list[Array], list[Hashable]]:
        """Return ``weight * cost + price * use`` for every variable, and a key for each vector.

        Equal keys mean equal vectors. The base is not priced.
        """
        total = np.concatenate([[0.0], np.cumsum(prices)])
        per_use = total[self.last] - total[self.first]
        unary = [weight * cost if weight != 1.0 else cost for cost in network.unary]
        keys: list[Hashable] = list(network.unary_keys)
        if weight != 1.0:
            keys = [(weight, key) for key in keys]
        priced: dict[Hashable, Array] = {}
        for position in np.flatnonzero(per_use):
            variable, price = int(self.variables[position]), float(per_use[position])
            key = (keys[variable], self._usage_keys[position], price)
            if key not in priced:
                extra = self.usages[position] - self.lowest[position]
                priced[key] = unary[variable] + price * extra
            unary[variable], keys[variable] = priced[key], key
        return unary, keys


def _is_whole(values: Array) -> bool:
    return bool((values == np.floor(values)).all())


def round_prices(prices: Array) -> Array:
    """Round prices to 20 bits, so that sums of them are exact and equal layers stay equal.

    Prices without 20 bits above the least number become zero, as any price may.
    """
    if not prices.size or not prices.max() > 0:
        return np.maximum(prices, 0.0)
    unit = 2.0 ** (np.floor(np.log2(prices.max())) - 20)
    if not unit:
        return np.zeros_like(prices)
    return np.asarray(np.maximum(np.round(prices / unit), 0.0) * unit)


def profile(points: Array, starts: Array, ends: Array, amounts: Array) -> Array:
    """Return the sum of the amounts that are live in each segment that begins at a point."""
    change = np.zeros(len(points), amounts.dtype)
    np.add.at(change, np.searchsorted(points, starts), amounts)
    np.subtract.at(change, np.searchsorted(points, ends), amounts)
    return np.cumsum(change)


def uncovered(points: Array, starts: Array, ends: Array, base: Array) -> Array:
    """Mark the segments that no other segment covers.

    Segment s covers r if no varying use ends (for s before r: starts) between r and s, and the base
    of s is at least that of r.
    """
    begins = np.zeros(len(points), dtype=bool)
    stops = np.zeros(len(points), dtype=bool)
    begins[np.searchsorted(points, starts)] = True
    stops[np.searchsorted(points, ends)] = True
    kept: list[int] = []
    between: list[tuple[bool, bool]] = []  # whether a use starts, ends since the kept one before
    for segment in range(len(points)):
        starting, ending = bool(begins[segment]), bool(stops[segment])
        covered = False
        while kept:
            if not starting and base[kept[-1]] >= base[segment]:
                covered = True
                break
            if ending or base[kept[-1]] > base[segment]:
                break
            kept.pop()
            earlier = between.pop()
            starting, ending = starting or earlier[0], ending or earlier[1]
        if covered:
            # Uses that end here have ended before the next kept segment too.
            if segment + 1 < len(points):
                begins[segment + 1] |= starting
                stops[segment + 1] |= ending
            continue
        kept.append(segment)
        between.append((starting, ending))
    marks = np.zeros(len(points), dtype=bool)
    marks[kept] = True
    return marks


def _extremes(usages: Sequence[Array]) -> tuple[Array, Array]:
    """Return the least and the greatest entry of each usage; equal layers share theirs."""
    known = {id(usage): (usage.min(), usage.max()) for usage in distinct(usages)}
    found = np.array([known[id(usage)] for usage in usages], dtype=np.float64)
    least, most = found.reshape(-1, 2).T
    return least, most
