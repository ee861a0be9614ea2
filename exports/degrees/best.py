"""The best named plan: every sensible combination of degrees is built, and the fastest that fits.

What a person with a rule book and patience would find, to compare the search with.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import gcd, inf
from typing import Any

from shardwright.api import compile
from shardwright.compilation import Compilation
from shardwright.compiler.plans.plan import Plan
from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.pipelines.mixed import of_one_kind
from shardwright.cost_model.streams import loads
from shardwright.cost_model.timeline import simulate
from shardwright.dataflow.samples import samples_of
from shardwright.ir.errors import NoPlanError, OptionError, StrategyError
from shardwright.ir.graph import Graph
from shardwright.models import training_definition
from shardwright.passes.recompute import recomputations
from shardwright.planner.options import DEFAULTS
from shardwright.search.named_plan import NamedPlan, divisors
from shardwright.tracing import Definition

_NODES = 4  # tensor ranks span at most so many innermost groups of the cluster


@dataclass(frozen=True)
class BestNamedPlan:
    """The fastest named plan that fits.

    Parameters
    ----------
    plan : NamedPlan or None
        The plan; None where none fits.
    compilation : Compilation or None
        Its program.
    step_seconds : float
        Its overlapped step; infinite without a plan.
    candidates, tried : int
        How many combinations of degrees there are, and how many of them were tried.
    built, fitting : int
        How many plans could be built, and how many of them fit.
    declined : int
        How many others were built and fit, but are not wanted as they are built.
    """

    plan: NamedPlan | None = None
    compilation: Compilation | None = None
    step_seconds: float = inf
    candidates: int = 0
    tried: int = 0
    built: int = 0
    fitting: int = 0
    declined: int = 0

    @property
    def account(self) -> str:
        """How many plans were tried, in words."""
        left = self.candidates - self.tried
        rest = f"; the time limit left out {left} combinations of degrees" if left else ""
        others = f"; {self.declined} without such a form" if self.declined else ""
        return f"{self.fitting} of {self.built} named plans fit{others}{rest}"


def best_named_plan(
    model: str | Definition,
    cluster: Cluster,
    devices: int,
    *,
    batch: int | None = None,
    time_limit: float = inf,
    among: Callable[[Graph], Sequence[NamedPlan]] | None = None,
    allowed: Callable[[NamedPlan], bool] = lambda plan: True,
    accepted: Callable[[Plan], bool] = lambda plan: True,
    **options: Any,
) -> BestNamedPlan:
    """Build every candidate and return the fastest by the overlapped step that fits.

    Where a combination of degrees does not fit as it is, the largest micro-batch that fits is taken
    for each level of recomputation: nothing, the cores of attention, the blocks.

    Parameters
    ----------
    model : str or Definition
        The model, as for `compile`.
    cluster, devices : Cluster, int
        The devices.
    batch : int, optional
        Batch size.
    time_limit : float
        Seconds after which no other plan is tried.
    among : callable, optional
        The combinations of degrees for a program; by default `candidate_plans`.
    allowed : callable, optional
        Whether a plan is wanted; by default all are.
    accepted : callable, optional
        The same of a plan that was built.
    **options
        Further options of `CompileOptions`, such as the memory limit.
    """
    begin = time.perf_counter()
    definition, _ = training_definition(model, batch, 1)
    if among is None:
        candidates = [*candidate_plans(definition.graph, cluster, devices)]
    else:
        candidates = [*among(definition.graph)]
    samples = samples_of(definition.graph) or 1

    def build(plan: NamedPlan) -> Compilation:
        serial = {**options, "objective": "serial"}  # buckets are chosen for the best plan alone
        return compile(definition, devices, cluster=cluster, plan=plan, **serial)

    levels = list(recomputations(definition.graph))
    start = BestNamedPlan(candidates=len(candidates))
    enumeration = _Enumeration(build, allowed, accepted, levels, start)
    for base in candidates:
        if time.perf_counter() - begin > time_limit:
            break
        enumeration.add(base, samples // (base.data or 1))
    best = enumeration.best
    if best.plan is None or options.get("objective", DEFAULTS["objective"]) == "serial":
        return best
    found = compile(definition, devices, cluster=cluster, plan=best.plan, **options)
    document = found.plan.document
    if document.objective_is != "overlapped step":  # the cost model prices something else
        return best
    return replace(best, compilation=found, step_seconds=document.objective)


def candidate_plans(graph: Graph, cluster: Cluster, devices: int) -> Iterator[NamedPlan]:
    """Yield the plans whose degrees divide the devices and the batch; ZeRO-2 is ZeRO-1."""
    batch = samples_of(graph) or 1
    experts = next((n.attributes["experts"] for n in graph.nodes if n.operator == "dispatch"), 1)
    assert isinstance(experts, int)
    widest = _NODES * cluster.for_devices(devices)[0]
    tensors = [n for n in divisors(devices) if n <= widest and batch % (devices // n) == 0]
    for tensor, zero, scattered in product(tensors, (1, 0, 3), (True, False)):
        data = devices // tensor
        if (scattered and tensor == 1) or (zero and data == 1):
            continue
        for expert in divisors(gcd(data, experts)):
            yield NamedPlan(
                tensor=tensor, data=data, expert=expert, zero=zero, sequence_parallel=scattered
            )


@dataclass
class _Enumeration:
    """The best plan so far.

    Parameters
    ----------
    build : callable
        Compiles a plan.
    allowed : callable
        Whether a plan is wanted.
    accepted : callable
        Whether a plan that was built is wanted.
    levels : sequence of str
        Levels of recomputation, the least first.
    best : BestNamedPlan
        The best plan.
    """

    build: Callable[[NamedPlan], Compilation]
    allowed: Callable[[NamedPlan], bool]
    accepted: Callable[[Plan], bool]
    levels: Sequence[str]
    best: BestNamedPlan

    def add(self, base: NamedPlan, samples: int) -> None:
        """Try a combination of degrees, whose data ranks have so many samples each."""
        self.best = replace(self.best, tried=self.best.tried + 1)
        if self._fits(base) is not False:
            return
        sizes = divisors(samples)
        levels = [one for one in self.levels if self.allowed(replace(base, recompute=one))]
        least = replace(base, recompute=levels[-1], micro_batch=sizes[0])
        if not self._fits(least):
            return
        for level in levels:
            first = 1 if level == levels[-1] else 0
            last = len(sizes) - 1 if level == levels[0] else len(sizes)
            self._largest(replace(base, recompute=level), sizes[first:last])

    def _largest(self, plan: NamedPlan, sizes: Sequence[int]) -> None:
        """Try the largest micro-batch that fits, by bisection."""
        low, high = 0, len(sizes)
        while low < high:
            middle = (low + high) // 2
            if self._fits(replace(plan, micro_batch=sizes[middle])):
                low = middle + 1
            else:
                high = middle

    def _fits(self, plan: NamedPlan) -> bool | None:
        """Build a plan and return whether it fits; None if there is none, or it is not wanted."""
        best = self.best
        if not self.allowed(plan):
            return None
        try:
            compilation = self.build(plan)
        except NoPlanError:
            self.best = replace(best, built=best.built + 1)
            return False
        except (OptionError, StrategyError):
            return None
        if not self.accepted(compilation.plan):
            self.best = replace(best, declined=best.declined + 1)
            return None
        best = replace(best, built=best.built + 1, fitting=best.fitting + 1)
        program, limit = compilation.plan.program, compilation.plan.document.memory.limit
        cluster = of_one_kind(compilation.cluster, "named plans of one kind are compared")
        if max(loads(program, cluster).values()) < best.step_seconds:
            timeline = simulate(program, compilation.cluster, inf if limit is None else limit)
            if timeline.step_seconds < best.step_seconds:
                step = timeline.step_seconds
                best = replace(best, plan=plan, compilation=compilation, step_seconds=step)
        self.best = best
        return True
