"""The Pareto front of one kind of block: seconds by resource against memory.

Its plans are those of the least weighted seconds and bytes times a price, for all prices: where two
plans are known, the price at which they are equal either has a better plan, or there is none
between them. They are searched by several weights of the resources, and by the costs of a plan by
all of these its seconds are known for each resource.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardwright.ir.decisions import Decisions
from shardwright.ir.layout import local_bytes
from shardwright.planner.effort import RISE
from shardwright.planner.fronts.priced_block import Priced, PricedBlock, at_turn, sum_of
from shardwright.planner.fronts.site import Kind, Site
from shardwright.search.space.space import SearchSpace, Storage
from shardwright.search.symmetry.alignment import align
from shardwright.solver.evaluate import cost_of

Floats = NDArray[np.float64]
# The best counts of Llama 3 70B on 64 H100 are the same by half and twice of the first and the last
# of these, and by a depth of 5; by one of 3 they take 0.1 % more seconds.
_DEAREST = 50.0  # highest price: the bytes of a block cost this many times its seconds
_DEPTH = 4  # halvings between the lowest and the highest price: at most 17 plans


@dataclass(frozen=True, eq=False)
class BlockPlan:
    """A plan of a kind of block.

    Parameters
    ----------
    decisions : Decisions
        What it decides, in the first block of its kind.
    seconds : array of shape (intervals, resources)
        Of a step, or of each half of it: in line, and those for which each level of links is busy.
    held_bytes : float
        From the last moment forward to the first backward.
    own_bytes : float
        The most that it holds in its own backward pass, beyond that.
    after_bytes : float
        At the end of the step, before parameters are updated.
    gathered_bytes : float
        Of the largest parameter that is gathered for an operator.
    each_bytes : float
        Saved of each other micro-batch in flight.
    """

    decisions: Decisions
    seconds: Floats
    held_bytes: float
    own_bytes: float
    after_bytes: float
    gathered_bytes: float
    each_bytes: float = 0.0

    def with_in_flight(self, count: int) -> "BlockPlan":
        """Return the plan in a stage with some micro-batches in flight."""
        others = (count - 1) * self.each_bytes
        held, after = self.held_bytes + others, self.after_bytes + others
        return replace(self, held_bytes=held, after_bytes=after) if others else self


@dataclass
class BlockFront:
    """The plans of one kind of block.

    Parameters
    ----------
    site : Site
        Where it runs.
    kind : Kind
        The blocks.
    in_flight : int
        Micro-batches in flight on a stage at most.
    """

    site: Site
    kind: Kind
    in_flight: int = 1

    @cached_property
    def plans(self) -> tuple[BlockPlan, ...]:
        """Its plans, by ever less memory for each of the weights."""
        assignments: dict[tuple[int, ...], None] = {}
        for weights, space in zip(self.site.weights, self.spaces, strict=False):
            request = self.site.request(self.kind, weights)
            narrow = self.site.narrow(request, space)
            block = PricedBlock(narrow.problem, at_turn(narrow), lambda: self._others)
            for count in sorted({1, self.in_flight}):
                found = _hull(block, self.site, count)
                assignments.update((one.assignment, None) for one in found)
        return tuple(map(self._plan, assignments))

    @cached_property
    def spaces(self) -> list[SearchSpace]:
        """Its problem by each of the weights that tell its loads; the options are the same."""
        found = []
        for weights in self.site.measures:
            request = self.site.request(self.kind, weights)
            found.append(request.recompute_space if request.recomputes else request.space)
        return found

    @cached_property
    def _others(self) -> list[Floats | None]:
        """The bytes of each variable that each other micro-batch in flight takes, by option."""
        if self.in_flight == 1:
            return [None] * len(self.spaces[0].choices)
        request = self.site.request(self.kind, self.site.weights[0])
        assert request.part is not None
        both = replace(request, part=replace(request.part, in_flight=2), others={})
        space = both.recompute_space if both.recomputes else both.space
        pairs = zip(at_turn(space), at_turn(self.spaces[0]), strict=True)
        return [two if one is None or two is None else two - one for two, one in pairs]

    def _plan(self, assignment: tuple[int, ...]) -> BlockPlan:
        costs = [float(cost_of(space.problem, assignment)) for space in self.spaces]
        seconds = np.linalg.solve(self.site.matrix, np.array(costs))
        space = self.spaces[0]
        usage = _usage(space, assignment)
        turn = len(space.graph.nodes)
        held = _at(usage, turn)
        return BlockPlan(
            align(space, assignment).decisions,
            np.maximum(seconds, 0.0).reshape(self.site.intervals, -1),
            held,
            max(_at(usage, moment) for moment in range(turn, 2 * turn)) - held,
            _at(usage, 2 * turn),
            _gathered_bytes(space, assignment),
            sum_of(self._others, assignment),
        )


_Held = list[tuple[int, int, float]]


def _usage(space: SearchSpace, assignment: Sequence[int]) -> _Held:
    """Return what the choices of an assignment hold: from when, until when, how many bytes."""
    return [
        (use.start, use.end, float(use.usage[option]))
        for variable, option in zip(space.problem.variables, assignment, strict=True)
        for use in variable.memory
    ]


def _at(usage: _Held, moment: int) -> float:
    return sum(size for start, end, size in usage if start <= moment < end)


def _gathered_bytes(space: SearchSpace, assignment: Sequence[int]) -> float:
    """Return the bytes of the largest parameter that is gathered for an operator."""
    sizes = [0.0]
    for choice, option in zip(space.choices, assignment, strict=True):
        storage = choice.options[option]
        if isinstance(storage, Storage) and storage.used not in (None, storage.layout):
            reader = space.casts.get(choice.name)
            value = reader.results[0] if reader else space.graph.values[choice.name]
            assert storage.used is not None
            sizes.append(local_bytes(value.type, storage.used, space.mesh))
    return max(sizes)


def _hull(block: PricedBlock, site: Site, in_flight: int) -> list[Priced]:
    """Return the plans of least sums at all prices, cheapest in seconds first."""
    free = block.least(0.0, in_flight, site.patience)
    if not free.nbytes:
        return [free]
    dear = block.least(_DEAREST * free.seconds / free.nbytes, in_flight, site.patience)
    return [free, *_Hull(block, site, free, in_flight).between(free, dear, _DEPTH), dear]


@dataclass
class _Hull:
    """The plans of a block at the prices at which two others are equal.

    Parameters
    ----------
    block, site : PricedBlock, Site
        The block, and where it runs.
    free : Priced
        The plan that is best without a price.
    in_flight : int
        Micro-batches in flight.
    """

    block: PricedBlock
    site: Site
    free: Priced
    in_flight: int
    _seconds: dict[tuple[int, ...], float] = field(default_factory=dict)

    def between(self, low: Priced, high: Priced, depth: int) -> Iterator[Priced]:
        """Yield the plans between two, cheaper in seconds first."""
        saved = low.nbytes - high.nbytes
        if not depth or saved <= 0:
            return
        price = (self._of(high) - self._of(low)) / saved
        if price <= 0:
            return
        found = self.block.least(price, self.in_flight, self.site.patience)
        both = self._of(low) + price * low.nbytes
        gain = both - self._of(found) - price * found.nbytes
        if gain > RISE * self._of(self.free):
            yield from self.between(low, found, depth - 1)
            yield found
            yield from self.between(found, high, depth - 1)

    def _of(self, one: Priced) -> float:
        """Return the seconds of a plan without its bytes."""
        if one.assignment not in self._seconds:
            cost = cost_of(self.block.problem, one.assignment)
            self._seconds[one.assignment] = float(cost)
        return self._seconds[one.assignment]
