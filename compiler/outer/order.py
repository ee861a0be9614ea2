"""The order in which configurations are priced, and compiled by their estimates.

First the seeds are priced: of every number of device groups the mesh with the fewest axes, in about
eight times as many micro-batches, and of one stage in 1, in 2 and in such as have a sample for each
rank. Then the configuration of the least estimate is drafted, as long as that is below the best
plan. In turn with that, the others are priced: those near the least estimates first, then least
bound first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import inf, log, log2
from typing import Any, Generic, TypeVar

from shardwright.compiler.outer.configuration import Configuration
from shardwright.compiler.outer.entries import (
    BUILDING,
    DRAFTING,
    NAMING,
    PRICING,
    SHORT,
    Entry,
)
from shardwright.ir.mesh import Mesh
from shardwright.search.named_plan import NamedPlan

T = TypeVar("T")
_GROUP = 2  # configurations of one mesh that are priced together
_NEAR = 1.01  # times the estimate of a draft that is awaited: what is drafted besides
_COMPILED = 2  # that are compiled at once
_FARTHER = 0.03  # by which an estimate may be higher for each factor of two
_FINER = 0.4  # factors of two, by which a mesh of one more axis differs
_UNEVEN = 1.1  # the same, where the outermost axis divides a micro-batch unevenly
_BEST = 6  # least estimates, near which others are expected
_CLOSE = 0.02  # of an estimate: how far below it the bounds are that its plan is likely to cut
_HOPE = 1.03  # times the best plan: what is expected above it is priced last
_SETTLED = 12  # meshes and micro-batches, further ones, that are priced before a compilation
_FEW = 8  # micro-batches for each device group of a seed
_SOME = (1, 2)  # micro-batches of seeds of one stage
_BESIDE = {BUILDING: 0, DRAFTING: 3}  # answers of short tasks that are taken before a long one's
_BESIDE_SEARCH = 16  # the same of one that is searched


_Key = tuple[int, Mesh | None]  # numbers of micro-batches and meshes


def shares_prices(one: Entry[T], other: Entry[T]) -> bool:
    """Return whether two configurations have the same mesh and number of micro-batches."""
    return _key(one) == _key(other)


def _key(entry: Entry[T]) -> _Key:
    return entry.configuration.micro_batches, entry.configuration.mesh


def _estimate(entry: Entry[T]) -> float:
    return inf if entry.estimate is None else entry.estimate


def _finest(entry: Entry[T]) -> tuple[float, int]:
    """Order by the estimate; the finest mesh of equal ones has the plans of the others, too."""
    return _estimate(entry), -entry.configuration.axes


def _first(pair: tuple[float, Configuration]) -> float:
    return pair[0]


def _steps(one: Configuration, other: Configuration) -> float:
    """Return how much two configurations differ, in factors of two; of micro-batches, of four.

    Plans of the one are often among those of a finer mesh, the other.
    """
    counts = abs(log2(one.micro_batches / other.micro_batches)) / 2
    stages = abs(log2(one.stages / other.stages))
    same = one.mesh == other.mesh or one.stages != other.stages
    axes = other.axes - one.axes
    return counts + stages + (_FINER if axes == 1 else abs(axes) + (0 if same else 1))


def _distance(entry: Entry[T]) -> float:
    """Return how far the number of micro-batches is from a usual one for the stages."""
    one = entry.configuration
    return abs(log(one.micro_batches / (_FEW * one.stages if one.stages > 1 else 1)))


def _is_on_mesh(one: Entry[T], other: Entry[T]) -> bool:
    return one.configuration.mesh == other.configuration.mesh


def _bounds(one: Entry[T], other: Entry[T]) -> bool:
    """Return whether the micro-batches of one, of the same mesh, are divided further in another."""
    return other.configuration.micro_batches % one.configuration.micro_batches == 0


def _bounded(among: Sequence[Entry[T]], one: Entry[T]) -> tuple[int, int]:
    """Return of how many configurations of its mesh a price of one is a bound."""
    return sum(_bounds(one, other) for other in among), one.configuration.micro_batches


def _by_bound(entry: Entry[T]) -> tuple[float, int, int]:
    """Order by the bound: few micro-batches and fine meshes bound others, too."""
    return entry.bound, entry.configuration.micro_batches, -entry.configuration.axes


@dataclass(eq=False)
class Chosen(Generic[T]):
    """What is judged next.

    Parameters
    ----------
    entries : list of Entry
        The configuration; several to be priced, none to wait for answers.
    tier : int
        What is asked about it.
    plan : NamedPlan, optional
        The named plan that is built.
    number : int
        The number of its task.
    overtaken : int
        How many later tasks were answered before it.
    """

    entries: list[Entry[T]]
    tier: int
    plan: NamedPlan | None = None
    number: int = -1
    overtaken: int = 0

    @staticmethod
    def of(entry: Entry[T]) -> "Chosen[T]":
        """Return a configuration with what is asked about it next."""
        return Chosen([entry], entry.tier)

    @property
    def is_long(self) -> bool:
        """Whether a program is emitted, beside which other tasks are answered."""
        return self.tier not in SHORT

    @property
    def names_plan(self) -> bool:
        """Whether a named plan is asked for, or built."""
        return self.tier in (NAMING, BUILDING)

    @property
    def is_urgent(self) -> bool:
        """Whether it finds a plan soon, which cuts what waits."""
        return self.tier in (BUILDING, DRAFTING)

    @property
    def beside(self) -> int:
        """How many later short tasks are answered before it: about as many as take as long."""
        return _BESIDE.get(self.tier, _BESIDE_SEARCH)

    def release(self, running: Sequence["Chosen[T]"]) -> None:
        """Note that it is answered; what others ask about its configurations is still running."""
        for entry in self.entries:
            others = [other.tier for other in running if any(entry is one for one in other.entries)]
            entry.is_running = bool(others)
            entry.asked = others[0] if others else entry.asked


def enqueue(running: list[Chosen[T]], chosen: Chosen[T]) -> None:
    """Add a task to those that run, before the tasks that are to be answered after it."""
    urgent = sum(one.is_urgent for one in running) if chosen.tier == DRAFTING else 0
    running.insert(urgent if chosen.is_urgent else len(running), chosen)


def first_taken(running: Sequence[Chosen[T]]) -> Chosen[T]:
    """Return the task whose answer is taken next: of a long one, after those of short ones."""
    first = running[0]
    short = next((one for one in running if not one.is_long), None)
    if short is None or not first.is_long or first.overtaken >= first.beside:
        return first
    first.overtaken += 1
    return short


@dataclass
class PricedOrder(Generic[T]):
    """Decides what is priced, drafted or compiled next.

    Parameters
    ----------
    entries : sequence of Entry
        All configurations.
    compilation : int
        The tier of a compilation.
    plans_blocks : bool
        Whether drafts of one stage are planned block by block; else there are none.
    """

    entries: Sequence[Entry[T]]
    compilation: int
    plans_blocks: bool = True

    def next(
        self, best: Entry[T] | None, *, compiles: bool, enough: float = inf
    ) -> Chosen[T] | None:
        """Return what is next, empty to wait for answers; None where all is priced.

        Parameters
        ----------
        best : Entry or None
            The configuration of the best plan.
        compiles : bool
            Whether drafting and compiling come before pricing, where there is something to price.
        enough : float
            The bound that is high enough for any configuration.
        """
        running = {_key(e) for e in self.entries if e.is_running and not e.is_priced}
        unpriced = [e for e in self.entries if e.is_open and not e.is_priced]
        unpriced = [entry for entry in unpriced if _key(entry) not in running]
        wanted = self._wanted_seeds(best)
        if seeds := [entry for entry in unpriced if _key(entry) in wanted]:
            return Chosen(self._group(seeds, _distance), PRICING)
        if running & wanted:
            return Chosen([], PRICING)
        chosen = self._promising(best)
        if chosen is not None and chosen.tier == PRICING:  # nothing else delays the draft
            return chosen
        if chosen is not None or running or self._is_compiling:  # which are likely to cut others
            least = min(map(_estimate, self.entries), default=inf)
            enough = min(enough, (1 - _CLOSE) * least)
            unpriced = [entry for entry in unpriced if entry.bound < enough]
        if chosen is not None and (compiles or not unpriced):
            return chosen
        low = any(entry.bound < enough for entry in unpriced)
        if chosen is None and best is not None and best.is_open and self._is_settled and not low:
            return Chosen([best], self.compilation)
        if unpriced:
            expected = self._expected(unpriced, best)
            if (chosen is None and compiles) or min(map(expected, unpriced))[0] == inf:
                return Chosen(self._widest(self._not_awaiting(unpriced), enough), PRICING)
            return Chosen(self._group(unpriced, expected)[:1], PRICING)
        return Chosen([], PRICING) if running or self._is_compiling else None

    def _wanted_seeds(self, best: Entry[T] | None) -> frozenset[_Key]:
        """Return the seeds of as many device groups as may be faster than what is known.

        Those of the fewest are answered first: their estimates are near.
        """
        fewest = min((e.configuration.stages for e in self.entries), default=1)
        of_fewest = [e for e in self.entries if e.configuration.stages == fewest]
        first = self._seeds & {_key(e) for e in of_fewest if e.outcome is None and not e.is_priced}
        if first:
            return first
        known = [_estimate(entry) for entry in self.entries]
        known += [] if best is None or best.found is None else [best.found.cost]
        low: dict[int, float] = {}
        for entry in self.entries:
            stages = entry.configuration.stages
            low[stages] = min(low.get(stages, inf), entry.bound)
        least = min(known, default=inf) / _HOPE
        return self._seeds & {_key(e) for e in self.entries if low[e.configuration.stages] < least}

    @property
    def _is_settled(self) -> bool:
        """Whether enough is priced, and answered, to compile the best draft."""
        return self._has_priced_enough and not any(entry.is_compiling for entry in self.entries)

    @property
    def _has_priced_enough(self) -> bool:
        priced = {_key(entry) for entry in self.entries if entry.is_priced}
        return len(priced - self._seeds) >= _SETTLED

    @property
    def _is_compiling(self) -> bool:
        return any(e.is_compiling or (e.is_running and e.is_priced) for e in self.entries)

    def _promising(self, best: Entry[T] | None) -> Chosen[T] | None:
        """Return the priced configuration of the least estimate, if it is below the best plan's.

        One stage without a draft is compiled.
        """
        cost = inf if best is None or best.found is None else best.found.cost
        drafted = [_NEAR * _estimate(e) for e in self.entries if e.is_compiling]
        cost = min([cost, *drafted, *(e.named_seconds for e in self.entries)])
        open_ones = [e for e in self.entries if e.is_open and e.is_priced and not e.has_begun]
        found = [e for e in open_ones if _estimate(e) < cost]
        if not found or sum(entry.is_compiling for entry in self.entries) >= _COMPILED:
            return None
        least = min(found, key=_finest)
        is_planned = self.plans_blocks and not least.has_no_draft
        if least.configuration.stages == 1 and not is_planned:
            return Chosen([least], self.compilation)
        if self._is_small_gain(least, best):
            return None
        finer = [] if best is None else self._finer(least)
        if finer:
            waiting = [entry for entry in finer if not entry.is_running]
            return Chosen(waiting[:1], PRICING)
        return Chosen([least], DRAFTING)

    def _is_small_gain(self, one: Entry[T], best: Entry[T] | None) -> bool:
        """Return whether others are to be priced before a draft that is little better at most.

        A draft takes as long as several prices, where memory is short ten times as long.
        """
        if best is None or best.found is None or self._has_priced_enough:
            return False
        low = best.found.cost / _HOPE
        waiting = (e.bound < low for e in self.entries if e.is_open and not e.is_priced)
        return one.is_short_of_memory and _estimate(one) > low and any(waiting)

    def _finer(self, one: Entry[T]) -> list[Entry[T]]:
        """Return what is to be priced before a draft of one stage: meshes of more axes.

        Their plans may be faster, and their bounds are needed in any case. Where memory is short,
        prices take about as long as the draft, which would wait.
        """
        if one.configuration.stages > 1 or one.is_short_of_memory:
            return []
        return [
            entry
            for entry in self.entries
            if entry.outcome is None
            and not entry.is_priced
            and entry.configuration.stages == 1
            and entry.configuration.micro_batches == one.configuration.micro_batches
            and entry.configuration.axes > one.configuration.axes
            and entry.bound < _estimate(one)
        ]

    def _expected(
        self, unpriced: Sequence[Entry[T]], best: Entry[T] | None
    ) -> Callable[[Entry[T]], tuple[float, float]]:
        """Return the order in which configurations are priced.

        Near those of the least estimates, as long as these are below the best plan; then by bounds.
        """
        cost = inf if best is None or best.found is None else best.found.cost
        known: dict[_Key, tuple[float, Configuration]] = {}
        for entry in self.entries:
            if entry.estimate is not None:
                least = known.get(_key(entry), (inf, entry.configuration))
                known[_key(entry)] = min(least, (entry.estimate, entry.configuration), key=_first)
        nearest_to = sorted(known.values(), key=_first)[:_BEST]
        expected: dict[_Key, float] = {}
        for entry in unpriced:
            if _key(entry) not in expected:
                far = (e * (1 + _FARTHER * _steps(c, entry.configuration)) for e, c in nearest_to)
                nearest = min(far, default=inf) * (1 if self._is_even(entry) else _UNEVEN)
                expected[_key(entry)] = nearest if nearest < _HOPE * cost else inf
        return lambda entry: (expected[_key(entry)], entry.bound)

    def _widest(self, unpriced: Sequence[Entry[T]], enough: float) -> list[Entry[T]]:
        """Return what is priced to raise the least bound, and that of most others on its mesh.

        The bound of a number of micro-batches holds for its multiples, so that one is priced of
        which the most are multiples among those whose bounds are not enough: the largest of these,
        be it cut itself, and no divisor of one that is priced, which did not do. The bound is loose
        where each rank has whole samples for itself, which nothing communicates.
        """
        first = min(unpriced, key=_by_bound, default=None)
        if first is None:
            return []
        mesh = [entry for entry in self.entries if _is_on_mesh(entry, first)]
        priced = [entry for entry in mesh if entry.is_priced]
        low = [one for one in unpriced if _is_on_mesh(one, first) and one.bound < enough] or [first]
        tried = [
            one
            for one in mesh
            if one.outcome in (None, "cut")
            and not (one.is_priced or one.is_running or self._is_whole(one))
            and not any(_bounds(one, other) for other in priced)
        ]
        found: list[Entry[T]] = []
        while tried and len(found) < _GROUP:
            most = max(tried, key=partial(_bounded, low))
            left = [one for one in low if not _bounds(most, one)]
            if len(left) == len(low):
                break
            found.append(most)
            low = left
        return found or [first]

    def _not_awaiting(self, unpriced: Sequence[Entry[T]]) -> list[Entry[T]]:
        """Return what is not about to have a bound of fewer micro-batches."""
        running = [entry for entry in self.entries if entry.is_running and not entry.is_priced]
        return [
            one
            for one in unpriced
            if not any(_is_on_mesh(one, other) and _bounds(other, one) for other in running)
        ]

    def _is_whole(self, entry: Entry[T]) -> bool:
        """Return whether the ranks can have a micro-batch by whole samples, as many each."""
        mesh, samples = entry.configuration.mesh, self._batch // entry.configuration.micro_batches
        return mesh is None or samples % mesh.size == 0

    def _group(self, among: Sequence[Entry[T]], key: Callable[[Entry[T]], Any]) -> list[Entry[T]]:
        """Return the first of some configurations, and more of the same mesh."""
        first = min(among, key=key)
        found: list[Entry[T]] = []
        for entry in sorted(among, key=key):
            same = entry.configuration.mesh == first.configuration.mesh
            if same and not any(shares_prices(entry, other) for other in found):
                found.append(entry)
        return found[:_GROUP]

    @cached_property
    def _seeds(self) -> frozenset[_Key]:
        """Meshes and numbers of micro-batches that are priced first."""
        found: set[_Key] = set()
        for stages in {entry.configuration.stages for entry in self.entries}:
            equal = [entry for entry in self.entries if entry.configuration.stages == stages]
            axes = min(entry.configuration.axes for entry in equal)
            coarse = [entry for entry in equal if entry.configuration.axes == axes]
            even = [entry for entry in coarse if self._is_even(entry)] or coarse
            for few in self._some(equal) if stages == 1 else (_FEW * stages,):
                enough = [e for e in even if e.configuration.micro_batches >= few] or even[-1:]
                found.add(_key(min(enough, key=lambda e: e.configuration.micro_batches)))
        return frozenset(found)

    def _some(self, entries: Sequence[Entry[T]]) -> tuple[int, ...]:
        """Return the micro-batches of seeds of one stage: one, two, and of a sample for each rank.

        Where memory is short, plans of one and two are far from those of as many as possible.
        """
        mesh = entries[0].configuration.mesh
        return (*_SOME, self._batch // (1 if mesh is None else mesh.size))

    def _is_even(self, entry: Entry[T]) -> bool:
        """Return whether the outermost axis divides the samples of a micro-batch evenly."""
        mesh, samples = entry.configuration.mesh, self._batch // entry.configuration.micro_batches
        return mesh is None or not mesh.axes or samples % mesh.axes[0].size == 0

    @cached_property
    def _batch(self) -> int:
        """The largest number of micro-batches, which is that of samples where all are tried."""
        return max(entry.configuration.micro_batches for entry in self.entries)
