"""The best named plan: of every sensible combination of degrees, the fastest that fits.

What a person with a rule book and patience would find, to compare the search with.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import gcd, inf
from typing import Any

from shardwright.api import compile
from shardwright.arguments import asked_options, with_own_options
from shardwright.compilation import Compilation
from shardwright.compiler.evaluation.evaluator import Evaluator
from shardwright.compiler.plans.plan import Plan
from shardwright.cost_model.cluster import Cluster
from shardwright.dataflow.samples import samples_of
from shardwright.ir.errors import OptionError, StrategyError
from shardwright.ir.graph import Graph
from shardwright.models import training_definition
from shardwright.passes.recompute import recomputations
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
    evaluated, fitting : int
        How many plans there are of them, and how many of these fit.
    declined : int
        How many others fit, but are not wanted as they are built.
    """

    plan: NamedPlan | None = None
    compilation: Compilation | None = None
    step_seconds: float = inf
    evaluated: int = 0
    fitting: int = 0
    declined: int = 0

    @property
    def account(self) -> str:
        """How many plans were tried, in words."""
        others = f"; {self.declined} without such a form" if self.declined else ""
        return f"{self.fitting} of {self.evaluated} named plans fit{others}"


def best_named_plan(
    model: str | Definition,
    cluster: Cluster,
    devices: int,
    *,
    batch: int | None = None,
    among: Callable[[Graph], Sequence[NamedPlan]] | None = None,
    allowed: Callable[[NamedPlan], bool] = lambda plan: True,
    accepted: Callable[[Plan], bool] | None = None,
    **options: Any,
) -> BestNamedPlan:
    """Evaluate every candidate, and compile the fastest by the overlapped step that fits.

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
    among : callable, optional
        The combinations of degrees for a program; by default `candidate_plans`.
    allowed : callable, optional
        Whether a plan is wanted; by default all are.
    accepted : callable, optional
        The same of a plan that was built.
    **options
        Further options of `CompileOptions`, such as the memory limit.
    """
    definition, _ = training_definition(model, batch, 1)
    if among is None:
        candidates = [*candidate_plans(definition.graph, cluster, devices)]
    else:
        candidates = [*among(definition.graph)]
    samples = samples_of(definition.graph) or 1

    asked = with_own_options(asked_options(options, None, ()), definition, options)
    asked = replace(asked, cost_model="time", objective="overlapped", micro_batches=1)
    evaluator = Evaluator(definition.graph, cluster.used_by(devices), devices, asked)

    def build(plan: NamedPlan) -> Compilation:
        return compile(definition, devices, cluster=cluster, plan=plan, **options)

    levels = list(recomputations(definition.graph))
    enumeration = _Enumeration(evaluator, build, allowed, accepted, levels)
    for base in candidates:
        enumeration.add(base, samples // (base.data or 1))
    best = enumeration.best
    if best.plan is None or best.compilation is not None:
        return best
    return replace(best, compilation=build(best.plan))


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
        for expert in divisors(gcd(devices, experts)) if scattered else ():
            if expert > 1 and expert % tensor == 0:  # whole experts
                yield NamedPlan(
                    tensor=tensor,
                    data=data,
                    expert=expert,
                    expert_tensor=1,
                    zero=zero,
                    sequence_parallel=True,
                )


@dataclass
class _Enumeration:
    """The best plan so far.

    Parameters
    ----------
    evaluator : Evaluator
        Tells what a plan takes.
    build : callable
        Compiles a plan.
    allowed : callable
        Whether a plan is wanted.
    accepted : callable, optional
        The same of a plan that was built.
    levels : sequence of str
        Levels of recomputation, the least first.
    best : BestNamedPlan
        The best plan.
    """

    evaluator: Evaluator
    build: Callable[[NamedPlan], Compilation]
    allowed: Callable[[NamedPlan], bool]
    accepted: Callable[[Plan], bool] | None
    levels: Sequence[str]
    best: BestNamedPlan = field(default_factory=BestNamedPlan)

    def add(self, base: NamedPlan, samples: int) -> None:
        """Try a combination of degrees, whose data ranks have so many samples each."""
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
        """Return whether a plan fits; None if there is none, or it is not wanted."""
        if not self.allowed(plan):
            return None
        try:
            found = self.evaluator.evaluation(plan)
        except (OptionError, StrategyError):
            return None
        evaluated = self.best.evaluated + 1
        if not found.fits:
            self.best = replace(self.best, evaluated=evaluated)
            return False
        best, compilation = self.best, None
        if found.seconds < best.step_seconds:
            if self.accepted is not None:
                compilation = self.build(plan)
                if not self.accepted(compilation.plan):
                    self.best = replace(best, declined=best.declined + 1)
                    return None
            best = replace(best, plan=plan, compilation=compilation, step_seconds=found.seconds)
        self.best = replace(best, evaluated=evaluated, fitting=best.fitting + 1)
        return True
