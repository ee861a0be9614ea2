"""The search over configurations: what promises most is planned first, until nothing may be better.

Every configuration has a lower bound on the cost of all its plans, at first of the computation
alone. Where it is *priced*, the bound is higher, and there is an estimate of its plan. One
configuration of each number of stages is priced before any is planned. What has the least estimate
is planned next, and what is near the least estimates is priced: both get about as much of the work.
A plan that would take most of the work left begins only where there is no other: where a price
takes that long, the budget ended it, and its estimate is not good. A mesh that divides an axis of
another one has a larger problem: it waits until those of the others are planned, and is priced, and
planned, where the plan on the other mesh is among the best. Where no plan is found so, a named plan
is built.

A configuration is cut once its bound is no less than the cost of a plan that was found, up to the
relative gap. So the least bound of all configurations bounds every plan of the space, whatever was
left out. Once no plan is expected to be better, what has the least bound is priced: as long as the
gap to the best plan can still become smaller by more than a little. It cannot where a configuration
of a low bound is left of which nothing more can be asked, or more are left than the work suffices
for.

Tasks run in rounds, whose tasks are decided on before the first is answered. Each has a budget of
its own, and its answer says what it spent of it. So the result is the same for any number of
processes, on machines of any speed.

References
----------
Land and Doig, "An automatic method of solving discrete programming problems", 1960 (best first).
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Generic, TypeVar

from shardwright.ir.errors import (
    InfeasibleError,
    NoPlanError,
    OptionError,
    ShardwrightError,
    StrategyError,
    TimeLimitError,
)
from shardwright.planner.choice.configuration import Configuration
from shardwright.planner.choice.entries import Entry, Site, entries_of, one_of_each_number
from shardwright.planner.choice.questions import (
    Answer,
    Answers,
    Found,
    Judge,
    NotFasterError,
    Prices,
    Question,
    Task,
    is_answer,
)
from shardwright.planner.effort import GAIN
from shardwright.planner.executor_names import PROCESSES
from shardwright.planner.executors.chosen import workers_of
from shardwright.planner.executors.tasks import Tasks
from shardwright.search.options import Progress
from shardwright.solver.solution import OPTIMALITY_GAP, relative_gap
from shardwright.solver.work import Budget

T = TypeVar("T")
SEARCHED = "search within the memory limit"
CORES = 2  # that a search is meant for: its budget is that of one configuration on each

MOMENT = 1e-3
"""Seconds of work that a task may spend at least."""

_TOGETHER: dict[Question, int] = {"price": 4, "plan": 1, "search": 2}
"""Tasks of a round: more of what takes a second than of what takes ten.

A plan of blocks tells what others must cost less than, and mostly the next one is not expected to.
With two at a time the plan of Llama 3 70B on 64 H100 is the same, for 14 CPU s more."""
MOST_WORKERS = max(_TOGETHER.values())  # processes that have a task at once

_SHARE = 1 / 2  # share of a core's remaining budget for building a problem, and for solving it
_FARTHER = 0.03
"""By which a plan is expected to cost more for a factor of two in micro-batches or stages.

What is within as much of the best plan is priced before what only has a low bound. With half of it
the same is, as long as estimates are as far apart; with twice as much, too, in another order."""

_WORTHWHILE = 0.2
"""Of the gap between the least bound and the best plan, by which further prices must be able to
reduce it, within the work that is left if they take what others took.

The gap of Llama 3 405B on 1,024 H100 is 15.5 % then. With half of it that is 15.0 %, for 12 s of
work more; with a quarter, 14.9 %, and the budget is spent. Of Llama 3 70B on 64 H100 it is 1.1 % in
each case."""

CLOSE = 0.01
"""Of the best plan: how near to it bounds of blocks are raised.

Estimates of one stage are 1 % above the bound. With twice as much the gap that is told is up to 2 %
where there is work left; with half of it, more meshes are priced whose plans are no better."""


@dataclass
class BestFirst(Generic[T]):
    """The search over configurations.

    Parameters
    ----------
    judge : Judge
        Bounds and plans them.
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
        Number of configurations that are planned at least, where so many have a plan.
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
    executor: str = PROCESSES
    entries: list[Entry[T]] = field(default_factory=list)
    is_cut_short: bool = False  # by the budget: the whole search, or that of a configuration
    is_interrupted: bool = False  # by the user, once there was a plan

    def run(self) -> list[Entry[T]]:
        """Judge the configurations, and return what became of each."""
        self.entries = entries_of(self.candidates, self.floor)
        self._wanted, self._is_named = 1, False
        self._spent: dict[Question, float] = {"price": 0.0, "plan": 0.0, "search": 0.0}
        self._known: dict[Hashable, object] = {}
        answers = Answers(self.judge, self.budget.work.anew())
        workers = workers_of(self.executor, min(self.workers, MOST_WORKERS), answers)
        tasks: Tasks[Task, Answer[T]] = Tasks(answers, workers, str, is_answer)
        try:
            self._judge_all(tasks)
            self._wanted = self.plans
            if self.best is not None and self.plans > 1:
                self._judge_all(tasks)
        except KeyboardInterrupt:
            self.is_interrupted = True
            if self.best is None:
                raise
        finally:
            tasks.close()
        self._close_all()
        return self.entries

    @property
    def best(self) -> Entry[T] | None:
        """The cheapest plan, the first of several that cost the same."""
        found = (entry for entry in self.entries if entry.found is not None)
        return min(found, key=lambda entry: entry.cost, default=None)

    def _judge_all(self, tasks: Tasks[Task, Answer[T]]) -> None:
        while chosen := self._next():
            if self.budget.is_spent:
                self.is_cut_short = True
                break
            question, entries = chosen
            numbers = [tasks.submit(self._task(one, question)) for one in entries]
            for entry, number in zip(entries, numbers, strict=True):
                self._take_answer(entry, question, tasks.answer(number))
        self._take_named()

    def _next(self) -> tuple[Question, list[Entry[T]]] | None:
        """Return what is asked next, and about which configurations; None where all is done.

        Nothing waits for an answer.
        """
        if first := _one_of_each_site(self._unpriced(one_of_each_number(self.entries))):
            return "price", first[: _TOGETHER["price"]]
        coarse = [entry for entry in self.entries if entry.coarse is None]
        for among in (coarse, self.entries):
            priced, planned = self._to_price(among), self._to_plan(among)
            is_early = among is coarse and self._spent["price"] <= self._spent["plan"]
            if priced and (is_early or not planned):
                return "price", priced[: _TOGETHER["price"]]
            if planned:
                return self._together(planned)
        if bounded := self._to_bound():
            return "price", bounded[: _TOGETHER["price"]]
        self._take_named()
        left = self._to_search()
        return ("search", left[: _TOGETHER["search"]]) if left else None

    def _together(self, planned: Sequence[Entry[T]]) -> tuple[Question, list[Entry[T]]]:
        """Return the first configurations of which the same is asked, and which it may not cut."""
        first = planned[0]
        question = self._planning(first)
        same = [e for e in planned if e is first or e.bound < first.expected]
        same = [entry for entry in same if self._planning(entry) == question]
        return question, same[: _TOGETHER[question]]

    def _planning(self, entry: Entry[T]) -> Question:
        """Return how a configuration is planned first."""
        return "plan" if self.judge.plans_blocks(entry.configuration) else "search"

    @property
    def _worst(self) -> float:
        """What a plan must cost less than to be wanted."""
        costs = sorted(entry.cost for entry in self.entries)
        return costs[self._wanted - 1] if self._wanted <= len(costs) else inf

    @property
    def _enough(self) -> float:
        """The bound that is close enough to the best plan; infinite while there is none."""
        return self._worst * (1 - max(self.gap, CLOSE))

    def _open(self, among: Iterable[Entry[T]]) -> list[Entry[T]]:
        """Return the configurations that may have a plan that is wanted."""
        worst, near = self._worst, max(self.gap, OPTIMALITY_GAP)
        left = [entry for entry in among if entry.outcome is None]
        return [e for e in left if worst == inf or relative_gap(worst, e.bound) > near]

    def _unpriced(self, among: Iterable[Entry[T]]) -> list[Entry[T]]:
        """Return the configurations that may have a plan that is wanted, and that have no price."""
        if not self._has_prices:
            return []
        return [entry for entry in self._open(among) if "price" not in entry.asked]

    @property
    def _has_prices(self) -> bool:
        return self.judge.prices and len(self.entries) > 1

    def _to_price(self, among: Sequence[Entry[T]]) -> list[Entry[T]]:
        """Return what is priced for its estimate, the least first; one of each site."""
        left = self._unpriced(among)
        likely = self._likely(left)
        left = [entry for entry in left if entry.site in likely]
        left.sort(key=lambda entry: (likely[entry.site], entry.bound, entry.size))
        return _one_of_each_site(left)

    def _likely(self, among: Sequence[Entry[T]]) -> dict[Site, float]:
        """Return the sites whose plans may be the best, and about what these cost.

        What is near a plan or an estimate has about its cost, and so has a mesh that divides axes
        of another one.
        """
        coarse = [entry for entry in self.entries if entry.coarse is None]
        known: dict[Site, tuple[float, Entry[T]]] = {}
        for entry in filter(self._can_be_planned, coarse):
            told = entry.estimate if entry.found is None else entry.cost
            if told is not None and told < known.get(entry.site, (inf, entry))[0]:
                known[entry.site] = told, entry
        worst, found = self._worst, dict[Site, float]()
        for entry in among:
            if entry.coarse is not None:
                cost, most = entry.expected, worst
            else:
                near = (c * (1 + _FARTHER * entry.steps_to(one)) for c, one in known.values())
                cost, most = min(near, default=inf), (1 + _FARTHER) * worst
            if cost <= most:
                found[entry.site] = min(found.get(entry.site, inf), cost)
        return found

    def _to_bound(self) -> list[Entry[T]]:
        """Return what is priced for its bound, the least first, as long as that is worth it."""
        cost, left = self._worst, self._unpriced(self.entries)
        least = min((entry.tried().lower_bound for entry in self.entries), default=inf)
        settled = (e.bound for e in self._open(self.entries) if self._is_settled(e))
        most = min(settled, default=inf) if self.best is not None else inf
        most = min(most, self._enough)
        left = sorted(left, key=lambda entry: (entry.bound, entry.size))
        left = _one_of_each_site([entry for entry in left if entry.bound < most])
        if cost == inf:
            return left
        enough = least + _WORTHWHILE * (cost - least)
        needed = sum(entry.bound < enough for entry in left)
        can_reach = most > enough and needed * self._seconds_of_price <= self.budget.left
        return left if can_reach else []

    @property
    def _seconds_of_price(self) -> float:
        """What the price of a site has taken in the mean."""
        sites = {entry.site for entry in self.entries if "price" in entry.asked}
        return self._spent["price"] / max(len(sites), 1)

    def _is_settled(self, entry: Entry[T]) -> bool:
        """Return whether nothing more is asked that may raise the bound of a configuration."""
        is_priced = "price" in entry.asked or not self._has_prices
        return is_priced and ("search" in entry.asked or not self._is_searchable(entry))

    def _to_plan(self, among: Sequence[Entry[T]]) -> list[Entry[T]]:
        """Return what may be planned, the least expected first, of these the finest mesh.

        Without a plan yet, what leaves work for others comes first, and of that what has one stage:
        estimates of pipelines know less of the memory, and what a plan must cost less than spares
        most of theirs.
        """
        most = (1 - GAIN) * self._worst
        left = [e for e in self._open(among) if self._planning(e) not in e.asked]
        left = [e for e in left if self._is_known(e) and e.expected < most]
        left = [entry for entry in left if self._can_be_planned(entry)]
        first = self.best is None
        pairs = ((e, e.configuration) for e in left)
        keys = {
            e: (not self._has_work_for(2, e), first and one.stages > 1, e.expected, -one.axes)
            for e, one in pairs
        }
        return sorted(left, key=keys.__getitem__)

    def _can_be_planned(self, entry: Entry[T]) -> bool:
        """Return whether there is a plan, or work left for one; beside another, for two."""
        beside = self.best is not None
        return entry.found is not None or self._has_work_for(1 + beside, entry)

    def _has_work_for(self, plans: int, entry: Entry[T]) -> bool:
        """Return whether the work left is enough for some plans of blocks that take as much."""
        is_searched = self._planning(entry) == "search"
        return is_searched or plans * entry.seconds_of_plan <= self.budget.left

    def _is_known(self, entry: Entry[T]) -> bool:
        """Return whether what is expected of a configuration is known: it is priced, if any is."""
        return "price" in entry.asked or not self._has_prices

    def _to_search(self) -> list[Entry[T]]:
        """Return what is searched at last: what has the best plan, then by the least bound."""
        best = self.best
        left = [e for e in self._open(self.entries) if "search" not in e.asked]
        if best is None:
            return sorted(left, key=lambda entry: (*entry.size, entry.bound))
        left = [e for e in left if self._is_searchable(e) and not self._is_hopeless(e)]
        return sorted(left, key=lambda entry: (entry is not best, entry.bound))

    def _is_hopeless(self, entry: Entry[T]) -> bool:
        """Return whether blocks of a large program had no plan that may be better."""
        asked = self.judge.is_large and self._planning(entry) == "plan" and "plan" in entry.asked
        return asked and entry.found is None

    def _is_searchable(self, entry: Entry[T]) -> bool:
        """Return whether a configuration is searched as a whole, beside a plan.

        Where memory is short, and of large pipelines, that takes long, and finds nothing better.
        Nor does it of a program of blocks whose plan is near the bound, and those of a mesh are
        among the plans of one that divides its axes. Of a large program, whether memory is short is
        known once it is priced.
        """
        if entry.is_short_of_memory:
            return False
        if not self.judge.is_large:
            return True
        if self._planning(entry) == "plan" and entry.bound >= self._enough:
            return False
        is_divided = any(one.coarse is entry and one.outcome is None for one in self.entries)
        is_priced = "price" in entry.asked or not self._has_prices
        return entry.configuration.stages == 1 and is_priced and not is_divided

    def _task(self, entry: Entry[T], question: Question) -> Task:
        seconds = max(_SHARE * self.budget.left / CORES, MOMENT)
        known = dict(self._known) if question == "price" else {}
        below = self._worst if question == "plan" else self._enough
        return Task(entry.configuration, question, seconds, below, known)

    # Answers

    def _take_answer(
        self, entry: Entry[T], question: Question, answer: Answer[T] | ShardwrightError
    ) -> None:
        if isinstance(answer, ShardwrightError):  # of a process that has died
            answer = Answer(answer, 0.0)
        self.budget.charge(answer.seconds)
        self._spent[question] += answer.seconds
        entry.seconds += answer.seconds
        entry.asked.add(question)
        match answer.value:
            case ShardwrightError():
                self._take_error(entry, question, answer.value)
            case Found():
                self._take_plan(entry, question, answer.value)
            case _:
                self._take_prices(entry, answer.value, answer.seconds)
        self._report()

    def _take_plan(self, entry: Entry[T], question: Question, found: Found[T]) -> None:
        """Take a plan; a searched one bounds the meshes that merge axes of its own."""
        if found.cost < entry.cost:
            entry.found = found
        self._take_told(entry, entry.cost)
        if question != "search":
            return
        entry.raise_bound(found.lower_bound, SEARCHED)
        entry.outcome = "compiled"
        self.is_cut_short |= found.is_cut_short
        for other in self.entries:
            if other is not entry and self.judge.covers(entry.configuration, other.configuration):
                other.raise_bound(found.lower_bound, f"{SEARCHED}, of {entry.configuration}")

    def _take_told(self, entry: Entry[T], seconds: float) -> None:
        """Take what a plan of blocks costs: estimates of pipelines on its site are as far off."""
        entry.told = seconds
        if entry.configuration.stages == 1 or not entry.estimate:
            return
        ratio = max(seconds / entry.estimate, 1.0)
        same = [e for e in self.entries if e.site == entry.site]
        known = any(e.told is not None for e in same if e is not entry)
        for other in same:
            other.slower = min(ratio, other.slower) if known else ratio

    def _take_prices(self, entry: Entry[T], prices: Prices, seconds: float) -> None:
        """Take the prices of a configuration for all that they say something of."""
        self._known = {**prices.known, **self._known}
        for other in self.entries:
            shares = entry.site == other.site
            if shares:
                other.asked.add("price")
                other.priced_seconds = seconds
                other.estimate = prices.estimate(other.configuration)
                other.is_short_of_memory = prices.is_short_of_memory(other.configuration)
            whose = "" if shares else f", of {entry.configuration}"
            other.raise_bound(prices.bound(other.configuration), f"{prices.proof}{whose}")

    def _take_error(self, entry: Entry[T], question: Question, error: ShardwrightError) -> None:
        """Note why a configuration has no plan.

        Raises
        ------
        ShardwrightError
            If the error is not about this configuration.
        """
        is_about_one = isinstance(error, NoPlanError | TimeLimitError)
        if question == "plan" and is_about_one:
            if isinstance(error, NotFasterError):
                self._take_told(entry, error.seconds)
            return
        if question == "price" and is_about_one:
            if isinstance(error, InfeasibleError):  # a search says what memory it takes
                entry.error, entry.bound = error, inf
            return
        entry.error = error
        if isinstance(error, InfeasibleError):
            entry.outcome = "infeasible"
        elif isinstance(error, TimeLimitError):
            entry.outcome, self.is_cut_short = "left", True
        elif isinstance(error, NoPlanError):
            entry.outcome = "not found"
        elif _is_refused(entry, error):
            entry.outcome = "refused"
        else:
            raise error

    def _take_named(self) -> None:
        """Take a named plan where there is no other: nothing is searched for it."""
        if self.best is not None or self._is_named:
            return
        self._is_named = True
        left = [entry for entry in self.entries if entry.outcome not in ("infeasible", "refused")]
        budget = Budget()
        named = self.judge.name([one.configuration for one in left], budget) if left else None
        self.budget.charge(budget.spent)
        if named is None:
            return
        configuration, plan = named
        entry = next(one for one in left if one.configuration == configuration)
        entry.found, entry.outcome = plan, "compiled" if entry.outcome else None

    def _close_all(self) -> None:
        """Say of every configuration that was not searched what became of it."""
        best = self.best
        near = max(self.gap, OPTIMALITY_GAP)
        for entry in self.entries:
            if entry.outcome in ("infeasible", "refused"):
                continue
            if entry.bound == inf:
                entry.outcome = "infeasible"
            elif best is not None and relative_gap(best.cost, entry.bound) <= near:
                entry.outcome = "cut" if entry.found is None else "compiled"

    def _report(self) -> None:
        best = self.best
        if self.progress is None or best is None:
            return
        bound = min(e.tried().lower_bound for e in self.entries)
        self.progress(self.budget.spent / CORES, best.cost, min(bound, best.cost))


def _one_of_each_site(entries: Iterable[Entry[T]]) -> list[Entry[T]]:
    """Return the first of the configurations that share prices."""
    found: dict[Site, Entry[T]] = {}
    for entry in entries:
        found.setdefault(entry.site, entry)
    return list(found.values())


def _is_refused(entry: Entry[T], error: ShardwrightError) -> bool:
    """Return whether an error is about a mesh, or about micro-batches or stages."""
    divided = max(entry.configuration.micro_batches, entry.configuration.stages) > 1
    return isinstance(error, StrategyError) or (divided and isinstance(error, OptionError))
