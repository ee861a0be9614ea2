"""Sketches of pipelines: their cut, the plans of their stages, and the step that follows.

Emitting the program of a large pipeline takes seconds; its plans take a fraction of a second, since
equal stages share theirs. Where nothing overlaps within a stage, the schedule simulated with their
seconds is the step of the program, but for rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np

from shardwright.compiler.stages.bounds import stage_sums
from shardwright.compiler.stages.candidates import CandidateBuilder, StagePlans
from shardwright.compiler.stages.cuts import Cut, least_sum
from shardwright.planner.fronts.narrow import NarrowPlans
from shardwright.planner.fronts.problem import StageProblems
from shardwright.planner.plan.stage_plans import StagePlan


@dataclass(frozen=True)
class Sketch:
    """A pipeline that is not emitted.

    Parameters
    ----------
    cut : tuple of int
        The blocks at which its stages begin, and the end.
    staged : sequence of StagePlan, optional
        The plans of its stages; None where none was found that fits.
    seconds : float
        About how long its step takes; infinite where none fits.
    """

    cut: Cut
    staged: list[StagePlan] | None
    seconds: float


@dataclass
class Sketcher:
    """Sketches the pipelines of one program, schedule and mesh.

    Parameters
    ----------
    problems : sequence of StageProblems
        The stage problems of each stage.
    builder : CandidateBuilder
        What emits pipelines.
    """

    problems: Sequence[StageProblems]
    builder: CandidateBuilder

    @cached_property
    def plans(self) -> Sequence[StagePlans]:
        """The plans of the stages."""
        narrow = {id(one): NarrowPlans(one) for one in self.problems}
        return [narrow[id(one)] for one in self.problems]

    @cached_property
    def cut(self) -> Cut | None:
        """The cut whose stages are most equal, by the seconds of their blocks alone."""
        return least_sum(np.square(stage_sums(self.problems, StageProblems.step_floor))).cut

    def sketch(self) -> Sketch | None:
        """Return the pipeline of the most equal cut; None without one."""
        if self.cut is None:
            return None
        limits = self.builder.memory_limits(self.cut, self.plans)
        staged = self.builder.staged(self.cut, self.plans, limits)
        seconds = inf if staged is None else self.builder.estimate(staged)
        return Sketch(self.cut, staged, seconds)
