"""The outer search: configurations in the order of their bounds, each judged only as far as needed.

Every configuration has a lower bound on the cost of all its plans, which rises tier by tier: of the
cheapest computation, of an exact search without the memory limit, of a rough one within it, and at
last of the compilation itself. The configuration of the least bound is judged next. It is cut once
its bound is no less than the cost of a plan that was found, up to the relative gap. So the least
bound of all configurations bounds every plan of the space, whatever was left out.

Tasks run in processes. Each has a budget of its own, and its answer says what it spent of it.
Answers are taken in an order that depends on the tasks alone, and decisions on the answers before:
the result is the same for any number of processes, on machines of any speed.

References
----------
Land and Doig, "An automatic method of solving discrete programming problems", 1960 (best first).
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Generic, TypeVar

from shardwright.compiler.outer.answers import Answers, is_answer
from shardwright.compiler.outer.configuration import Configuration
from shardwright.compiler.outer.entries import (
    BUILDING,
    DRAFTING,
    NAMING,
    PRICING,
    Answer,
    Bound,
    Entry,
    Found,
    Judge,
    Prices,
    Task,
    cost_of,
)
from shardwright.compiler.outer.order import (
    Chosen,
    PricedOrder,
    enqueue,
    first_taken,
    shares_prices,
)
from shardwright.compiler.outer.seeds import NamedSeeds
from shardwright.ir.errors import (
    InfeasibleError,
    NoPlanError,
    OptionError,
    ShardwrightError,
    StrategyError,
    TimeLimitError,
)
from shardwright.planner.choice.steps import NotFasterError
from shardwright.planner.executors.chosen import PROCESSES, workers_of
from shardwright.planner.executors.tasks import Tasks
from shardwright.search.options import Progress
from shardwright.solver.solution import OPTIMALITY_GAP, relative_gap
from shardwright.solver.work import Budget

_AHEAD = 4  # tasks that are decided on before the answer of the first
_FURTHER_AHEAD = 8  # the same, where configurations are priced
_FAR = 1.1  # of the least bound: how high the bound of what is begun ahead may be
BLOCKS = "blocks alone"
COMPILED = "search within the memory limit"  # of a compilation
CORES = 2
"""Number of cores that a search is meant for: its budget is that of one configuration on each."""

MOMENT = 1e-3
"""Seconds of work that a task may spend at least."""

_SHARE_PRICED = 1 / 4  # the same, of many configurations, once there is a plan
_CLOSE = 0.01  # of the best plan: how near to it the bounds of blocks are raised
_SECONDS_NAMED = 600.0  # of work that a named plan may take at least, where it is built
_SHARE = 1 / 2  # of the budget left, on each core, that building a problem may take, and solving it

T = TypeVar("T")


class _SpentError(Exception):
    """The budget of the whole search is spent."""


def _text_of(task: Task) -> str:
    """Return what a task is, in words."""
    return f"the search of {task.configuration}"


@dataclass
class OuterSearch(Generic[T]):
    """The search over configurations.

    Parameters
    ----------
    judge : Judge
        Bounds and compiles them.
    candidates : sequence of Configuration
        The configurations.
    floor : callable
        Returns a lower bound on the cost of every plan of a configuration.
    budget : Budget
        What all tasks together may spend.
    gap : float
        Relative gap between the cost and the bound at which the search stops.
    workers : int
        Number of processes.
    progress : callable, optional
        Follows the search.
    plans : int
        Number of configurations that are compiled at least, where so many have a plan.
    seed : Configuration, optional
        The one that is compiled first, whatever its bounds: its plan cuts others.
    executor : str
        Who runs tasks: an option of a compilation.
    """

    judge: Judge[T]
    candidates: Sequence[Configuration]
    floor: Callable[[Configuration], float]
    budget: Budget
    gap: float
    workers: int = 1
    progress: Progress | None = None
    plans: int = 1
    seed: Configuration | None = None
    executor: str = PROCESSES
    entries: list[Entry[T]] = field(default_factory=list)
    is_cut_short: bool = False  # by the budget: the whole search, or that of a configuration
    is_interrupted: bool = False  # by the user, once there was a plan

    def run(self) -> list[Entry[T]]:
        """Judge the configurations, and return what became of each."""
        self.entries = [Entry(c, self.floor(c), "least computation") for c in self.candidates]
        self.steps, self.wanted = 0, 1
        self._known: dict[Hashable, object] = {}
        self._seeds = NamedSeeds(self.entries)
        plans_blocks = self.judge.prices_blocks and self.judge.plans_blocks
        self._order = PricedOrder(self.entries, len(self.judge.tiers), plans_blocks)
        for entry in self.entries:
            if entry.configuration == self.seed:
                entry.tier = len(self.judge.tiers)
        answers = Answers(self.judge, self.candidates, self.budget.work.anew())
        workers = workers_of(self.executor, min(self.workers, _AHEAD), answers)
        tasks = Tasks(answers, workers, _text_of, is_answer)
        try:
            self._judge_all(tasks)
            if self.best is None:
                self._build_named(tasks)
            if self.best is None:
                self._reopen_infeasible()
                self._judge_all(tasks)
            elif self.plans > 1:
                self._reopen_cut()
                self._judge_all(tasks)
        except _SpentError:
            self.is_cut_short = True
            self._await_plan(tasks)
        except KeyboardInterrupt:
            self.is_interrupted = True
            if self.best is None:
                raise
        finally:
            tasks.close()
        self._cut_left()
        return self.entries

    def _judge_all(self, tasks: Tasks[Task, Answer[T]]) -> None:
        self.running: list[Chosen[T]] = []
        while self._fill(tasks) or self.running:
            if self.budget.is_spent:
                raise _SpentError
            self._take_of(first_taken(self.running), tasks)

    def _await_plan(self, tasks: Tasks[Task, Answer[T]]) -> None:
        """Take the plan that is next on its way; without one, build named plans until one fits."""
        finding = BUILDING, DRAFTING, len(self.judge.tiers)
        for chosen in [one for one in self.running if one.tier in finding]:
            self._take_of(chosen, tasks)
            if self.best is not None:
                break
        if self.best is None:
            self._build_named(tasks)

    def _build_named(self, tasks: Tasks[Task, Answer[T]]) -> None:
        """Build named plans until one fits, whatever that takes: nothing is searched."""
        while self.best is None:
            if (seed := self._named_next()) is not None:
                self._submit(seed, tasks)
            named = next((one for one in self.running if one.names_plan), None)
            if named is None:
                break
            self._take_of(named, tasks)

    def _take_of(self, chosen: Chosen[T], tasks: Tasks[Task, Answer[T]]) -> None:
        """Wait for an answer, and take it."""
        answer = tasks.answer(chosen.number)
        if isinstance(answer, ShardwrightError):  # of a process that has died
            answer = Answer(answer, 0.0)
        self.running.remove(chosen)
        self.budget.charge(answer.seconds)
        self._take(chosen, answer)

    def _reopen_cut(self) -> None:
        """Go on with what was cut, for more plans than the best one."""
        self.wanted = self.plans
        for entry in self.entries:
            if entry.outcome == "cut":
                entry.outcome, entry.is_covered = None, False

    def _cut_left(self) -> None:
        """Cut what is left and cannot be better than the best plan."""
        if self.best is None:
            return
        near, best = max(self.gap, OPTIMALITY_GAP), cost_of(self.best)
        for entry in self.entries:
            is_left = entry.outcome in (None, "left", "not found")
            if is_left and relative_gap(best, entry.bound) <= near:
                entry.outcome = "cut" if entry.found is None else "compiled"
                entry.is_running = False

    def _reopen_infeasible(self) -> None:
        """Compile what a bound proved infeasible: the compilation tells what memory it takes."""
        for entry in self.entries:
            if entry.outcome == "infeasible" and entry.tier < len(self.judge.tiers):
                entry.outcome, entry.tier, entry.is_infeasible = None, len(self.judge.tiers), True

    @property
    def best(self) -> Entry[T] | None:
        """The cheapest plan, the first of several that cost the same."""
        return min((e for e in self.entries if e.found), key=cost_of, default=None)

    # The queue

    def _fill(self, tasks: Tasks[Task, Answer[T]]) -> bool:
        """Submit tasks as long as there are some to decide on; return whether there was one."""
        begun = False
        most = _FURTHER_AHEAD if self.judge.prices_blocks else _AHEAD
        while len(self.running) < most and (chosen := self._next()).entries:
            begun = True
            self._submit(chosen, tasks)
        return begun

    def _submit(self, chosen: Chosen[T], tasks: Tasks[Task, Answer[T]]) -> None:
        """Submit a task; one that finds a plan soon comes before all that wait."""
        for entry in chosen.entries:
            entry.is_running, entry.asked = True, chosen.tier
        enqueue(self.running, chosen)
        chosen.number = tasks.submit(self._task(chosen), first=chosen.is_urgent)

    def _next(self) -> Chosen[T]:
        """Return the configuration to judge next, or several to be priced; none to wait.

        While there is no plan, every second time it is the one that is judged furthest, of the
        fewest stages, and on the mesh of the fewest axes, whose problems are small. None is begun
        ahead of the answers whose bound is far above the least.
        """
        self._cut()
        left = [entry for entry in self.entries if entry.is_open]
        if not left:
            return Chosen([], 0)
        self.steps += 1
        if self.judge.prices_blocks:
            chosen = self._named_next() or self._priced_next()
            if chosen is not None:
                return chosen
        if self.best is None and self.steps % 2:
            return Chosen.of(min(left, key=lambda entry: entry.promise))
        least = min(entry.bound for entry in self.entries if entry.outcome is None)
        near = sorted((e for e in left if e.bound <= _FAR * least), key=lambda e: e.bound)
        ready = next((e for e in near if not self._awaits(e)), None)
        if ready is None and not self.running:  # what they await is not near: it never comes
            ready = near[0]
        return Chosen([], 0) if ready is None else Chosen.of(ready)

    def _named_next(self) -> Chosen[T] | None:
        """Return the question for named plans, or the next one; None where none is to be built."""
        return self._seeds.next(self.best) if self.judge.names_plans else None

    def _priced_next(self) -> Chosen[T] | None:
        """Return what is priced, drafted or compiled by its price; None where that is done.

        At last, the configuration of the best draft is compiled with all candidates.
        """
        best = self.best
        compiles = best is None or bool(self.steps % 2)
        chosen = self._order.next(best, compiles=compiles, enough=self._enough)
        if chosen is None and best is not None and best.is_open:
            return Chosen([best], len(self.judge.tiers))
        return chosen

    def _awaits(self, entry: Entry[T]) -> bool:
        """Return whether what is still to come of others is likely to cut a configuration.

        It is a first bound that holds for it too, or a plan that is as good as such a bound.
        """
        return entry.tier == 0 < len(self.judge.tiers) and any(
            other.outcome is None
            and other is not entry
            and (other.tier == 0 or other.fits_at_bound)
            for other in self.entries
            if self.judge.holds_for(other.configuration, entry.configuration)
        )

    def _cut(self) -> None:
        """Cut what cannot be better than the plans that are found."""
        found = sorted(cost_of(entry) for entry in self.entries if entry.found)
        if len(found) < self.wanted:
            return
        near, worst = max(self.gap, OPTIMALITY_GAP), found[self.wanted - 1]
        for entry in self.entries:
            is_near = relative_gap(worst, entry.bound) <= near
            if entry.is_open and (is_near or entry.is_covered):
                entry.outcome = "cut" if entry.found is None else "compiled"

    def _task(self, chosen: Chosen[T]) -> Task:
        several = self.judge.prices_blocks and self.best is not None
        long = chosen.tier in (DRAFTING, len(self.judge.tiers))
        share = _SHARE if long or not several else _SHARE_PRICED
        seconds = share * self.budget.left / CORES
        if chosen.names_plan:  # nothing is searched
            seconds = max(self.budget.seconds / CORES, _SECONDS_NAMED)
        configurations = tuple(one.configuration for one in chosen.entries)
        known = dict(self._known) if chosen.tier == PRICING else {}
        where = configurations, chosen.tier, max(seconds, MOMENT), chosen.plan
        best = inf if self.best is None else cost_of(self.best)
        return Task(*where, best if chosen.tier == DRAFTING else self._enough, known)

    @property
    def _enough(self) -> float:
        """The bound that is close enough to the best plan; infinite while there is none."""
        return inf if self.best is None else cost_of(self.best) * (1 - max(self.gap, _CLOSE))

    # Answers

    def _take(self, chosen: Chosen[T], answer: Answer[T]) -> None:
        entry = chosen.entries[0]
        chosen.release(self.running)
        entry.seconds += answer.seconds
        match answer.value:
            case ShardwrightError():
                self._take_error(entry, chosen.tier, answer.value)
                return
            case Found():
                self._take_plan(entry, chosen.tier, answer.value)
            case Bound():
                self._take_bound(entry, answer.value)
            case tuple():
                self._take_prices(chosen.entries, answer.value)
            case list():
                self._seeds.take(answer.value)
        self._report()

    def _take_plan(self, entry: Entry[T], tier: int, found: Found[T]) -> None:
        """Take a plan; of a draft, the configuration may be compiled later."""
        if entry.found is None or found.cost < entry.found.cost:
            entry.found = found
        entry.raise_bound(found.lower_bound, COMPILED)
        if tier == BUILDING:
            self._seeds.take_cost(entry, found.cost)
            entry.outcome = entry.outcome and "compiled"
        elif tier != DRAFTING or entry.is_all_in_draft:
            entry.outcome = "compiled"
            self.is_cut_short |= found.is_cut_short
            self._take_merged(entry, found)

    def _take_merged(self, entry: Entry[T], found: Found[T]) -> None:
        """Take a plan for the meshes that merge axes of its own: all their plans are among its own.

        They are not compiled where the plan is close to its bound.
        """
        is_close = relative_gap(found.cost, found.lower_bound) <= max(self.gap, _CLOSE)
        for other in self.entries:
            same = other.configuration.micro_batches == entry.configuration.micro_batches
            if other is entry or not same:
                continue
            if self.judge.holds_for(entry.configuration, other.configuration):
                other.raise_bound(found.lower_bound, f"{COMPILED}, of {entry.configuration}")
                other.is_covered |= is_close

    def _take_prices(self, chosen: Sequence[Entry[T]], answers: Sequence[Prices | None]) -> None:
        """Take the prices of some configurations for all that they say something of."""
        for entry, prices in zip(chosen, answers, strict=True):
            if prices is not None:
                self._known = {**prices.known, **self._known}
            for other in self.entries:
                if shares_prices(entry, other):
                    other.take_estimate(prices)
                if prices is not None:
                    other.raise_bound(prices.bound(other.configuration), BLOCKS)
                    other.take_estimate_of_merged(entry, prices)

    def _take_bound(self, entry: Entry[T], bound: Bound) -> None:
        self.is_cut_short |= bound.is_cut_short
        proof = bound.proof or self.judge.tiers[entry.tier]
        entry.raise_bound(bound.cost, proof)
        for other in self.entries if entry.tier == 0 else ():
            if other is not entry and self.judge.holds_for(
                entry.configuration, other.configuration
            ):
                other.raise_bound(bound.cost, f"{proof}, of {entry.configuration}")
        entry.fits_at_bound = bound.is_last
        entry.tier = len(self.judge.tiers) if bound.is_last else entry.tier + 1

    def _take_error(self, entry: Entry[T], tier: int, error: ShardwrightError) -> None:
        """Note why a configuration has no plan.

        Raises
        ------
        ShardwrightError
            If the error is not about this configuration.
        """
        if tier in (NAMING, BUILDING):
            if tier == BUILDING:
                self._seeds.take_cost(entry, inf)
            return
        if tier == DRAFTING and isinstance(error, NoPlanError | TimeLimitError):
            first = not any(other.has_no_draft for other in self.entries)
            fails = first and not isinstance(error, NotFasterError)
            if fails and entry.configuration.stages == 1:  # where memory is short
                entry.asked, entry.has_no_draft = PRICING, True
            else:  # its bounds and a compilation may do
                entry.estimate = None
            return
        entry.error = error
        if isinstance(error, InfeasibleError) or entry.is_infeasible:
            entry.outcome = "infeasible"
        elif isinstance(error, TimeLimitError):
            entry.outcome, self.is_cut_short = "left", True
        elif isinstance(error, NoPlanError):
            self._take_no_answer(entry)
        elif self._is_refused(entry, error):
            entry.outcome = "refused"
        else:
            raise error

    def _is_refused(self, entry: Entry[T], error: ShardwrightError) -> bool:
        """Return whether an error is about a mesh, or about micro-batches or stages."""
        divided = max(entry.configuration.micro_batches, entry.configuration.stages) > 1
        return isinstance(error, StrategyError) or (divided and isinstance(error, OptionError))

    def _take_no_answer(self, entry: Entry[T]) -> None:
        """Go on to the next tier without a bound of this one; without a plan, give it up."""
        if entry.tier < len(self.judge.tiers):
            self.is_cut_short = True
            entry.tier += 1
        else:
            entry.outcome = "not found"

    def _report(self) -> None:
        if self.progress is None or self.best is None:
            return
        bound = min(e.bound for e in self.entries if e.outcome not in ("infeasible", "refused"))
        cost = cost_of(self.best)
        self.progress(self.budget.spent / CORES, cost, min(bound, cost))
