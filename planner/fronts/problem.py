"""Stage problems: the plans of stretches of a program, with lower bounds of their seconds.

Of a stage that takes t seconds for each of M micro-batches and u seconds once, the search minimises
``M t + u``. A bound of t alone is that of the same problem with very many passes: ``R t + u >= c``
for every plan, and no plan that matters takes more than a step once, so ``t >= (c - step) / R``.
"""

import operator
from collections import ChainMap
from collections.abc import Collection, Hashable, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.weighted.intervals import ResourceWeights
from shardwright.dataflow.micro_batches import MicroBatches
from shardwright.ir.errors import InfeasibleError, NoPlanError, NotFoundError
from shardwright.ir.layout import Layout
from shardwright.operators.models.loss_scale import DynamicLossScale
from shardwright.planner.plan.blocks import Blocks
from shardwright.planner.plan.stage_plans import StageBound, StagePlan, renamed
from shardwright.planner.search_request import SearchRequest
from shardwright.search.budget_note import BudgetNote
from shardwright.search.method import SearchResult
from shardwright.search.options import SearchOptions
from shardwright.search.space.context import StagePart
from shardwright.search.space.interning import Interner
from shardwright.search.space.space import SearchSpace
from shardwright.solver.evaluate import evaluate
from shardwright.solver.solution import OPTIMALITY_GAP, relative_gap
from shardwright.solver.work import Budget

MANY = 2**26
"""Passes over micro-batches of a problem whose cost is that of the passes alone."""

ONE = 1 + 2**-30
"""Passes of a problem of one pass in a loop: gradients are accumulated."""

_SHARE = 1 / 4  # share of the remaining budget that one search may take
T = TypeVar("T")
Structure = tuple[ResourceWeights | None, MutableMapping[str, SearchSpace]]


@dataclass(frozen=True)
class _Searched:
    """What a search within a memory limit found: a plan, and a bound of the step of all."""

    begin: int
    least: float
    plan: StagePlan | None
    limit: float = inf
    is_limited: bool = True

    def answers(self, limit: float) -> bool:
        """Return whether it is what a search within another limit finds, too."""
        least = self.limit if self.plan is None else self.plan.memory_bytes
        if self.least == inf:  # nothing fits
            least = 0.0
        return least <= limit <= self.limit


@dataclass
class _Unlimited:
    """The best plan of a stage without a memory limit, and the memory that it takes."""

    begin: int
    in_flight: int
    result: SearchResult
    each_bytes: float | None = None  # of each micro-batch in flight


@dataclass
class StageProblems:
    """The stage problems of a program, each solved once.

    Parameters
    ----------
    request : SearchRequest
        The search for the whole program, on the mesh of one stage.
    blocks : Blocks
        The blocks of the program.
    limits : SearchOptions
        The limits of the user.
    budget : Budget
        What all searches may spend.
    level : int
        Level of the cluster whose links the stages use.
    alone : bool
        Whether what runs wherever it is read counts nowhere: a device group runs it once for all
        of its chunks.
    budget_note : BudgetNote
        Notes whether the budget ended a search.
    interners : dict
        What the problems share, and others with the same profile.
    structures : dict
        By what a problem is of, the weights and the problems of the first searches for it: those
        by other weights, which share this dict, only price them anew.
    searches : int
        Number of plans that were searched.
    options : int
        Number of options of the largest problem that was searched.
    """

    request: SearchRequest
    blocks: Blocks
    limits: SearchOptions
    budget: Budget
    level: int = 0
    alone: bool = False
    budget_note: BudgetNote = field(default_factory=BudgetNote)
    interners: dict[Hashable, Interner] = field(default_factory=dict)
    structures: dict[Hashable, Structure] = field(default_factory=dict)
    searches: int = 0
    options: int = 0
    _found: dict[Hashable, list[_Searched]] = field(default_factory=dict)
    _free: dict[Hashable, _Unlimited] = field(default_factory=dict)
    _within_passes: dict[Hashable, float] = field(default_factory=dict)
    _passes: dict[Hashable, float] = field(default_factory=dict)
    _floors: dict[Hashable, StageBound] = field(default_factory=dict)
    _lows: dict[Hashable, float] = field(default_factory=dict)

    @property
    def loop(self) -> MicroBatches:
        """The program in micro-batches."""
        return self.blocks.loop

    @property
    def constant(self) -> float:
        """Seconds that every device group takes once, whatever its plan: it counts the steps."""
        options = self.request.options
        if isinstance(options.loss_scale, DynamicLossScale) or options.optimizer.clip_norm:
            return 0.0  # the first group alone adds up what all have
        return self.request.profile.constant()

    def within(self, memory_limit: float) -> "StageProblems":
        """Return the problems within no more memory, which share what is known."""
        limit = min(memory_limit, self.limits.limit_bytes)
        return replace(self, limits=replace(self.limits, memory_limit=limit))

    # Bounds and plans

    def floor(self, block: int) -> StageBound:
        """Return bounds of one block whose sums bound those of stretches, within any memory."""
        key = self.blocks.key(block, block + 1)
        if key not in self._floors:
            passes, step = (self.floor_of(block, count) for count in (MANY, self._count))
            self._floors[key] = StageBound(passes / MANY, step)
        return self._floors[key]

    def floor_of(self, block: int, passes: float) -> float:
        """Return a bound of some passes of one block and of what it does once; see `floor`."""
        key = self.blocks.key(block, block + 1), passes
        if key not in self._lows:
            self._lows[key] = self.relaxed(block, passes).lower_bound
        return self._lows[key]

    def pass_floor(self, block: int) -> float:
        """Return a bound of one pass of a block over one micro-batch."""
        return self.floor_of(block, MANY) / MANY

    def step_floor(self, block: int) -> float:
        """Return a bound of all passes of a block, and of what it does once."""
        return self.floor_of(block, self._count)

    @property
    def _count(self) -> float:
        """How often an operator of the loop runs."""
        return self.loop.passes

    def relaxed(self, block: int, passes: float) -> SearchResult:
        """Return the best plan of a block with free ends, within any memory.

        The sums of bounds over blocks bound stretches; one pass accumulates no gradients.
        """
        request = self.request_of(block, block + 1, 1, passes, free_ends=True)
        return self._solved(request, request.space, None)

    def bound(self, begin: int, end: int, in_flight: int) -> StageBound:
        """Return bounds of a stage that runs some blocks."""
        found = self._searched(begin, end, in_flight, self.limits.memory_limit)
        passes = self._of_passes(begin, end, MANY)
        if found.least < inf and found.is_limited and found.plan is not None:
            passes = max(passes, self._passes_within(begin, end, in_flight, found.limit, MANY))
        return StageBound(passes / MANY if found.least < inf else inf, found.least)

    def seconds(self, begin: int, end: int, passes: float) -> float:
        """Return a bound of some passes of blocks and what is done once, within any memory."""
        return self._of_passes(begin, end, passes)

    def seconds_within(self, begin: int, end: int, in_flight: int, passes: float) -> float:
        """Return a bound of some passes of a stage, and of what it does once."""
        least = self._of_passes(begin, end, passes)
        found = self._searched(begin, end, in_flight, self.limits.memory_limit)
        if found.plan is not None and found.plan.unlimited:
            return least
        return max(least, self._passes_within(begin, end, in_flight, found.limit, passes))

    def plan(
        self,
        begin: int,
        end: int,
        in_flight: int,
        memory_limit: float | None,
        received: Mapping[str, Layout] | None = None,
    ) -> StagePlan | None:
        """Return a plan of a stage, some of whose values are in layouts; None without one."""
        found = self._searched(begin, end, in_flight, memory_limit, received)
        return None if found.plan is None else self.moved(found.plan, found.begin, begin, end)

    def moved(self, plan: StagePlan, first: int, begin: int, end: int) -> StagePlan:
        """Return the plan of a stage that begins at a block, from that of an equal stage."""
        if first == begin:
            return plan
        names = self.blocks.names(first, begin, end - begin)
        return replace(plan, decisions=renamed(plan.decisions, names))

    def key(self, begin: int, end: int, received: Mapping[str, Layout]) -> tuple[Hashable, ...]:
        """Return what is equal for equal stages that receive or send values in equal layouts."""
        part = self.blocks.stretch(begin, end) if received else None
        names = [*(value.name for value in part.graph.inputs), *part.sent] if part else []
        return self.blocks.key(begin, end), tuple(received.get(name) for name in names)

    def _searched(
        self,
        begin: int,
        end: int,
        in_flight: int,
        memory_limit: float | None,
        received: Mapping[str, Layout] | None = None,
    ) -> _Searched:
        received = received or {}
        key = self.key(begin, end, received)
        free = self._unlimited(key, begin, end, in_flight, received)
        memory = self._memory(free, begin, end, in_flight, received)
        least = free.result.lower_bound
        if memory <= (self.limits.limit_bytes if memory_limit is None else memory_limit):
            plan = StagePlan(free.result.decisions, free.result.cost, memory, unlimited=True)
            return _Searched(free.begin, least, plan, is_limited=False)
        limit = self.limits.limit_bytes if memory_limit is None else memory_limit
        searched = self._found.setdefault((*key, in_flight), [])
        known = next((found for found in searched if found.answers(limit)), None)
        if known is None:
            self.searches += 1
            known = self._search(begin, end, in_flight, limit, received, least)
            searched.append(known)
        return known

    def _unlimited(
        self,
        key: Hashable,
        begin: int,
        end: int,
        in_flight: int,
        received: Mapping[str, Layout],
    ) -> _Unlimited:
        """Return the best plan without a memory limit, with as many in flight or more."""
        known = self._free.get(key)
        if known is None or known.in_flight < in_flight:
            self.searches += 1
            request = self.receiving(self.request_of(begin, end, in_flight), received)
            found = self._solved(request, request.space, None)
            self._free[key] = known = _Unlimited(begin, in_flight, found)
        return known

    def _memory(
        self,
        free: _Unlimited,
        begin: int,
        end: int,
        in_flight: int,
        received: Mapping[str, Layout],
    ) -> float:
        """Return the memory of a plan with fewer micro-batches in flight: each takes as much."""
        if free.in_flight == in_flight:
            return free.result.memory_bytes
        if free.each_bytes is None:
            most, least = (
                self._memory_with(free, begin, end, count, received)
                for count in (free.in_flight, 1)
            )
            known = most == free.result.memory_bytes  # the assignment is of this problem
            free.each_bytes = (most - least) / (free.in_flight - 1) if known else 0.0
        return free.result.memory_bytes - (free.in_flight - in_flight) * free.each_bytes

    def _memory_with(
        self,
        free: _Unlimited,
        begin: int,
        end: int,
        in_flight: int,
        received: Mapping[str, Layout],
    ) -> float:
        request = self.receiving(self.request_of(begin, end, in_flight), received)
        problem, assignment = request.space.problem, free.result.assignment
        sizes = [len(variable.cost) for variable in problem.variables]
        if len(sizes) != len(assignment) or any(map(operator.ge, assignment, sizes)):
            return inf
        return float(evaluate(problem, assignment).peak_usage)

    def delays(self, there: Cluster, back: Cluster) -> NDArray[np.float64]:
        """Return bounds of the transfers from each block to the next, there and back.

        Row 0 has for each block, and the end, the seconds in which the values of a micro-batch
        arrive that the block before makes and that it reads; row 1 those of their gradients.

        Parameters
        ----------
        there, back : Cluster
            The clusters of the stages that send; see `GroupClusters.sending`.
        """
        starts = self.blocks.starts
        found = np.zeros((2, len(starts)))
        for block in range(1, len(starts) - 1):
            for name in self.blocks.passed(block):
                size = self.loop.graph.values[name].type.nbytes / self.request.planner.mesh.size
                found[0, block] += self._transfer_seconds(size, there)
                returns = self.blocks.is_differentiated(name, block)
                found[1, block] += self._transfer_seconds(size, back) * returns
        return found

    def _transfer_seconds(self, nbytes: float, sender: Cluster) -> float:
        return sender.device.launch_seconds + sender.levels[self.level].send_seconds(nbytes)

    # Searches

    def receiving(self, request: SearchRequest, layouts: Mapping[str, Layout]) -> SearchRequest:
        """Return the search for a stage that receives, or sends, values in some layouts."""
        if not layouts:
            return request
        given = {**request.options.input_layouts, **layouts}
        return replace(request, options=replace(request.options, input_layouts=given))

    def _search(
        self,
        begin: int,
        end: int,
        in_flight: int,
        memory_limit: float,
        received: Mapping[str, Layout],
        least: float,
    ) -> _Searched:
        request = self.receiving(self.request_of(begin, end, in_flight), received)
        try:
            found, within = self._within(request, memory_limit)
        except InfeasibleError:
            return _Searched(begin, inf, None, memory_limit)
        except NoPlanError:
            return _Searched(begin, least, None, memory_limit)
        return _Searched(begin, max(least, within), _plan(found), memory_limit)

    def _passes_within(
        self, begin: int, end: int, in_flight: int, memory_limit: float | None, passes: float
    ) -> float:
        """Return a bound of some passes within a memory limit; 0 where none is found."""
        key = self.blocks.key(begin, end), in_flight, memory_limit, passes
        if key not in self._within_passes:
            request = self.request_of(begin, end, in_flight, passes)
            space = request.recompute_space if request.recomputes else request.space
            try:
                found = self._solved(request, space, memory_limit).lower_bound
            except NoPlanError:
                found = 0.0
            self._within_passes[key] = found
        return self._within_passes[key]

    def _within(
        self, request: SearchRequest, memory_limit: float | None
    ) -> tuple[SearchResult, float]:
        """Return the best plan found within a memory limit, and a bound on all.

        Raises
        ------
        NoPlanError
            If there is none, or none was found.
        """
        if not request.recomputes:
            found = self._solved(request, request.space, memory_limit)
            return found, found.lower_bound
        again = self._solved(request, request.recompute_space, memory_limit)
        if relative_gap(again.cost, again.lower_bound) <= OPTIMALITY_GAP:
            return again, again.lower_bound
        try:
            plain = self._solved(request, request.space, memory_limit)
        except NoPlanError:
            return again, again.lower_bound
        return min(again, plain, key=lambda result: result.cost), again.lower_bound

    def _of_passes(self, begin: int, end: int, passes: float) -> float:
        """Return a bound of some passes and what is done once, within any memory."""
        key = self.blocks.key(begin, end), passes
        if key not in self._passes:
            request = self.request_of(begin, end, 1, passes)
            self._passes[key] = self._solved(request, request.space, None).lower_bound
        return self._passes[key]

    def request_of(
        self,
        begin: int,
        end: int,
        in_flight: int,
        passes: float | None = None,
        *,
        free_ends: bool = False,
        recomputed: Collection[str] | None = None,
        uncounted: frozenset[str] = frozenset(),
    ) -> SearchRequest:
        """Return the search for a stage.

        Parameters
        ----------
        begin, end : int
            The first block of the stage, and the one after its last.
        in_flight : int
            Micro-batches in flight at its peak.
        passes : float, optional
            How often an operator of the loop counts.
        free_ends : bool
            Whether redistributing what is received and sent is left out.
        recomputed : collection of str, optional
            What the program marks as recomputed; by default, as the user asks.
        uncounted : frozenset of str, optional
            Values that are saved without being counted.
        """
        stretch = self.blocks.stretch(begin, end, alone=free_ends or self.alone)
        if recomputed is not None:
            marked = tuple(n.name for n in stretch.graph.nodes if n.name in recomputed)
            stretch = replace(stretch, graph=replace(stretch.graph, recomputed=marked))
        count, in_loop = passes or self._count, self.loop.passes > 1
        part = StagePart(stretch, in_flight, count, free_ends, in_loop, uncounted)
        loop = self.loop if count > 1 else None  # one micro-batch needs no loop
        prices, options = self.request.profile, self.request.options
        names = {node.name for node in stretch.graph.nodes}
        pins, result_pins = (
            {name: pin for name, pin in pinned.items() if name in names}
            for pinned in (options.pins, options.result_pins)
        )
        key = begin, end, in_flight, passes, free_ends, uncounted, stretch.graph.recomputed
        weights, spaces = self.structures.get(key, (self.request.weights, {}))
        request = replace(
            self.request,
            source=stretch.graph,
            options=replace(options, pins=pins, result_pins=result_pins),
            part=part,
            loop=loop,
            prices=prices,
            interners=self.interners,
            others={weights: spaces},
        )
        if request.weights == weights:
            self.structures[key] = weights, ChainMap(request.spaces, spaces)
        return request

    def _solved(
        self,
        request: SearchRequest,
        space: SearchSpace,
        memory_limit: float | None,
    ) -> SearchResult:
        budget = self.budget.share(_SHARE)
        limits = replace(self.limits, memory_limit=memory_limit, budget=budget)
        self.options = max(self.options, sum(space.problem.sizes))
        try:
            result = request.solve(space, limits)
        except NotFoundError:
            self.budget_note.note("the search for plans of stages")
            raise
        self.budget_note.note_end_of(result, limits)
        return result


def _plan(result: SearchResult) -> StagePlan:
    return StagePlan(result.decisions, result.cost, result.memory_bytes, unlimited=False)
