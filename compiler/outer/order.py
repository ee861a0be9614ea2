"""The order in which configurations are priced, and compiled by their estimates.

First the seeds are priced: of every number of device groups the mesh with the fewest axes, in about
eight times as many micro-batches, and of one stage in 1, 4 and 16. Then configurations are compiled
whose estimate is below that of the best plan, least estimate first, in turn with pricing the
others: first those on the mesh of the least estimate, then least bound first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, log
from typing import Generic, TypeVar

from shardwright.compiler.outer.entries import Entry
from shardwright.compiler.outer.floors import has_two_parts
from shardwright.ir.mesh import Mesh

T = TypeVar("T")
_GROUP = 2  # configurations of one mesh that are priced together
_COMPILED = 2  # that are compiled at once
_NEAR = 1.05  # times the least estimate, of what is compiled before there is a plan
_SOON = 1.2  # the same, of what has a plan soon
_ALONE = 1.5  # the same, of what is compiled first in one stage
_STAGES = 16  # up to which cuts are found soon
_FEW = 8  # micro-batches for each device group of a seed
_SOME = (1, 4, 16)  # micro-batches of the seeds of one stage


_Key = tuple[int, Mesh | None]  # numbers of micro-batches and meshes


def shares_prices(one: Entry[T], other: Entry[T]) -> bool:
    """Return whether two configurations have the same mesh and number of micro-batches."""
    return _key(one) == _key(other)


def _key(entry: Entry[T]) -> _Key:
    return entry.configuration.micro_batches, entry.configuration.mesh


def _least(entry: Entry[T]) -> float:
    return entry.bound


def _distance(entry: Entry[T]) -> float:
    """Return how far the number of micro-batches is from a usual one for the stages."""
    one = entry.configuration
    return abs(log(one.micro_batches / (_FEW * one.stages if one.stages > 1 else 1)))


@dataclass
class PricedOrder(Generic[T]):
    """Decides what is priced or compiled next.

    Parameters
    ----------
    entries : sequence of Entry
        All configurations.
    """

    entries: Sequence[Entry[T]]

    def next(self, best: Entry[T] | None, *, compiles: bool) -> list[Entry[T]] | None:
        """Return what is next, empty to wait for answers; None where all is priced.

        Parameters
        ----------
        best : Entry or None
            The configuration of the best plan.
        compiles : bool
            Whether compiling comes before pricing, where there is something to price.
        """
        running = {_key(e) for e in self.entries if e.is_running and not e.is_priced}
        unpriced = [e for e in self.entries if e.is_open and not e.is_priced]
        unpriced = [entry for entry in unpriced if _key(entry) not in running]
        if seeds := [entry for entry in unpriced if _key(entry) in self._seeds]:
            return self._group(seeds, _distance)
        if running & self._seeds:
            return []
        near = [entry for entry in unpriced if entry.configuration.mesh == self._best_mesh]
        promising = self._promising(best)
        if promising and (compiles or not unpriced):
            return [min(promising, key=lambda entry: entry.estimate or 0.0)]
        if unpriced:
            return self._group(near, _distance) if near else self._group(unpriced, _least)
        return [] if running else None

    @property
    def _best_mesh(self) -> Mesh | None:
        """The mesh of a stage with the least estimate; none where one stage is best."""
        known = [entry for entry in self.entries if entry.estimate is not None]
        least = min(known, key=lambda entry: entry.estimate or 0.0, default=None)
        alone = least is None or least.configuration.stages == 1
        return None if least is None or alone else least.configuration.mesh

    def _promising(self, best: Entry[T] | None) -> list[Entry[T]]:
        """Return the priced configurations whose estimate is below that of the best plan."""
        compiling = [e for e in self.entries if e.is_running and e.is_priced]
        if len(compiling) >= _COMPILED:
            return []
        priced = [e for e in self.entries if e.is_open and e.is_priced and e.estimate is not None]
        if alone := self._alone(priced):
            return alone
        least = inf if best is None or best.estimate is None else best.estimate
        under_way = [_NEAR * (entry.estimate or inf) for entry in compiling]
        found = [entry for entry in priced if (entry.estimate or 0.0) < min([least, *under_way])]
        return self._simple(found) if best is None else found

    def _alone(self, priced: list[Entry[T]]) -> list[Entry[T]]:
        """Return what has one stage and is not much slower than others, while none is compiled.

        Estimates leave out what pipelines wait for, and what one stage hides.
        """
        ones = [entry for entry in self.entries if entry.configuration.stages == 1]
        if any(one.found or one.outcome or (one.is_running and one.is_priced) for one in ones):
            return []
        least = min((entry.estimate or 0.0 for entry in priced), default=0.0)
        near = [one for one in priced if (one.estimate or 0.0) <= _ALONE * least]
        return [one for one in near if one.configuration.stages == 1]

    def _simple(self, among: list[Entry[T]]) -> list[Entry[T]]:
        """Return those of some configurations that have a plan soon, of about the least estimate.

        The more stages, the smaller is a micro-batch, and the less binds the memory limit.
        """
        among = [entry for entry in among if has_two_parts(entry.configuration)] or among
        least = min((entry.estimate or 0.0 for entry in among), default=0.0)
        near = [entry for entry in among if (entry.estimate or 0.0) <= _SOON * least]
        few = [entry for entry in near if entry.configuration.stages <= _STAGES] or near
        most = max((entry.configuration.stages for entry in few), default=1)
        return [entry for entry in few if entry.configuration.stages == most]

    def _group(self, among: Sequence[Entry[T]], key: Callable[[Entry[T]], float]) -> list[Entry[T]]:
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
            for few in _SOME if stages == 1 else (_FEW * stages,):
                enough = [e for e in coarse if e.configuration.micro_batches >= few] or coarse[-1:]
                found.add(_key(min(enough, key=lambda e: e.configuration.micro_batches)))
        return frozenset(found)
