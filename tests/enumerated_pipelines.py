"""All pipelines of small programs: every cut, and every assignment of its two stages."""

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, pairwise, product
from math import prod

from shardwright.compiler.stages.candidates import Candidate
from shardwright.compiler.stages.partitioning import PipelinePartitioning
from shardwright.cost_model.cluster import Level, cluster
from shardwright.cost_model.pipelines.mixed import AnyCluster, MixedCluster
from shardwright.ir.decisions import Decisions
from shardwright.ir.errors import InfeasibleError, NotFoundError, OptionError
from shardwright.ir.graph import Graph
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.operators.models.optimizer import Optimizer
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.manager import PassManager
from shardwright.planner.options import CompileOptions
from shardwright.search.space.space import SearchSpace
from shardwright.solver.evaluate import evaluate
from shardwright.solver.problem import FORBIDDEN
from shardwright.solver.work import Budget
from tests.random_graphs import random_graph

MOST = 400  # pipelines of a program that is compared
EXACT = 1 + 1e-9
CLUSTER = cluster("a100-pod:figures=datasheet")
_SLOW = (0.1, 0.5, 1.0)  # rates of the devices of the slower part
_LINKS = (1e9, 25e9)  # bytes per second between parts


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


def cases(seeds: range, objective: str = "overlapped", *, mixed: bool = False) -> Iterator[Case]:
    """Yield the cases of the programs with these seeds that are small enough.

    On a mixed cluster, the two stages run on devices of other rates and memory.
    """
    for seed in seeds:
        yield from _cases(seed, objective, mixed=mixed)


def _cases(seed: int, objective: str, *, mixed: bool) -> Iterator[Case]:
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
        devices = _mixed(seed) if mixed else CLUSTER
        pipelines = list(_pipelines(_search(source, devices, mesh, options)))
    except OptionError:  # the batch cannot be divided, or the program cut
        return
    if not pipelines:
        return
    if isinstance(devices, MixedCluster):
        limits = tuple(_limit(pipelines, group, seed + group) for group in (0, 1))
        devices = _with_memory(devices, limits)
    else:
        peaks = sorted({one.step.memory.peak_bytes for one in pipelines})
        limits = (float([peaks[0], peaks[len(peaks) // 2], 2 * peaks[-1]][seed // 7 % 3]),) * 2
        options = replace(options, memory_limit=limits[0])
    fitting = [
        one.step.seconds
        for one in pipelines
        if all(map(operator.le, one.step.memory.by_group, limits))
    ]
    search = _search(source, devices, mesh, options)
    found, passes = (len(pipelines), min(fitting, default=math.inf)), options.passes
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


def _mixed(seed: int) -> MixedCluster:
    """Return two parts, of which either may be the slower one."""
    rate = _SLOW[seed // 2 % 3]
    device = CLUSTER.device
    slow = device.model_copy(
        update={
            "peak_flops": {dtype: rate * peak for dtype, peak in device.peak_flops.items()},
            "memory_bandwidth": rate * device.memory_bandwidth,
            "launch_seconds": device.launch_seconds * (1 + seed % 2),
        }
    )
    parts = [CLUSTER, CLUSTER.model_copy(update={"device": slow, "name": "slow"})]
    link = Level(name="link", size=2, bandwidth=_LINKS[seed % 2], latency=1e-6 * (seed % 5))
    return MixedCluster(name="mixed", parts=tuple(parts[:: 1 - seed // 3 % 2 * 2]), link=link)


def _limit(pipelines: list[Candidate], group: int, seed: int) -> float:
    """Return a memory limit of a device group that some of the pipelines are within."""
    peaks = sorted({one.step.memory.by_group[group] for one in pipelines})
    return float([peaks[len(peaks) // 2], peaks[-1], 2 * peaks[-1]][seed % 3])


def _with_memory(cluster: MixedCluster, limits: tuple[float, ...]) -> MixedCluster:
    parts = []
    for part, limit in zip(cluster.parts, limits, strict=True):
        memory = {"memory_bytes": int(limit), "memory_reserve": 0.0}
        device = part.device.model_copy(update=memory)
        parts.append(part.model_copy(update={"device": device}))
    return cluster.model_copy(update={"parts": tuple(parts)})


def _search(
    source: Graph, devices: AnyCluster, mesh: Mesh, options: CompileOptions
) -> PipelinePartitioning:
    size = 2 * mesh.size if isinstance(devices, MixedCluster) else devices.size
    on = devices.used_by(size)
    return PipelinePartitioning(source, on, mesh, options, PassManager(), None, Budget(60), 0)


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
    request = search.problems[stage].request_of(cut[stage], cut[stage + 1], 1)
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
