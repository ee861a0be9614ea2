"""All pipelines of small programs: every cut, and every assignment of its two stages."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, pairwise, product
from math import prod

from shardwright.compiler.options import CompileOptions
from shardwright.compiler.stages.candidates import Candidate
from shardwright.compiler.stages.partitioning import PipelinePartitioning
from shardwright.cost_model.cluster import cluster
from shardwright.ir.decisions import Decisions
from shardwright.ir.errors import InfeasibleError, NotFoundError, OptionError
from shardwright.ir.graph import Graph
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.operators.models.optimizer import Optimizer
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.manager import PassManager
from shardwright.search.space.space import SearchSpace
from shardwright.solver.evaluate import evaluate
from shardwright.solver.problem import FORBIDDEN
from tests.random_graphs import random_graph

MOST = 400  # pipelines of a program that is compared
EXACT = 1 + 1e-9
CLUSTER = cluster("a100-pod")


@dataclass(frozen=True)
class Case:
    """One program within one limit: the best of all pipelines, the bound, the answer; seconds."""

    seed: int
    passes: int
    plans: int
    best: float
    bound: float
    answer: float

    @property
    def holds(self) -> bool:
        """Whether the best lies between bound and answer; the answer may have better paths."""
        return self.bound <= min(self.best, self.answer) * EXACT

    @property
    def is_best(self) -> bool:
        """Whether the answer is as good as the best of all pipelines."""
        return self.answer <= self.best * EXACT


def cases(seeds: range, objective: str = "overlapped") -> Iterator[Case]:
    """Yield the cases of the programs with these seeds that are small enough."""
    for seed in seeds:
        yield from _cases(seed, objective)


def _cases(seed: int, objective: str) -> Iterator[Case]:
    source = Canonicalize().run(random_graph(seed, nodes=2 + seed % 3))
    options = CompileOptions(
        stages=2,
        micro_batches=(1, 2, 4)[seed % 3],
        optimizer=Optimizer(("sgd", "adam")[seed // 3 % 2]),  # type: ignore[arg-type]
        objective=objective,  # type: ignore[arg-type]
        recompute=("none", "search")[seed // 2 % 2],
        gap=0.0,
    )
    mesh = Mesh((MeshAxis("x", 1 + seed // 5 % 2),))
    try:
        pipelines = list(_pipelines(_search(source, mesh, options)))
    except OptionError:  # the batch cannot be divided, or the program cut
        return
    if not pipelines:
        return
    peaks = sorted({one.step.memory.peak_bytes for one in pipelines})
    limit = float([peaks[0], peaks[len(peaks) // 2], 2 * peaks[-1]][seed // 7 % 3])
    fitting = [one.step.seconds for one in pipelines if one.step.memory.peak_bytes <= limit]
    search = _search(source, mesh, replace(options, memory_limit=limit))
    found, passes = (len(pipelines), min(fitting)), options.passes
    try:
        result = search.emit().result
    except InfeasibleError:
        yield Case(seed, passes, *found, math.inf, math.inf)
        return
    except NotFoundError:
        yield Case(seed, passes, *found, 0.0, math.inf)
        return
    assert result is not None
    yield Case(seed, passes, *found, result.lower_bound, result.cost)


def _search(source: Graph, mesh: Mesh, options: CompileOptions) -> PipelinePartitioning:
    return PipelinePartitioning(source, CLUSTER, mesh, options, PassManager(), None, 0)


def _pipelines(search: PipelinePartitioning) -> Iterator[Candidate]:
    """Yield the pipelines of all cuts and assignments; none where there are too many."""
    blocks, stages = len(search.blocks), search.schedule.stages
    cuts = [(0, *inner, blocks) for inner in combinations(range(1, blocks), stages - 1)]
    planned = []
    for cut in cuts:
        for plans in _assignments(search, cut, (), {}):
            planned.append((cut, plans))
            if len(planned) > MOST:
                return
    for cut, plans in planned:
        yield search.builder.emitted(cut, plans)


def _assignments(
    search: PipelinePartitioning,
    cut: tuple[int, ...],
    plans: tuple[Decisions, ...],
    sent: dict[str, Layout],
) -> Iterator[tuple[Decisions, ...]]:
    """Yield all decisions of the stages from one on; each receives what the others send."""
    stage = len(plans)
    if stage == len(cut) - 1:
        yield plans
        return
    part = search.blocks.stretch(*list(pairwise(cut))[stage])
    request = search.problems.request_of(cut[stage], cut[stage + 1], 1)
    received = search.builder.received(part, sent)
    request = replace(request, options=replace(request.options, input_layouts=received))
    recomputes = search.options.recompute == "search"
    space = request.recompute_space if recomputes else request.space
    for decisions in _all_decisions(space):
        known = {**sent, **{name: decisions.stored[name] for name in part.sent}}
        yield from _assignments(search, cut, (*plans, decisions), known)


def _all_decisions(space: SearchSpace) -> Iterator[Decisions]:
    sizes = [len(choice.options) for choice in space.choices]
    if prod(sizes) > 50 * MOST:
        raise OptionError("the stage has too many plans")
    for assignment in product(*map(range, sizes)):
        if evaluate(space.problem, assignment).cost < FORBIDDEN:
            yield space.decisions(assignment)
