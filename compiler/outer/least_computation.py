"""What one device computes of a program: the numbers of the floors (`planner.bounds.floors`)."""

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

from shardwright.compiler.stages.pipeline import Pipelined
from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.weighted.intervals import ResourceWeights
from shardwright.dataflow.schedules import BACKWARD, FORWARD
from shardwright.ir.errors import OptionError, ShardwrightError
from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.rounding import OF_SEARCH
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.planner.bounds.floors import (
    ComputationFloor,
    FinePieces,
    Launches,
    half_weights,
    halves_of,
    least_share,
)
from shardwright.planner.fronts.problem import MANY, ONE, StageProblems
from shardwright.planner.options import CompileOptions
from shardwright.planner.plan.blocks import Blocks, most_between
from shardwright.planner.search_request import SearchRequest
from shardwright.search.options import SearchOptions
from shardwright.solver.work import Budget

ALONE = Mesh((MeshAxis("x", 1, 0),))
"""The mesh of one device."""

_INSTANT = 1e60  # flops and bytes a second of a device that takes no time


def instant(cluster: Cluster) -> Cluster:
    """Return a cluster whose devices take the time of launches alone, one for each operator."""
    device = cluster.device
    peaks = dict.fromkeys(device.peak_flops, _INSTANT)
    update = {"peak_flops": peaks, "memory_bandwidth": _INSTANT, "efficiency": None}
    fast = device.model_copy(update=update)
    return cluster.model_copy(update={"device": fast, "software": None})


@dataclass(frozen=True)
class LeastComputation:
    """The searches for the least computation on one device.

    Parameters
    ----------
    source : Graph
        The whole program, in canonical form, the same in any number of micro-batches.
    cluster : Cluster
        The devices.
    options : CompileOptions
        Of the serial step in one stage, at one micro-batch, without pins.
    pipeline : Pipelined
        The program in one stage on one device.
    budget : Budget
        What the searches may spend.
    """

    source: Graph
    cluster: Cluster
    options: CompileOptions
    pipeline: Pipelined
    budget: Budget

    def floor(self, devices: int, stages: Collection[int]) -> ComputationFloor:
        """Return what bounds the configurations of so many devices and device groups."""
        floor = ComputationFloor(devices, 0.0)
        planner = LowerRedistributions(self.cluster, self.options.cost_model).planner(ALONE)
        where = self.source, self.cluster, planner, self.options
        request = SearchRequest(*where, budget=self.budget)
        with suppress(ShardwrightError):
            limits = SearchOptions(budget=self.budget.within(self.budget.left))
            found = request.solve(request.space, limits)
            floor = replace(floor, step_seconds=found.lower_bound)
            floor = replace(floor, launches=self._launches)
            return self._with_stages(floor, stages) if max(stages) > 1 else floor
        return floor

    @cached_property
    def _launches(self) -> Launches:
        """The seconds of launches.

        No operator takes less than one launch by the figures of data sheets.
        """
        if not self._counts_launches:
            return Launches()
        blocks, least = self._blocks, self._problems(self._blocks, cluster=instant(self.cluster))
        each = range(len(blocks))
        passes = tuple(least.pass_floor(block) for block in each)
        step = sum(least.floor_of(block, 1.0) for block in each)
        return Launches(max(step - sum(passes), 0.0), passes)

    @property
    def _launches_of_halves(self) -> tuple[tuple[float, ...], ...]:
        """The seconds of launches in the forward half of each block, and in all of it."""
        if not self._counts_launches:
            return ()
        forward = self._passes(self._blocks, FORWARD, instant(self.cluster))
        return forward, self._launches.blocks

    @property
    def _counts_launches(self) -> bool:
        """Whether an operator takes a launch: nothing was measured, and no software runs it."""
        device, software = self.cluster.device, self.cluster.software
        return device.launch_seconds > 0 and device.efficiency is None and software is None

    @cached_property
    def _blocks(self) -> Blocks:
        """The blocks, whatever the user's rule recomputes: a stage need not."""
        return self._staged.blocks

    @cached_property
    def _staged(self) -> Pipelined:
        return replace(self.pipeline, source=replace(self.source, recomputed=()))

    def _problems(
        self,
        blocks: Blocks,
        weights: ResourceWeights | None = None,
        cluster: Cluster | None = None,
    ) -> StageProblems:
        cluster = cluster or self.cluster
        planner = LowerRedistributions(cluster, self.options.cost_model, weights).planner(ALONE)
        where = self._staged.source, cluster, planner, self.options, weights
        request = SearchRequest(*where, budget=self.budget)
        return StageProblems(request, blocks, self._staged.limits, self.budget, alone=True)

    def _passes(
        self, blocks: Blocks, half: str | None = None, cluster: Cluster | None = None
    ) -> tuple[float, ...]:
        """Return the seconds of a pass of each block, or of a half of it."""
        weights = half_weights(len(self.cluster.links), half) if half else None
        least, scale = self._problems(blocks, weights, cluster), 1 - OF_SEARCH if half else 1.0
        return tuple(scale * least.pass_floor(block) for block in range(len(blocks)))

    def _with_stages(self, floor: ComputationFloor, stages: Collection[int]) -> ComputationFloor:
        """Add what a program with stages computes, whatever is recomputed.

        What runs wherever it is read is not counted.
        """
        blocks = self._blocks
        whole = self._problems(Blocks(self._staged.line, self._staged.loop, ()))
        once, many = (whole.seconds(0, 1, passes) for passes in (ONE, MANY))
        pass_seconds = max(many - once, 0.0) / MANY
        floor = replace(floor, staged_seconds=once / ONE, pass_seconds=pass_seconds)
        passes, *halves = (self._passes(blocks, half) for half in (None, FORWARD, BACKWARD))
        most, finer = most_between(blocks), {}
        for count in sorted(count for count in stages if count > max(most, 1)):
            with suppress(OptionError):  # there is no such pipeline
                fine = self._staged.blocks_of(count)
                each = self._passes(fine)
                share = least_share(self._passes(fine, FORWARD), each)
                finer[count] = FinePieces(min(pass_seconds, sum(each)), share)
        return replace(
            floor,
            pass_seconds=min(pass_seconds, sum(passes)),
            forward_share=least_share(halves[0], passes, *self._launches_of_halves),
            most_stages=most,
            blocks=passes,
            finer=finer,
            halves=halves_of(passes, *halves),
        )
