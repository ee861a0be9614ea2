"""Errors that are put into bounds, evaluators and searches, for the referee to catch."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from shardwright.compiler.stages.candidates import CandidateBuilder
from shardwright.compiler.stages.stage_bounds import CutBounds
from shardwright.cost_model import buffers, tasks
from shardwright.cost_model.live_bytes import LiveRanges
from shardwright.cost_model.pipelines.stage_memory import PipelineMemory
from shardwright.cost_model.schedule import Scheduler
from shardwright.ir.graph import Graph
from shardwright.planner import search_request
from shardwright.planner.bounds.floors import ComputationFloor
from shardwright.planner.choice.cuts import Cut, LeastCut
from shardwright.planner.whole.plan import Plan
from shardwright.planner.whole.problem import PlanProblem
from shardwright.planner.whole.search import WholeSearch
from shardwright.search.space.space import SearchSpace
from shardwright.solver.problem import FORBIDDEN

Patch = pytest.MonkeyPatch


def _high_bound_of_cuts(patch: Patch) -> None:
    original = CutBounds.bound

    def bound(self: CutBounds) -> LeastCut:
        found = original(self)
        return replace(found, value=1.01 * found.value)

    patch.setattr(CutBounds, "bound", bound)


def _high_bound_of_whole(patch: Patch) -> None:
    original = WholeSearch._answer

    def answer(self: WholeSearch, plan: Plan) -> Plan:
        found = original(self, plan)
        result = replace(found.result, lower_bound=1.01 * found.result.lower_bound)
        return replace(found, result=result)

    patch.setattr(WholeSearch, "_answer", answer)


def _high_floor(patch: Patch) -> None:
    original = ComputationFloor.of
    patch.setattr(ComputationFloor, "of", lambda self, one: 3 * original(self, one))


def _without_states(patch: Patch) -> None:
    original = buffers._buffers

    def forgetting(graph: Graph) -> buffers.Buffers:
        found = original(graph)
        states = [p.name for p in graph.parameters if p.role == "state"]
        return replace(found, sizes={**found.sizes, **dict.fromkeys(states, 0.0)})

    patch.setattr(buffers, "_buffers", forgetting)


def _little_memory_of_groups(patch: Patch) -> None:
    original = PipelineMemory.walked

    def walked(self: PipelineMemory, *what: Any) -> Any:
        found = original(self, *what)
        return replace(found, peak=replace(found.peak, peak=0.8 * found.peak.peak))

    patch.setattr(PipelineMemory, "walked", walked)


def _little_memory_of_timelines(patch: Patch) -> None:
    original = LiveRanges.peak_bytes
    patch.setattr(LiveRanges, "peak_bytes", lambda self, *when: 0.8 * original(self, *when))


def _free_reductions(patch: Patch) -> None:
    original = tasks.seconds_as_run

    def seconds(graph: Graph, cluster: Any, placed: Any) -> list[float]:
        found = original(graph, cluster, placed)
        return [0.0 if p.queue == "reductions" else s for s, p in zip(found, placed, strict=True)]

    patch.setattr(tasks, "seconds_as_run", seconds)


def _overlapping(patch: Patch) -> None:
    original = Scheduler.starts
    patch.setattr(Scheduler, "starts", lambda self, w: [0.9 * s for s in original(self, w)])


def _swapped_cut(patch: Patch) -> None:
    original = CandidateBuilder.emitted

    def emitted(self: CandidateBuilder, cut: Cut, plans: Any) -> Any:
        mirrored = tuple(len(self.blocks) - place for place in reversed(cut))
        return original(self, mirrored, plans)

    patch.setattr(CandidateBuilder, "emitted", emitted)


def _lost_options(patch: Patch) -> None:
    original = search_request.build_search_space

    def built(*what: Any, **how: Any) -> SearchSpace:
        space = original(*what, **how)
        variables = list(space.problem.variables)
        for i, variable in enumerate(variables):
            if len(variable.cost) > 1:
                cost = variable.cost.copy()
                cost[cost.argmin()] = FORBIDDEN
                variables[i] = replace(variable, cost=cost)
                break
        return replace(space, problem=replace(space.problem, variables=tuple(variables)))

    patch.setattr(search_request, "build_search_space", built)


def _tight_limit(patch: Patch) -> None:
    original = PlanProblem._within

    def within(self: PlanProblem, limit: float | None, *how: float) -> Any:
        return original(self, None if limit is None else 0.8 * limit, *how)

    patch.setattr(PlanProblem, "_within", within)


def _wide_limit(patch: Patch) -> None:
    patch.setattr(Plan, "fits", lambda self, limit: self.memory.peak_bytes <= 1.5 * limit)


PLANTED: Mapping[str, Callable[[Patch], None]] = {
    "the bound of a pipeline is 1 % too high": _high_bound_of_cuts,
    "the bound of one stage is 1 % too high": _high_bound_of_whole,
    "memory forgets the states of the optimizer": _without_states,
    "device groups are said to hold 20 % less": _little_memory_of_groups,
    "timelines are said to hold 20 % less": _little_memory_of_timelines,
    "reductions of gradients take no time": _free_reductions,
    "two nodes may be on one resource": _overlapping,
    "a cut is taken from the other end": _swapped_cut,
    "the cheapest option of an operator is lost": _lost_options,
    "the search has 80 % of the memory": _tight_limit,
    "a plan may exceed the limit by half": _wide_limit,
    "the floor of a configuration is three times too high": _high_floor,
}
"""What is wrong, and what makes it so while a test runs."""
