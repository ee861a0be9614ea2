"""Prices of the blocks of a program: bounds and estimates of many configurations at once.

A block, such as a layer, is searched alone, with free ends, so the bounds of all blocks add up to
one of the program (`StageProblems.relaxed`). Equal blocks share one search: a model of a hundred
layers takes three. The prices depend on the mesh and on the number of micro-batches M alone, so
numbers of stages, chunks and schedules share them. With P the bound of one pass of all blocks over
a micro-batch,

    step >= bound of all passes and what is done once              in one stage
    step >= M P / S                                                in S device groups
    step >= M ceil(N / S) p        of N equal blocks of p seconds, where each group has one stage
    step >= P / (1 - (1 - 1/M)^S)     for M > 1, with a forward and a backward segment (`floors`)
    step >= M P / S + mean of q_g     for M > 1, where each group has several stages (`floors`)
    step >= alpha C + delta (P - C)   the same, of which C seconds are computation (`chunk_floors`)

A pass over a micro-batch costs no less than its part of a pass over a larger one, so M P bounds
those of multiples of M too, and a finer mesh bounds those that merge its axes. A price on memory
bounds the plans within the limit (`bounds.priced_blocks`): the blocks of S device groups hold at
most S times the limit together, each at its own turn with one micro-batch in flight at least. This
bound is of M alone, since smaller micro-batches take less memory, and of cuts between the blocks.
The weights of the resources are those, of some that are tried, by which the bound is highest. Any
weights and any price give a bound. So on a mesh that divides an axis of a level, whose searches
take long, one search is enough: by the weights, and at the price, that are best on the mesh with an
axis for each level, whose searches are short (`_on_merged_axes`). Then the two bounds tell as well
which of the meshes has the faster plan.

The estimate takes the serial seconds of a pass, and the bubble of the schedule; in one stage a
little more than the bound within the memory limit. It is no bound: it only decides what is compiled
first.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, repeat
from math import inf

from shardwright.compiler.stages.pipeline import Pipelined
from shardwright.compiler.stages.weights import SegmentWeights
from shardwright.cost_model.pipelines.mixed import of_one_kind
from shardwright.cost_model.program_profile import Emissions
from shardwright.cost_model.weighted.intervals import LEAST_WEIGHT, ResourceWeights
from shardwright.cost_model.weighted.kinds import can_divide
from shardwright.dataflow.samples import samples_of
from shardwright.ir.mesh import Mesh
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.planner.bounds.chunk_floors import Halves
from shardwright.planner.bounds.floors import first_of_groups, has_two_parts
from shardwright.planner.bounds.half_weights import HalfWeights
from shardwright.planner.bounds.priced_blocks import (
    BlockBounds,
    BlockKind,
    BlockPart,
    can_price_memory,
)
from shardwright.planner.choice.best_first import CLOSE
from shardwright.planner.choice.configuration import Configuration, merged
from shardwright.planner.fronts.problem import MANY, ONE, StageProblems, Structure
from shardwright.planner.options import CompileOptions
from shardwright.planner.plan.blocks import Blocks, most_between
from shardwright.planner.search_request import SearchRequest, decided
from shardwright.solver.work import Budget

_AGAIN = 4 / 3  # seconds of a pass whose forward half is recomputed, where memory is short
_SHARE_OF_WEIGHTS = 1 / 4  # share of the budget after which no other weights are tried
_MUCH = 2  # multiple of the limit above which a form is taken not to fit
_LOOSEST = 8  # chunks for each device group of a form whose bound is about the least

PipelineOf = Callable[[CompileOptions, Mesh, Budget], Pipelined]


@dataclass(frozen=True)
class BlockPrices:
    """What all blocks of a program take on a mesh, in a number of micro-batches.

    Parameters
    ----------
    configuration : Configuration
        The mesh, the number of micro-batches, and how many device groups have such a mesh.
    step_seconds : float
        A bound of a whole step within any memory where there is one group; 0 where there are
        several.
    limited_seconds : float
        The same within the memory limit; where there are several groups, of one pass of all blocks.
    least : tuple of BlockKind
        Bounds of one pass of the blocks over a micro-batch; of one, with what is done once. None
        where there is one group.
    usual : tuple of BlockKind
        About how long the blocks take for a pass.
    fits : bool
        Whether what a pass takes of memory fits, roughly: only the estimate depends on it.
    is_short : bool
        Whether the memory limit makes plans slower, whatever links take.
    is_one_program : bool
        Whether other numbers of micro-batches have the same program.
    most_stages : int
        Number of stages up to which cuts are between these blocks.
    halves : Halves
        What one device computes of both halves of a pass.
    known : mapping
        Bounds on the mesh with an axis for each level, by that mesh and the number of
        micro-batches.
    proof : str
        What proved the bounds.
    """

    configuration: Configuration
    step_seconds: float
    limited_seconds: float
    least: tuple[BlockKind, ...] = ()
    usual: tuple[BlockKind, ...] = ()
    fits: bool = True
    is_short: bool = False
    is_one_program: bool = True
    most_stages: int = 0
    halves: Halves = field(default_factory=Halves)
    known: Mapping[Hashable, object] = field(default_factory=dict)
    proof: str = "blocks alone"

    def bound(self, other: Configuration) -> float:
        """Return a bound of every plan of a configuration; 0 where the prices say nothing of it.

        Examples
        --------
        The first of two micro-batches passes two stages one after the other.

        >>> blocks = (BlockKind(4, 1.0),)
        >>> prices = BlockPrices(Configuration(None, 2, 2), 0.0, 0.0, blocks, blocks)
        >>> [round(prices.bound(Configuration(None, 2, stages)), 6) for stages in (1, 2)]
        [0.0, 5.333333]
        """
        own = self.configuration
        one, alone = (_in_one_stage(configuration) for configuration in (own, other))
        several = self.is_one_program and (own.stages == 1 or own.micro_batches > 1)
        known = one == alone or (several and one.divides(alone))
        if own.stages != other.stages or not known:
            return 0.0
        same = own.micro_batches == other.micro_batches
        if own.stages == 1:
            return max(self.step_seconds, self.limited_seconds if same else 0.0)
        count = other.micro_batches
        part = own.micro_batches / count  # of a pass of which bounds are known
        passes = part * sum(kind.count * kind.seconds for kind in self.least)
        between = other.parts <= self.most_stages
        if same and between:
            passes = max(passes, self.limited_seconds)
        bound = count * passes / other.stages
        if other.chunks > 1 and between and count > 1:
            if has_two_parts(other):  # else stages are passed forward alone
                bound += part * first_of_groups(self._ascending, other.stages) / other.stages
            size = 1 if own.mesh is None else own.mesh.size
            bound = max(bound, self.halves.step(other, size, passes))
        if other.chunks == 1:
            bound = max(bound, count * part * slowest_stage(self.least, other.stages))
        if other.chunks == 1 < count and has_two_parts(other):
            bound = max(bound, passes / (1 - (1 - 1 / count) ** other.stages))
        return bound / (1 + _rounding(other))

    @property
    def _ascending(self) -> list[float]:
        """The seconds of all blocks, in this order no more than in that of the program."""
        return sorted(chain.from_iterable(repeat(kind.seconds, kind.count) for kind in self.least))

    def _are_of(self, other: Configuration) -> bool:
        """Return whether a configuration has the mesh and the micro-batches that were priced."""
        own = self.configuration
        return (other.mesh, other.micro_batches) == (own.mesh, own.micro_batches)

    def is_short_of_memory(self, other: Configuration) -> bool:
        """Return whether the memory limit makes plans of one stage slower, as far as is known."""
        return self.is_short and self.configuration.stages == 1 and self._are_of(other)

    def estimate(self, other: Configuration) -> float | None:
        """Return about how long the step of a configuration takes; None of another mesh or M."""
        if not self._are_of(other):
            return None
        if self.configuration.stages == 1:
            return (1 + CLOSE) * self.limited_seconds
        if not self.usual:
            return None
        mean = sum(kind.count * kind.seconds for kind in self.usual) / other.stages
        slowest = other.chunks * slowest_stage(self.usual, other.stages * other.chunks)
        bubble = (other.stages - 1) * other.order.bubble(other.chunks) * mean
        again = 1.0 if self.fits else _AGAIN
        return again * (other.micro_batches * max(mean, slowest) + bubble)


def _is_slower(bounds: BlockBounds) -> bool:
    """Return whether the memory limit raises a bound by more than bounds are apart."""
    return bounds.limited_seconds > (1 + CLOSE) * bounds.seconds


def slowest_stage(kinds: Iterable[BlockKind], stages: int) -> float:
    """Return the least seconds of the slowest stage: of N equal blocks one has at least N / S.

    Examples
    --------
    >>> slowest_stage((BlockKind(5, 1.0), BlockKind(1, 1.5)), 4)
    2.0
    """
    return max(-(-kind.count // stages) * kind.seconds for kind in kinds)


def _in_one_stage(configuration: Configuration) -> Configuration:
    return replace(configuration, stages=1, chunks=1, schedule=None)


def _rounding(other: Configuration) -> float:
    """Return what a bound by `MANY` passes is too high by at most, as a part of the step."""
    return 2 * (other.micro_batches + other.stages) / MANY + (ONE - 1)


@dataclass
class BlockPricing:
    """Prices the blocks of a program.

    Parameters
    ----------
    pipeline_of : callable
        Returns a pipeline with options on a mesh.
    levels : int
        Levels of the cluster.
    overlaps : bool
        Whether bounds are of the overlapped step, by weights; else of the serial one.
    is_one_program : bool
        Whether all numbers of micro-batches have the same program.
    halves : Halves
        What one device computes of both halves of a pass.
    """

    pipeline_of: PipelineOf
    levels: int
    overlaps: bool
    is_one_program: bool
    halves: Halves = field(default_factory=Halves)
    _blocks: dict[Hashable, Blocks] = field(default_factory=dict)

    def prices(
        self,
        configuration: Configuration,
        options: CompileOptions,
        budget: Budget,
        below: float,
        known: Mapping[Hashable, object],
    ) -> BlockPrices:
        """Return the prices of a configuration.

        Parameters
        ----------
        configuration : Configuration
            The mesh, the number of micro-batches, and the number of device groups.
        options : CompileOptions
            Of a compilation in one stage.
        budget : Budget
            What the searches may spend.
        below : float
            The cost of a plan: a bound that is no less ends the searches, and of pipelines there is
            no estimate then. Where it is infinite, those of pipelines are within any memory.
        known : mapping
            What earlier prices told.

        Raises
        ------
        ShardwrightError
            If the program has no form in so many micro-batches, or a search spent too much.
        """
        assert configuration.mesh is not None
        pipeline = self.pipeline_of(options, configuration.mesh, budget)
        priced = can_price_memory(pipeline.source, pipeline.options)
        limit = pipeline.limits.limit_bytes if priced else inf
        # A stage need not recompute what the user's rule recomputes for another.
        if pipeline.source.recomputed:
            pipeline = replace(pipeline, source=replace(pipeline.source, recomputed=()))
        blocks: Blocks = self._blocks_of(pipeline)
        shared: tuple[Emissions, dict[Hashable, Structure]] = {}, {}
        problems_by = partial(self._problems, pipeline, blocks, shared=shared, budget=budget)
        passes = options.passes if configuration.stages == 1 or options.passes == 1 else MANY
        own = self.own(configuration)
        most = most_between(blocks)
        chunks = max(min(_LOOSEST, most // own.stages), 2)
        loosest = own if own.stages == 1 else replace(own, chunks=chunks)  # the least bound

        def prices_of(bounded: BlockBounds) -> BlockPrices:
            return self._prices(own, bounded, most)

        def is_enough(bounded: BlockBounds) -> bool:
            return prices_of(bounded).bound(loosest) >= below

        limit = inf if own.stages > 1 and below == inf else limit  # an estimate is wanted, and soon
        recomputes = own.stages == 1 or _has_whole_samples(pipeline)
        part = BlockPart(configuration.stages, passes, limit, budget, is_enough, recomputes)
        found, told = self._found(part, pipeline, blocks, known, problems_by)
        best = max(found, key=lambda one: one.seconds)
        limited = max(one.limited_seconds for one in found)
        is_short = found[0].is_short
        prices = replace(prices_of(best), limited_seconds=limited, is_short=is_short, known=told)
        if own.stages == 1 or prices.bound(own) >= below:
            return prices
        usual = _kinds(blocks, problems_by(None), MANY)
        much = _MUCH * pipeline.limits.limit_bytes * own.stages
        fits = sum(kind.count * kind.memory_bytes for kind in usual) <= much
        return replace(prices, usual=usual, fits=fits)

    @staticmethod
    def own(configuration: Configuration) -> Configuration:
        """Return the configuration that prices are told of, for all chunks and schedules."""
        return replace(configuration, chunks=1, schedule=None)

    def _found(
        self,
        part: BlockPart,
        pipeline: Pipelined,
        blocks: Blocks,
        known: Mapping[Hashable, object],
        problems_by: Callable[[ResourceWeights | None], StageProblems],
    ) -> tuple[list[BlockBounds], Mapping[Hashable, object]]:
        """Return the bounds by the weights that are tried, and what they tell other meshes.

        The first ones say whether memory is short.
        """
        if not self._is_fine(pipeline.mesh):
            found = self._bounds(part, problems_by, pipeline.mesh, part.is_enough)
            by_halves = self._by_halves(part, pipeline, found, problems_by)
            # Links weigh next to nothing in the first ones.
            is_short = _is_slower(found[0]) or any(one.price for one in by_halves)
            found = [replace(one, is_short=is_short) for one in (*found, *by_halves)]
            return found, {self._key(pipeline): max(found, key=lambda one: one.limited_seconds)}
        coarse, told = self._on_merged_axes(part, pipeline, blocks, known)
        if coarse is None:
            return [part.bounded(problems_by(self._free))], told
        problems = problems_by(coarse.weights)
        if part.groups == 1 and coarse.is_short:
            bounds = part.priced(problems, coarse.price, free=not _is_slower(coarse))
        elif part.groups == 1:  # memory is worth little there
            bounds = replace(part, limit_bytes=inf, recomputes=False).bounded(problems)
        else:
            bounds = part.bounded(problems)
        return [replace(bounds, is_short=coarse.is_short)], told

    def _on_merged_axes(
        self,
        part: BlockPart,
        pipeline: Pipelined,
        blocks: Blocks,
        known: Mapping[Hashable, object],
    ) -> tuple[BlockBounds | None, Mapping[Hashable, object]]:
        """Return the bounds on the mesh with an axis for each level, and these by what they are of.

        None where that is the mesh itself, and where they were not told and are not worth a search:
        where memory has no price, and of pipelines.
        """
        if not self._is_fine(pipeline.mesh) or pipeline.options.input_layouts:
            return None, {}
        key = self._key(pipeline)
        bounded = known.get(key)
        if not isinstance(bounded, BlockBounds):
            if part.groups > 1 or part.limit_bytes == inf:
                return None, {}
            again = self.pipeline_of(pipeline.options, key[0], part.budget)
            coarse = replace(again, source=pipeline.source)
            alone = replace(part, is_enough=lambda _: False)
            problems = self._problems(coarse, blocks, self._free, ({}, {}), part.budget)
            bounded = alone.bounded(problems)
            bounded = replace(bounded, is_short=_is_slower(bounded))
        return bounded, {key: bounded}

    def _is_fine(self, mesh: Mesh) -> bool:
        """Return whether a mesh divides an axis of a level, and its searches take long."""
        return self.overlaps and len(mesh.axes) > self.levels

    @staticmethod
    def _key(pipeline: Pipelined) -> tuple[Mesh, int]:
        """Return what bounds are told by to the prices of meshes that divide its axes."""
        return merged(pipeline.mesh), pipeline.options.passes

    def _prices(self, own: Configuration, bounded: BlockBounds, most_stages: int) -> BlockPrices:
        """Return prices without an estimate of pipelines."""
        one, limited = self.is_one_program, bounded.limited_seconds
        if own.stages == 1:
            return BlockPrices(own, bounded.seconds, limited, is_one_program=one)
        return BlockPrices(
            own,
            0.0,
            limited,
            bounded.kinds,
            is_one_program=one,
            most_stages=most_stages,
            halves=self.halves,
        )

    def _bounds(
        self,
        part: BlockPart,
        problems_by: Callable[[ResourceWeights | None], StageProblems],
        mesh: Mesh,
        is_enough: Callable[[BlockBounds], bool],
    ) -> list[BlockBounds]:
        """Return the bounds by the weights that are tried, as long as they are not enough."""
        if not self.overlaps:
            return [part.bounded(problems_by(None))]
        found: list[BlockBounds] = []

        def seconds(weights: ResourceWeights) -> float:
            found.append(part.bounded(problems_by(weights)))
            return found[-1].limited_seconds

        used = sorted({axis.level for axis in mesh.axes if axis.size > 1})
        tried = part.budget.share(_SHARE_OF_WEIGHTS)

        def is_done() -> bool:
            return tried.is_spent or any(map(is_enough, found[-1:]))

        best, _ = SegmentWeights(self.levels, used, seconds, seconds, 1, False, is_done).best()
        return found or [part.bounded(problems_by(best))]

    def _by_halves(
        self,
        part: BlockPart,
        pipeline: Pipelined,
        found: Sequence[BlockBounds],
        problems_by: Callable[[ResourceWeights | None], StageProblems],
    ) -> list[BlockBounds]:
        """Return the bounds by the best weights of both halves of a step, where links bind.

        Within any memory they are 0: those hold for more micro-batches, too, and these do not.
        """
        best = max(found, key=lambda one: one.limited_seconds)
        binds = best.limited_seconds > (1 + CLOSE) * found[0].limited_seconds
        tells = binds and best.weights is not None and not part.is_enough(best)
        if part.groups > 1 or part.passes > 1 or not tells or not can_divide(pipeline.source):
            return []
        assert best.weights is not None
        tried = part.budget.share(_SHARE_OF_WEIGHTS)

        def seconds(weights: ResourceWeights) -> float:
            problems, price = problems_by(weights), best.price
            at = part.priced(problems, price, free=False) if price else part.bounded(problems)
            return at.limited_seconds

        used = sorted({axis.level for axis in pipeline.mesh.axes if axis.size > 1})
        where = best.weights, best.limited_seconds, used, seconds
        weights = HalfWeights(*where, lambda: tried.is_spent).best()
        if weights == best.weights:
            return []
        return [replace(part.bounded(problems_by(weights)), seconds=0.0, kinds=())]

    @property
    def _free(self) -> ResourceWeights:
        """The weights by which links take next to no time."""
        levels = self.levels
        return ResourceWeights(1 - levels * LEAST_WEIGHT, (LEAST_WEIGHT,) * levels)

    def _blocks_of(self, pipeline: Pipelined) -> Blocks:
        """Return the blocks of a program in micro-batches, which no mesh changes."""
        pinned = sorted(decided(pipeline.options).items())
        key = pipeline.options.passes, tuple(pinned)
        if key not in self._blocks:
            self._blocks[key] = pipeline.blocks
        return self._blocks[key]

    def _problems(
        self,
        pipeline: Pipelined,
        blocks: Blocks,
        weights: ResourceWeights | None,
        shared: tuple[Emissions, dict[Hashable, Structure]],
        budget: Budget,
    ) -> StageProblems:
        """Return the problems by some weights, which share operators and structures with others."""
        options, (emissions, structures) = pipeline.options, shared
        cluster = of_one_kind(pipeline.cluster, "prices of blocks are those of one kind of device")
        lowering = LowerRedistributions(cluster, options.cost_model, weights)
        planner = lowering.planner(pipeline.mesh)
        known = pipeline.source, cluster, planner, options, weights, emissions
        request = SearchRequest(*known, budget=budget)
        where = (blocks, pipeline.limits, budget, pipeline.level, True)
        if weights is not None:
            return StageProblems(request, *where, structures=structures)
        where_of = pipeline.mesh, options.passes, cluster
        tables = pipeline.shared.tables(*where_of, lambda: request.profile)
        request = replace(request, prices=tables.profile)
        return StageProblems(request, *where, interners=tables.interners)


def _has_whole_samples(pipeline: Pipelined) -> bool:
    """Return whether each rank has a sample of a micro-batch for itself: nothing need be sent."""
    samples = samples_of(pipeline.source) or 1
    return samples // pipeline.options.passes >= pipeline.mesh.size


def _kinds(blocks: Blocks, problems: StageProblems, passes: float) -> tuple[BlockKind, ...]:
    """Return the bounds of all blocks, for one pass, or for all where they are few."""
    keys = [blocks.key(block, block + 1) for block in range(len(blocks))]
    found = {key: problems.relaxed(keys.index(key), passes) for key in dict.fromkeys(keys)}
    scale = MANY if passes == MANY else 1.0
    return tuple(
        BlockKind(keys.count(key), one.lower_bound / scale, one.memory_bytes)
        for key, one in found.items()
    )
