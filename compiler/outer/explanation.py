"""What a search over configurations tells its reader: other plans, and what memory is worth."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardwright.compiler.outer.judge import ProgramJudge
from shardwright.compiler.plans.compiled import Compiled
from shardwright.ir.errors import InfeasibleError, ShardwrightError
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ir.units import MOST_NAMES
from shardwright.planner.choice.best_first import MOMENT
from shardwright.planner.choice.configuration import Configuration
from shardwright.planner.choice.entries import Entry
from shardwright.planner.choice.questions import Found
from shardwright.planner.choice.trace import MemoryPoint, RankedPlan
from shardwright.planner.executors.chosen import workers_of
from shardwright.planner.executors.tasks import Tasks
from shardwright.solver.work import Budget, Work

_LIMITS = (0.8, 0.9, 1.1, 1.25)  # multiples of the memory limit whose best plans are searched, too
_TEXT = "the search within {:.0%} of the memory limit"
EXPLAINED = 10
"""Most plans that an explained search keeps, and tells of: each is a line of a table."""


def ranked_plans(entries: Sequence[Entry[Compiled]]) -> tuple[RankedPlan, ...]:
    """Return the best plans of different configurations, with their differences from the best."""
    found = [(entry, entry.found) for entry in entries if entry.found is not None]
    found.sort(key=lambda item: item[1].cost)
    best = found[0][1].plan
    return tuple(
        RankedPlan(entry.configuration, plan.cost, plan.memory_bytes, differences(best, plan.plan))
        for entry, plan in found[:EXPLAINED]
    )


def differences(best: Compiled, other: Compiled) -> tuple[str, ...]:
    """Return what a plan decides otherwise than the best one, in words."""
    if other is best:
        return ()
    told = [
        *_split_otherwise(best, other),
        *_stored_otherwise(best, other),
        *_recomputed_otherwise(best, other),
    ]
    return tuple(told) or ("the same decisions",)


def _split_otherwise(best: Compiled, other: Compiled) -> list[str]:
    kinds = {node.name: node.operator for node in best.source.nodes}
    ours, theirs = _splits(best), _splits(other)
    changed = Counter(kinds[name] for name, splits in ours.items() if splits != theirs.get(name))
    if not changed:
        return []
    named = ", ".join(f"{count} {kind}" for kind, count in changed.most_common(MOST_NAMES))
    rest = sum(changed.values()) - sum(n for _, n in changed.most_common(MOST_NAMES))
    return [f"splits {named}{f' and {rest} more operators' if rest else ''} otherwise"]


def _splits(compiled: Compiled) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Return the number of slices of every result, by operator."""
    if compiled.decisions is None:
        return {}
    mesh, program = compiled.mesh, compiled.program
    made = {
        node.name: tuple(_counts(value.layout, mesh) for value in node.results)
        for node in program.nodes
        if node.provenance.role == "forward"
    }
    return {node.name: made[node.name] for node in compiled.source.nodes if node.name in made}


def _counts(layout: Layout | None, mesh: Mesh) -> tuple[int, ...]:
    """Return the number of slices of each dimension, over the ranks."""
    if layout is None:
        return ()
    ranks = mesh.of_ranks
    return tuple(
        ranks.extent([axis for axis in axes if axis in ranks.names]) for axes in layout.splits
    )


def _stored_otherwise(best: Compiled, other: Compiled) -> list[str]:
    ours, theirs = (
        {p.name: _counts(p.value.layout, one.mesh) for p in one.program.parameters}
        for one in (best, other)
    )
    changed = sum(counts != theirs.get(name) for name, counts in ours.items())
    return [f"stores {changed} of {len(ours)} parameters otherwise"] if changed else []


def _recomputed_otherwise(best: Compiled, other: Compiled) -> list[str]:
    ours, theirs = (
        len(one.decisions.recomputed) if one.decisions is not None else 0 for one in (best, other)
    )
    return [] if ours == theirs else [f"recomputes {theirs} operators instead of {ours}"]


def memory_points(
    judge: ProgramJudge, best: Entry[Compiled], budget: Budget, workers: int
) -> tuple[MemoryPoint, ...]:
    """Return the best plans of a configuration within limits around the user's."""
    limit = judge.options.memory_on(judge.cluster)
    plan = best.found
    assert plan is not None
    seconds = max(budget.left, MOMENT) / len(_LIMITS) / 2
    answers: dict[float, MemoryPoint] = {}

    compiled = _Within(judge, best.configuration, seconds, budget.work.anew())
    of_options = workers_of(judge.options.executor, workers, compiled)
    tasks = Tasks(compiled, of_options, _TEXT.format, lambda _, found: isinstance(found, Found))
    numbers = [tasks.submit(share) for share in _LIMITS]
    try:
        for share, number in zip(_LIMITS, numbers, strict=True):
            found = tasks.answer(number)
            if not isinstance(found, ShardwrightError):
                answers[share] = MemoryPoint(
                    share * limit, found.cost, found.lower_bound, found.memory_bytes
                )
            elif isinstance(found, InfeasibleError):
                answers[share] = MemoryPoint(share * limit, None, float("inf"))
    finally:
        tasks.close()
    answers[1.0] = MemoryPoint(limit, plan.cost, best.bound, plan.memory_bytes)
    return _monotone([answers[share] for share in sorted(answers)])


@dataclass
class _Within:
    """Plans a configuration within a share of the memory limit."""

    judge: ProgramJudge
    configuration: Configuration
    seconds: float
    work: Work

    def __call__(self, share: float) -> Found[Compiled]:
        options = self.judge.options
        limit = share * options.memory_on(self.judge.cluster)
        judge = replace(self.judge, options=replace(options, memory_limit=limit))
        one = self.configuration
        is_by_blocks = one.stages == 1 and judge.plans_blocks(one)
        plan = judge.plan if is_by_blocks else judge.search
        return plan(one, Budget(self.seconds, self.work.anew()))


def _monotone(points: Sequence[MemoryPoint]) -> tuple[MemoryPoint, ...]:
    """Return the points with what one says of another.

    A plan within less memory is one within more, and a bound within more holds within less.
    """
    told = list(points)
    for i in range(1, len(told)):
        before, point = told[i - 1], told[i]
        if before.cost is not None and (point.cost is None or before.cost < point.cost):
            told[i] = replace(point, cost=before.cost, memory_bytes=before.memory_bytes)
    for i in reversed(range(len(told) - 1)):
        bound = max(told[i].lower_bound, told[i + 1].lower_bound)
        told[i] = replace(told[i], lower_bound=bound)
    return tuple(told)
