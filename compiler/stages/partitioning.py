"""The plan of a pipeline: its cuts, and the decisions of its stages, with a bound."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from math import comb, inf
from typing import TypeVar

from shardwright.compiler.stages.by_blocks import PipelinesOfBlocks
from shardwright.compiler.stages.candidates import Candidate, CandidateBuilder
from shardwright.compiler.stages.named import NamedProblems
from shardwright.compiler.stages.pipeline import Pipelined
from shardwright.compiler.stages.places import (
    limits_text,
    memory_in_groups,
)
from shardwright.compiler.stages.race import Race
from shardwright.compiler.stages.stage_bounds import CutBounds
from shardwright.compiler.stages.tighter_limits import PipelineFrontier
from shardwright.compiler.stages.weights import SegmentWeights
from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.program_profile import Emissions
from shardwright.cost_model.weighted.intervals import ResourceWeights
from shardwright.cost_model.weighted.kinds import can_divide
from shardwright.ir.errors import (
    InfeasibleError,
    NoPlanError,
    NotFoundError,
    PassError,
)
from shardwright.ir.rounding import EQUAL
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.planner.choice.cuts import Cut, LeastCut
from shardwright.planner.effort import limits_on
from shardwright.planner.fronts.problem import StageProblems
from shardwright.planner.options import CompileOptions
from shardwright.planner.search_request import SearchRequest
from shardwright.planner.whole.partitioned import Emitted
from shardwright.planner.whole.plan import bounded
from shardwright.search.budget_note import BY_WEIGHTS
from shardwright.search.method import SearchResult
from shardwright.solver.work import Budget

T = TypeVar("T")
_FEW = 40  # number of cuts up to which all are tried
_CUTS = 3  # cuts that are tried where there are more
_SHARE_OF_WEIGHTS = 1 / 4  # share of the budget after which no other weights are tried
_SHARE_OF_BOUND = 1 / 2  # share of the budget after which plans are searched


@dataclass(frozen=True)
class PipelinePartitioning(Pipelined):
    """The search for the plan of one pipeline, whose numbers and schedule the options have."""

    @property
    def overlaps(self) -> bool:
        """Whether communication of parameters is concurrent with computation."""
        return self.options.objective == "overlapped"

    @cached_property
    def problems(self) -> tuple[StageProblems, ...]:
        """The stage problems whose plans are taken: of the least sum of all seconds."""
        bounds = self.schedule.chunks == 1
        return self._by_stage(lambda part: self._problems(self.lowering, part, bounds=bounds))

    @cached_property
    def bounding(self) -> tuple[StageProblems, ...]:
        """The stage problems whose bounds are taken.

        Where communication of parameters may be concurrent with computation, a segment takes at
        least the load of each resource, and so their sum by weights.
        """
        if self.overlaps:
            return self._by_stage(lambda part: self._by_weights(self._weights(part)[0], part))
        if self.schedule.chunks == 1:
            return self.problems
        return self._by_stage(lambda part: self._problems(self.lowering, part))

    def _by_stage(self, make: Callable[[Cluster], T]) -> tuple[T, ...]:
        """Return something for every stage, the same one for stages of one part."""
        made = {number: make(part) for number, part in self.groups.by_part.items()}
        return tuple(self.schedule.by_stage([made[number] for number in self.groups.parts]))

    def _by_weights(self, weights: ResourceWeights, part: Cluster) -> StageProblems:
        return self._problems(replace(self.lowering, weights=weights), part)

    def _weights(self, part: Cluster) -> tuple[ResourceWeights, ResourceWeights]:
        """The weights of the resources of a rank, for passes, and with what is done once."""
        if part not in self._known_weights:
            self._known_weights[part] = self._best_weights(part)
        return self._known_weights[part]

    @cached_property
    def _known_weights(self) -> dict[Cluster, tuple[ResourceWeights, ResourceWeights]]:
        return {}

    def _best_weights(self, part: Cluster) -> tuple[ResourceWeights, ResourceWeights]:
        share = _SHARE_OF_WEIGHTS * (len(self._known_weights) + 1) / len(self.groups.by_part)
        first = self._first(share)
        return SegmentWeights(
            len(part.levels),
            sorted({axis.level for axis in self.mesh.axes if axis.size > 1}),
            lambda weights: self._by_weights(weights, part).pass_floor(self._frequent),
            lambda weights: self._by_weights(weights, part).step_floor(self._frequent),
            self.options.passes,
            self.options.passes > 1 and can_divide(self.source, self.loop),
            lambda: self.budget_note.is_late(first, BY_WEIGHTS),
        ).best()

    @cached_property
    def _frequent(self) -> int:
        """The first block of the most frequent kind."""
        keys = [self.blocks.key(block, block + 1) for block in range(len(self.blocks))]
        return keys.index(Counter(keys).most_common(1)[0][0])

    def _problems(
        self,
        lowering: LowerRedistributions,
        part: Cluster,
        *,
        bounds: bool = True,
        options: CompileOptions | None = None,
    ) -> StageProblems:
        """Return the problems of stages on a part of the cluster."""
        planner, weights = lowering.planner(self.mesh, part), lowering.weights
        emissions = self._emissions_on(part) if options is None else {}
        own = options is not None or weights is not None
        options = options or self.options
        known = self.source, part, planner, options, weights, emissions
        request = SearchRequest(*known, budget=self.budget)
        alone = self.schedule.chunks > 1 and bounds
        limits = limits_on(part, self.options, self.budget, self.progress)
        where = (limits, self.budget, self.groups.level, alone, self.budget_note)
        if own:
            return StageProblems(request, self.blocks, *where)
        shared = self.mesh, options.passes, part
        tables = self.shared.tables(*shared, lambda: request.profile)
        request = replace(request, prices=tables.profile)
        return StageProblems(request, self.blocks, *where, interners=tables.interners)

    def _emissions_on(self, part: Cluster) -> Emissions:
        """Return emitted operators, whose redistributions are the cheapest on a part."""
        return self._emitted_on.setdefault(part, {}) if self.groups.is_mixed else self.emissions

    @cached_property
    def _emitted_on(self) -> dict[Cluster, Emissions]:
        return {}

    @cached_property
    def lowering(self) -> LowerRedistributions:
        """The pass that lowers redistributions to the paths that the search prices."""
        return LowerRedistributions(self.cluster, self.options.cost_model)

    @cached_property
    def bounds(self) -> CutBounds:
        """The bounds of the stages."""
        part = self._first(_SHARE_OF_BOUND)
        return CutBounds(self.bounding, self.schedule, self.groups, self._once, part)

    def _first(self, share: float) -> Budget:
        """Return what is left of the first part of the budget."""
        whole = self.budget
        return whole.within(max(share * whole.seconds - whole.spent, 0.0))

    @property
    def _once(self) -> tuple[StageProblems, ...] | None:
        """The stage problems whose bounds with what is done once are taken, if others."""
        weights = [self._weights(part) for part in self.groups.by_part.values() if self.overlaps]
        if all(of_passes == of_steps for of_passes, of_steps in weights):
            return None
        return self._by_stage(lambda part: self._by_weights(self._weights(part)[1], part))

    def draft(self, below: float = inf) -> Emitted:
        """Emit the pipeline whose blocks have plans of their fronts, without a bound.

        Where blocks are not planned so, it is what `emit` returns.

        Parameters
        ----------
        below : float
            Seconds that the step must undercut to be of use.

        Raises
        ------
        NotFoundError
            If none fits, or none is expected to be of use.
        """
        if not self.by_blocks.is_known:
            return self.emit()
        found = self.by_blocks.plan(below)
        return self._emitted(found, self._drafted(found))

    @cached_property
    def by_blocks(self) -> PipelinesOfBlocks:
        """The pipelines whose blocks have plans of their fronts."""
        return PipelinesOfBlocks(self.builder, self.mesh)

    def emit(self) -> Emitted:
        """Search for the best pipeline that fits, and emit it.

        Raises
        ------
        InfeasibleError
            If it is proven that none fits.
        NotFoundError
            If none was found.
        """
        least = self.bounds.bound()
        if least.cut is None:
            raise self._infeasible()
        best = self._best(least)
        return self._emitted(best, self._result(best, least.value))

    @cached_property
    def builder(self) -> CandidateBuilder:
        """What emits pipelines."""
        where = (self.blocks, self.schedule, self.cluster, self.options, self.limits)
        group_limits = memory_in_groups(self.groups, self.options)
        return CandidateBuilder(*where, group_limits, self.lowering, self.groups.level, self.budget)

    # Candidates

    def _best(self, least: LeastCut) -> Candidate:
        target = least.value * (1 + self.limits.gap)
        race = Race(self.builder, target, self.budget, self.budget_note)
        for cut in (None, least.cut) if self.by_blocks.is_known else ():
            with suppress(NoPlanError):
                race.keep(self.by_blocks.plan(race.seconds, cut))
        # Given stages are blocks themselves, of any size.
        if race.best is not None and self.by_blocks.are_repeated and not self.cuts:
            return race.best
        cuts = [*self._cuts(least)]
        for cut in cuts:
            for plans in self._kinds:
                race.enter(cut, plans)
        self._enter_named(race, least)
        PipelineFrontier(race, self.bounds, cuts, self._kinds).enter()
        if race.best is not None:
            for plans in self._kinds:
                race.enter_from_last(race.best.cut, plans)
        race.improve()
        if race.best is None:
            raise self._not_found()
        return race.best

    def _enter_named(self, race: Race, least: LeastCut) -> None:
        """Let named plans race, and the searched plans in even cuts."""
        if race.is_over or not self._allows_names:
            return
        assert least.cut is not None
        even = self.even_cut
        cuts = [*dict.fromkeys(cut for cut in (even, least.cut) if cut is not None)]
        race.enter_named(self.named, self.mesh, cuts)
        for plans in self._kinds if even else ():
            race.enter_if_promising(cuts[0], plans)

    @property
    def _allows_names(self) -> bool:
        """Whether named plans are points of what is searched: nothing is decided by the user."""
        options = self.options
        decided = options.pins or options.result_pins or options.input_layouts
        return not decided and not options.optimizer_parallel

    @cached_property
    def named(self) -> tuple[NamedProblems, ...]:
        """The problems of each stage in which named plans are points."""
        options = replace(self.options, search="fully_sharded", objective="serial")

        def of_part(part: Cluster) -> NamedProblems:
            problems = self._problems(self.lowering, part, bounds=False, options=options)
            return NamedProblems(problems, self.source)

        return self._by_stage(of_part)

    @cached_property
    def even_cut(self) -> Cut | None:
        """The cut of equal numbers of repeated blocks; None where there is none."""
        points = self.even_points
        starts = {place: block for block, place in enumerate(self.blocks.starts)}
        if not points or any(point not in starts for point in points):
            return None
        return (0, *(starts[point] for point in points), len(self.blocks))

    @property
    def _kinds(self) -> tuple[tuple[StageProblems, ...], ...]:
        """The stage problems whose plans are tried."""
        weighted = self.overlaps and self.schedule.chunks == 1
        return (self.problems, self.bounding) if weighted else (self.problems,)

    def _cuts(self, least: LeastCut) -> Iterator[Cut]:
        """Yield the cuts that are tried, those that promise most first."""
        stages, blocks = self.schedule.stages, len(self.blocks)
        assert least.cut is not None
        if comb(blocks - 1, stages - 1) > _FEW:
            yield from self._few(least.cut)
            return
        inner = combinations(range(1, blocks), stages - 1)
        cuts = [(0, *points, blocks) for points in inner]
        yield from sorted(cuts, key=self.bounds.estimate)

    def _few(self, least: Cut) -> list[Cut]:
        """Return the cuts that are tried out of many: the bound's, and the one of equal stages."""
        even = self.bounds.balanced() or least
        if self.schedule.chunks > 1:
            return list(dict.fromkeys((even, least, *reversed(self.bounds.met))))[:_CUTS]
        cuts = list(dict.fromkeys((least, even, *reversed(self.bounds.met))))[:_CUTS]
        return sorted(cuts, key=self.bounds.estimate)

    # The answer

    def _emitted(self, best: Candidate, result: SearchResult) -> Emitted:
        self.take(best.records)
        assert best.program.mesh is not None
        return Emitted(
            best.program,
            best.program.mesh,
            best.step.memory,
            best.decisions,
            result,
            minimizes_step=self.overlaps,
        )

    def _result(self, best: Candidate, bound: float) -> SearchResult:
        seconds = best.step.seconds
        bound -= self.bounds.rounding(seconds)
        if self.options.rewrites_programs:  # what they do to the step is not bounded
            bound = 0.0
        if bound > seconds * (1 + EQUAL):
            raise PassError(
                f"the pipeline takes {seconds:.9g} s, the search said that every plan takes at "
                f"least {bound:.9g} s"
            )
        result = replace(self._drafted(best), how=self._how())
        return bounded(self.budget_note.noted_in(result), max(bound, 0.0))

    def _drafted(self, best: Candidate) -> SearchResult:
        """Return the result of a search without a bound."""
        return SearchResult(
            (),
            best.decisions,
            best.step.seconds,
            0.0,
            "feasible",
            best.step.memory.peak_bytes,
            self.budget.spent,
            f"{_searches(self.problems)} searches of stages",
        )

    def _how(self) -> str:
        blocks = len(self.blocks)
        cuts = "given cuts" if self.cuts else f"cuts between {blocks} blocks"
        searches = _searches(self.problems)
        if self.overlaps:
            searches += _searches(self.bounding)
        return f"{searches} searches of stages, {cuts}"

    @property
    def _configuration(self) -> str:
        passes = self.options.passes
        count = "one micro-batch" if passes == 1 else f"{passes} micro-batches"
        return f"mesh {self.mesh} of a stage, {count}"

    @property
    def _limit_text(self) -> str:
        return limits_text(self.builder.group_limits)

    def _infeasible(self) -> InfeasibleError:
        where = "with the given cuts" if self.cuts else "wherever it is cut between its blocks"
        return InfeasibleError(
            f"no plan of the model in {self.schedule.stages} stages fits "
            f"{self._limit_text} on each device, {where}",
            self._configuration,
            "use more stages, more devices for each stage, or more micro-batches",
        )

    def _not_found(self) -> NotFoundError:
        return NotFoundError(
            f"no plan in {self.schedule.stages} stages was found that fits "
            f"{self._limit_text} on each device",
            self._configuration,
            "use more stages, more devices for each stage, or more micro-batches",
        )


def _searches(problems: tuple[StageProblems, ...]) -> int:
    """Return the number of searches of stages, those of each part once."""
    return sum({id(one): one.searches for one in problems}.values())
