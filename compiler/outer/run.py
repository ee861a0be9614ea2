"""The search over configurations of a compilation: to the best plan and its account.

An account that explains says what memory is worth, too: the best plans within other limits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardwright.compiler.outer.explanation import EXPLAINED, ranked_plans
from shardwright.compiler.outer.judge import ProgramJudge
from shardwright.compiler.plans.compiled import Compiled
from shardwright.ir.errors import (
    InfeasibleError,
    NoPlanError,
    NotFoundError,
    PassError,
    ShardwrightError,
    combined,
)
from shardwright.ir.rounding import OF_SEARCH
from shardwright.planner.bounds.floors import ComputationFloor
from shardwright.planner.choice.best_first import CORES, MOMENT, MOST_WORKERS, BestFirst
from shardwright.planner.choice.configuration import Configuration
from shardwright.planner.choice.entries import Entry
from shardwright.planner.choice.questions import Found
from shardwright.planner.choice.trace import MemoryPoint, SearchTrace, Tried
from shardwright.planner.executors.chosen import workers_of
from shardwright.planner.executors.tasks import Tasks
from shardwright.planner.executors.workers import usable_workers
from shardwright.planner.whole.plan import bounded
from shardwright.search.budget_note import ENDED, INTERRUPTED, SETTLED, says_so
from shardwright.search.options import Progress
from shardwright.solver.work import Budget, Work

_LIMITS = (0.8, 0.9, 1.1, 1.25)  # multiples of the memory limit whose best plans are searched, too
_TEXT = "the search within {:.0%} of the memory limit"
_SHARE = 3 / 4  # share of the budget for the search, where its account takes time, too


@dataclass(frozen=True)
class OuterRun:
    """A search over configurations.

    Parameters
    ----------
    judge : ProgramJudge
        Bounds and compiles configurations.
    candidates : sequence of Configuration
        The configurations.
    budget : Budget
        What the search for the plan of one configuration may spend.
    progress : callable or None
        Follows the search.
    """

    judge: ProgramJudge
    candidates: Sequence[Configuration]
    budget: Budget
    progress: Progress | None

    def run(self) -> Compiled:
        """Return the best plan of all configurations, with a bound on them all.

        Raises
        ------
        ShardwrightError
            If there is none.
        """
        options, whole = self.judge.options, self.budget.beyond(CORES * self.budget.seconds)
        explained = options.explain_search
        search: BestFirst[Compiled] = BestFirst(
            self.judge,
            self.candidates,
            self._floor(whole).of,
            whole.share(_SHARE) if explained else whole,
            options.gap,
            self.workers,
            self.progress,
            EXPLAINED if explained else 1,
            options.executor,
        )
        entries = search.run()
        best = search.best
        if best is None or best.found is None:
            raise self._no_plan(entries)
        plans = ranked_plans(entries) if explained else ()
        explained &= not search.is_interrupted
        points = memory_points(self.judge, best, whole, self.workers) if explained else ()
        tried = tuple(entry.tried() for entry in entries)
        check_bounds(tried)
        late = search.is_cut_short
        if search.is_interrupted:
            trace = SearchTrace(tried, best.configuration, plans, is_interrupted=True)
            return _answer(best.found.plan, trace, INTERRUPTED)
        trace = SearchTrace(tried, best.configuration, plans, points, late)
        left = any(item.outcome == "left" for item in tried)
        return _answer(best.found.plan, trace, ENDED if late else SETTLED if left else "")

    def _floor(self, budget: Budget) -> ComputationFloor:
        """Return what bounds the configurations before any search, where there are several."""
        if len(self.candidates) == 1:
            return ComputationFloor(1, 0.0)
        stages = {one.stages for one in self.candidates}
        return self.judge.floor(stages, budget.share(1 / CORES))

    @property
    def workers(self) -> int:
        """Number of processes: the user's, or as the machine allows."""
        if self.judge.options.workers:
            return self.judge.options.workers
        return usable_workers(min(MOST_WORKERS, len(self.candidates)))

    def _no_plan(self, entries: Sequence[Entry[Compiled]]) -> ShardwrightError:
        """Return the error of a search without a plan."""
        several = len({entry.configuration.micro_batches for entry in entries}) > 1
        errors = [_placed(entry, several) for entry in entries if entry.error is not None]
        left = sum(entry.outcome in (None, "left") for entry in entries)
        if left:
            options = self.judge.options
            spent, more = f"with effort {options.effort:g}", "effort"
            if self.budget.work.is_stopped:
                spent, more = f"before the time limit of {options.time_limit:g} s", "time"
            what = f"no plan was found {spent}, which left {left} of {len(entries)} configurations"
            hint = f"allow more {more}, or give the mesh, stages or micro-batches"
            errors.append(NotFoundError(f"{what} out", hint=hint))
        return combined(errors)


def _placed(entry: Entry[Compiled], several: bool) -> ShardwrightError:
    """Return the error of a configuration, with its number of micro-batches where others differ."""
    error = entry.error
    assert error is not None
    if several and isinstance(error, NoPlanError):
        number = entry.configuration.micro_batches
        count = "one micro-batch" if number == 1 else f"{number} micro-batches"
        error.where = count if error.where is None else f"{error.where} in {count}"
    return error


def check_bounds(tried: Sequence[Tried]) -> None:
    """Check that no configuration has a plan that costs less than its bound.

    Raises
    ------
    PassError
        If one has: a bound is false.
    """
    for item in tried:
        if item.cost is not None and item.lower_bound > item.cost * (1 + OF_SEARCH):
            raise PassError(
                f"a plan of {item.configuration} costs {item.cost:.9g}, the search said that each "
                f"costs at least {item.lower_bound:.9g} ({item.proof})"
            )


def _answer(best: Compiled, trace: SearchTrace, end: str) -> Compiled:
    """Return the best program with the account of the search, and the bound on all plans.

    It says what ended the search, where that was no proof.
    """
    result = best.result
    if result is not None:
        how = result.how
        if end and not (end == ENDED and says_so(result)):
            how = f"{how}; {end}"
        searched = sum(item.seconds for item in trace.tried)
        result = bounded(replace(result, how=how, seconds=searched), trace.lower_bound)
    return replace(best, result=result, trace=trace)


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
