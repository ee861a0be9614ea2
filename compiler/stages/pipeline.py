"""A pipeline that is asked for: its schedule, what it can be cut between, and its limits."""

from dataclasses import dataclass, field, replace
from functools import cached_property

from shardwright.compiler.stages.places import clusters_of_groups
from shardwright.compiler.stages.shared import SharedParts
from shardwright.cost_model.pipelines.mixed import GroupClusters
from shardwright.cost_model.program_profile import Emissions
from shardwright.dataflow.micro_batches import MicroBatches
from shardwright.dataflow.placement import even_cuts
from shardwright.dataflow.schedules import Schedule, make_schedule
from shardwright.dataflow.stretches import Line
from shardwright.ir.errors import OptionError
from shardwright.planner.effort import limits_on
from shardwright.planner.plan.blocks import Blocks, cut_points, given_points
from shardwright.planner.search_request import decided
from shardwright.planner.whole.partitioned import Partitioned
from shardwright.search.options import SearchOptions


@dataclass(frozen=True)
class Pipelined(Partitioned):
    """A pipeline whose numbers and schedule the options have.

    Parameters
    ----------
    level : int
        Level of the cluster whose links the stages use.
    cuts : tuple of str
        The first operators of the stages 1, 2, ..., where they are given.
    shared : SharedParts
        What it shares with searches for other pipelines of the program.
    """

    level: int
    cuts: tuple[str, ...] = ()
    emissions: Emissions = field(default_factory=dict)
    shared: SharedParts = field(default_factory=SharedParts)

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule."""
        options = self.options
        return make_schedule(options.order, options.groups, options.chunks, options.passes)

    @cached_property
    def loop(self) -> MicroBatches:
        """The program in micro-batches."""
        return self.shared.loop(self.source, self.options.passes)

    @cached_property
    def line(self) -> Line:
        """The operators in the order in which they are cut."""
        return self.shared.line(self.source)

    @cached_property
    def blocks(self) -> Blocks:
        """What the program can be cut between."""
        user = tuple(sorted(decided(self.options).items()))
        others = self.options.passes, self.schedule.stages, self.cuts, user
        return self.shared.blocks(self.source, others, self._cut_between)

    def _cut_between(self) -> Blocks:
        points = given_points(self.line, self.loop, self.cuts) if self.cuts else ()
        if not points:
            found = cut_points(self.line, self.loop, self.schedule.stages)
            points = tuple(sorted({*found, *self.even_points}))
        return Blocks(self.line, self.loop, points, decided(self.options))

    def blocks_of(self, stages: int) -> Blocks:
        """Return the pieces between all places at which so many stages may be cut, or fewer.

        Raises
        ------
        OptionError
            If the program has fewer places.
        """
        points = {*self.blocks.points, *cut_points(self.line, self.loop, stages)}
        points.update(self._even_points_of(stages))
        return replace(self.blocks, points=tuple(sorted(points)))

    @cached_property
    def groups(self) -> GroupClusters:
        """The cluster of each device group."""
        found = clusters_of_groups(self.cluster, self.mesh, self.options.groups, self.level)
        return replace(found, in_v=self.schedule.in_v)

    @cached_property
    def limits(self) -> SearchOptions:
        """The limits of the user, on the devices with the most memory."""
        clusters = self.groups.clusters
        largest = max(clusters, key=self.options.memory_on)
        return limits_on(largest, self.options, self.budget, self.progress)

    @cached_property
    def even_points(self) -> tuple[int, ...]:
        """The places in line at which stages of equal numbers of repeated blocks begin."""
        return self._even_points_of(self.schedule.stages)

    def _even_points_of(self, stages: int) -> tuple[int, ...]:
        try:
            return given_points(self.line, self.loop, even_cuts(self.source, stages))
        except OptionError:
            return ()
