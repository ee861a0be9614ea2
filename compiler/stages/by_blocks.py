"""Pipelines of one kind of device whose blocks have plans of their fronts."""

from dataclasses import dataclass
from functools import cached_property
from math import inf

from shardwright.compiler.stages.candidates import Candidate, CandidateBuilder
from shardwright.cost_model.cluster import Cluster
from shardwright.ir.mesh import Mesh
from shardwright.planner.choice.cuts import Cut
from shardwright.planner.choice.stages import StagedBlocks
from shardwright.planner.choice.steps import StepSearch
from shardwright.planner.evaluation.programs import of_all_layers
from shardwright.planner.evaluation.simulated_step import in_least_memory, tolerance_of
from shardwright.planner.fronts.site import REPEATED, Site
from shardwright.planner.option_checks import SEARCHED


@dataclass(frozen=True, eq=False)
class PipelinesOfBlocks:
    """The pipelines of one program, schedule and mesh (`planner.choice`).

    Parameters
    ----------
    builder : CandidateBuilder
        The program, its blocks, the schedule and the devices.
    mesh : Mesh
        The mesh of a device group.
    """

    builder: CandidateBuilder
    mesh: Mesh

    @property
    def is_known(self) -> bool:
        """Whether there are such plans: on devices of one kind, for the overlapped step.

        Not where tensors may be offloaded: blocks alone do not tell when that pays.
        """
        options, source = self.builder.options, self.builder.blocks.line.graph
        offloads = source.offloaded or options.offload == SEARCHED
        alike = isinstance(self.builder.cluster, Cluster)
        return options.objective == "overlapped" and not offloads and alike

    @property
    def are_repeated(self) -> bool:
        """Whether most blocks are equal to others: then no other pipelines are searched."""
        blocks = self.builder.blocks
        kinds = {blocks.key(block, block + 1) for block in range(len(blocks))}
        return len(blocks) >= REPEATED * len(kinds)

    @cached_property
    def _staged(self) -> StagedBlocks:
        builder, cluster = self.builder, self.builder.cluster
        assert isinstance(cluster, Cluster)
        where = builder.blocks.line.graph, cluster, self.mesh, builder.options, builder.blocks
        return StagedBlocks(Site(*where, builder.budget.beyond()), builder.schedule)

    def plan(self, below: float = inf, cut: Cut | None = None) -> Candidate:
        """Return the pipeline of the shortest step that was found.

        Parameters
        ----------
        below : float
            Seconds that the step must undercut to be of use.
        cut : tuple of int, optional
            The blocks at which stages begin, and the end; by default those of about equal stages.

        Raises
        ------
        NotFoundError
            If none fits, or none is expected to be of use.
        """
        blocks = self._staged if cut is None else self._staged.cut_at(cut)
        builder = self.builder
        best = StepSearch(blocks, builder.level, below, builder.budget).best()
        assert blocks.cut is not None
        whole = of_all_layers(builder.blocks.line.graph, builder.options, best.emitted)
        tolerance = tolerance_of(builder.options.gap)
        step = in_least_memory(whole.program, builder.cluster, best.timeline, tolerance)
        return Candidate(blocks.cut, whole.decisions, whole.program, step, whole.records)
