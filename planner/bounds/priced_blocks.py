"""Blocks with a price on memory: bounds of stages within the memory limit, as sums over blocks.

Let a stage run some blocks, and every plan of it take t seconds and m bytes at the moment at which
the last of its forward segments in flight has ended. Then t_b and m_b, of each block alone with
free ends, add up to no more: to t as without a limit, and to m since what a block holds at its own
turn from forward to backward, it still holds at that of the stage, and no buffer is counted in two
blocks (`Blocks.common`, `passed_bytes`). So for every price p >= 0 of a byte and every plan within
the limit L

    t  >=  t + p (m - L)  >=  sum over b of min (t_b + p m_b)  -  p L

The minimum is that of one search without a limit, and equal blocks share it. It is concave in the
prices; a plan at some prices gives its slope, from which better prices follow (Kelley, 1960).

With k micro-batches in flight a block holds what it holds in one pass, and k - 1 times what a pass
saves for backward: two prices, p and (k - 1) p, so k counts wherever prices do.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from math import inf

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.weighted.intervals import ResourceWeights
from shardwright.ir.graph import Graph
from shardwright.planner.bounds.passed_bytes import PassedBytes
from shardwright.planner.fronts.priced_block import Priced, PricedBlock, at_moment, at_turn
from shardwright.planner.fronts.problem import MANY, StageProblems
from shardwright.planner.option_checks import SEARCHED
from shardwright.planner.options import CompileOptions
from shardwright.search.space.space import SearchSpace
from shardwright.solver.problem import Array
from shardwright.solver.work import Budget

Floats = NDArray[np.float64]
_STEPS = 8  # most improvements of a price
_FIRST = 0.02  # first price: the whole limit costs this share of the seconds without a limit
_FACTOR = 4.0  # factor by which a price is raised until its plan fits
_TOLERANCE = 5e-4  # relative rise of the bound that the next price must promise
_GAP = 1e-3
"""Part of a sum of a block, by which its bound may be too low where that is too wide to eliminate.

Layers of Mixtral 8x7B on 8 x 2 x 4 have bounds within 0.05 % by elimination in parts; message
passing would take 8 s of each and 0.3 GB to close that. At half, it is taken; at twice, nothing
changes."""


@dataclass
class PricedBlocks:
    """The blocks of a program.

    Parameters
    ----------
    problems : StageProblems
        The stage problems.
    passes : float
        How often an operator of the loop counts.
    budget : Budget
        What the searches may spend.
    has_prices : bool
        Whether memory has prices: without them, nothing is recomputed.
    recomputes : bool
        Whether plans may recompute. Without a price on memory that saves no time.
    """

    problems: StageProblems
    passes: float
    budget: Budget
    has_prices: bool = True
    recomputes: bool = True
    _known: dict[int, PricedBlock] = field(default_factory=dict)
    _kinds: tuple[int, ...] = ()  # of each block
    _passed_bytes: float | None = None

    def __post_init__(self) -> None:
        self._kinds = self.problems.blocks.counted
        self._first = {key: self._kinds.index(key) for key in dict.fromkeys(self._kinds)}

    def _passed(self, in_flight: float) -> float:
        """Return the bytes on a device of what blocks save of others."""
        if self._passed_bytes is None:
            blocks, counts = self.problems.blocks, Counter(self._kinds)
            passed = PassedBytes(blocks)
            whole = sum(counts[key] * passed.of(first) for key, first in self._first.items())
            self._passed_bytes = whole / self.problems.request.planner.mesh.size
        return in_flight * self._passed_bytes

    def seconds(self, price: float, in_flight: float) -> Floats:
        """Return for each block the least sum of its seconds and of its bytes at a price."""
        return self._of_blocks(lambda one: one.seconds, price, in_flight)

    def kinds(self, price: float, in_flight: float) -> list[tuple[int, Priced]]:
        """Return of each kind of block the number, and the least sum."""
        return [(self._kinds.count(key), self._least(key, price, in_flight)) for key in self._first]

    def total(self, price: float, in_flight: float) -> Priced:
        """Return the least sum over all blocks, and what they save of each other."""
        passed = self._passed(in_flight) if self.has_prices else 0.0
        return Priced(
            float(self.seconds(price, in_flight).sum()) + price * passed,
            float(self._of_blocks(lambda one: one.nbytes, price, in_flight).sum()) + passed,
        )

    def own_seconds(self, price: float) -> float:
        """Return what the last block adds to the total in its own backward pass.

        All others then hold what they hold at their turns, and it what its gradients need, too. Any
        moment of it may take the place of the turn.
        """
        last = len(self._kinds) - 1
        if self._first[self._kinds[last]] != last:  # one of several equal blocks
            return 0.0
        space = self._space(last, 1)
        turn = len(space.graph.nodes)
        uses = (use for variable in space.problem.variables for use in variable.memory)
        moments = {use.start for use in uses if use.start >= turn and use.end == use.start + 1}
        turning = self._least(self._kinds[last], price, 1).seconds
        sums = [turning]
        for moment in sorted(moments):
            block = PricedBlock(space.problem, at_moment(space, moment), list, _GAP)
            sums.append(block.least(price, 1, self.budget).seconds)
        return max(sums) - turning

    def _of_blocks(
        self, number: Callable[[Priced], float], price: float, in_flight: float
    ) -> Floats:
        found = {key: number(self._least(key, price, in_flight)) for key in self._first}
        return np.array([found[key] for key in self._kinds])

    def _least(self, key: int, price: float, in_flight: float) -> Priced:
        if key not in self._known:
            self._known[key] = self._priced_block(self._first[key])
        return self._known[key].least(price, in_flight, self.budget)

    def _priced_block(self, block: int) -> PricedBlock:
        space = self._space(block, 1)
        if not self.has_prices:
            return PricedBlock(space.problem, [None] * len(space.problem.variables), list, _GAP)
        held, space_of = at_turn(space), self._space_of

        @cache
        def others() -> list[Array | None]:
            both = at_turn(space_of(block, 2))
            return [None if b is None else _less(b, h) for h, b in zip(held, both, strict=True)]

        return PricedBlock(space.problem, held, others, _GAP)

    def _space(self, block: int, in_flight: int) -> SearchSpace:
        return self._space_of(block, in_flight)

    @property
    def _space_of(self) -> Callable[[int, int], SearchSpace]:
        """What returns the problem of a block, and does not hold those that are priced."""
        recomputes = self.has_prices and self.recomputes
        return partial(_space, self.problems, self.passes, recomputes)


def _space(
    problems: StageProblems, passes: float, recomputes: bool, block: int, in_flight: int
) -> SearchSpace:
    """Return the problem of a block, with what is recomputed where that may be."""
    request = problems.request_of(
        *(block, block + 1, in_flight, passes),
        free_ends=True,
        uncounted=problems.blocks.common(block),
    )
    return request.recompute_space if recomputes and request.recomputes else request.space


@dataclass(frozen=True)
class BlockKind:
    """Equal blocks.

    Parameters
    ----------
    count : int
        Number of them.
    seconds : float
        Of each.
    memory_bytes : float
        Of each, in one pass.
    """

    count: int
    seconds: float
    memory_bytes: float = 0.0


@dataclass(frozen=True)
class BlockBounds:
    """Bounds of all blocks by some weights.

    Parameters
    ----------
    seconds : float
        Of the passes within any memory.
    limited_seconds : float
        The same within the memory limit.
    kinds : tuple of BlockKind
        Of the blocks within any memory.
    price : float
        The price of a byte by which the bound within the limit is highest.
    weights : ResourceWeights or None
        The weights; None of serial seconds.
    is_short : bool
        Whether the memory limit makes plans slower that communicate for nothing.
    """

    seconds: float
    limited_seconds: float
    kinds: tuple[BlockKind, ...]
    price: float = 0.0
    weights: ResourceWeights | None = None
    is_short: bool = False


@dataclass(frozen=True)
class BlockPart:
    """What is bounded: passes of the program on device groups.

    Parameters
    ----------
    groups : int
        Number of groups.
    passes : float
        How often an operator of the loop counts.
    limit_bytes : float
        Memory of a device; infinite where it has no price.
    budget : Budget
        What the searches may spend.
    is_enough : callable
        Whether bounds within any memory are high enough.
    recomputes : bool
        Whether the memory is expected to bind: the first space then has what is recomputed, which
        without a price on memory saves no time.
    """

    groups: int
    passes: float
    limit_bytes: float
    budget: Budget
    is_enough: Callable[[BlockBounds], bool]
    recomputes: bool

    def bounded(self, problems: StageProblems) -> BlockBounds:
        """Return bounds of all blocks."""
        has_prices, limit = self.limit_bytes < inf, self.groups * self.limit_bytes
        where = problems, self.passes, self.budget, has_prices
        blocks = PricedBlocks(*where, recomputes=self.recomputes)
        scale = MANY if self.passes == MANY else 1.0
        total = blocks.total(0.0, 1)
        free = total.seconds / scale
        kinds = tuple(BlockKind(n, one.seconds / scale) for n, one in blocks.kinds(0.0, 1))
        bounded = BlockBounds(free, free, kinds, weights=problems.request.weights)
        if not has_prices or total.nbytes <= limit or self.is_enough(bounded):
            return bounded
        priced = blocks if blocks.recomputes else PricedBlocks(*where)
        limited, price = best_price(lambda price: priced.total(price, 1), limit)
        if self.groups == 1 and price:
            limited += priced.own_seconds(price)
        return replace(bounded, limited_seconds=limited / scale, price=price)

    def priced(self, problems: StageProblems, price: float, *, free: bool) -> BlockBounds:
        """Return bounds of all blocks of a device within the memory limit, at one price.

        Within any memory the bound is 0, unless it is asked for.
        """
        blocks = PricedBlocks(problems, self.passes, self.budget)
        least = blocks.total(0.0, 1).seconds if free else 0.0
        limited = blocks.total(price, 1).seconds - price * self.limit_bytes
        limited += blocks.own_seconds(price)
        weights = problems.request.weights
        return BlockBounds(least, max(least, limited), (), price, weights)


def can_price_memory(source: Graph, options: CompileOptions) -> bool:
    """Return whether blocks may take no less memory alone than in a stage.

    They do where the user marks what is recomputed, or tensors may be offloaded: one that a block
    hands on is then not saved.
    """
    return not source.recomputed and not source.offloaded and options.offload != SEARCHED


def _less(both: Array, held: Array | None) -> Array | None:
    """Return a difference; None where it is zero."""
    if held is None:
        return both
    difference: Array = both - held
    return difference if difference.any() else None


def best_price(value: Callable[[float], Priced], limit: float) -> tuple[float, float]:
    """Return the greatest bound within a limit that was found, and its price.

    Parameters
    ----------
    value : callable
        Returns the least sum at a price of a byte.
    limit : float
        The bytes that every plan may hold.

    Examples
    --------
    Two plans of a second and 8 bytes, and of two seconds and 2 bytes; half of each fits 5 bytes.

    >>> plans = ((1.0, 8.0), (2.0, 2.0))
    >>> def least(price):
    ...     seconds, nbytes = min(plans, key=lambda plan: plan[0] + price * plan[1])
    ...     return Priced(seconds + price * nbytes, nbytes)
    >>> bound, price = best_price(least, 5.0)
    >>> round(bound, 9), round(price, 9)
    (1.5, 0.166666667)
    """
    free = value(0.0)
    if free.nbytes <= limit or limit <= 0:
        return free.seconds, 0.0
    best = free.seconds, 0.0
    low = (0.0, free.seconds, free.nbytes - limit)  # of the best price below: its line
    high: tuple[float, float, float] | None = None
    price = _FIRST * free.seconds / limit
    for _ in range(_STEPS):
        found = value(price)
        bound, slope = found.seconds - price * limit, found.nbytes - limit
        best = max(best, (bound, price))
        line = price, bound, slope
        if slope > 0:
            low = line
        else:
            high = line
        if high is None:
            price *= _FACTOR
            continue
        price, promised = _crossing(low, high)
        if promised <= best[0] * (1 + _TOLERANCE):
            break
    return best


def _crossing(
    low: tuple[float, float, float], high: tuple[float, float, float]
) -> tuple[float, float]:
    """Return where two lines cross, one rising and one falling, and how high."""
    (p, a, up), (q, b, down) = low, high
    at = (b - a + p * up - q * down) / (up - down) if up > down else inf
    at = min(max(at, p), q)
    return at, a + up * (at - p)
