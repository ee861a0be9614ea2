"""The named plans that are built before anything is searched: there is a good plan early."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Generic, TypeVar

from shardwright.compiler.outer.entries import BUILDING, NAMING, Entry
from shardwright.compiler.outer.named_family import NamedSeed
from shardwright.compiler.outer.order import Chosen

T = TypeVar("T")
_BUILT = 3  # that have a plan
_TRIED = 6  # while there is a plan
_OPEN = (None, "left", "not found")  # outcomes of configurations that may have a plan
_BETTER = 0.995  # of the best plan, at most, what another one is expected to take


@dataclass(eq=False)
class NamedSeeds(Generic[T]):
    """Decides which named plans are built.

    Parameters
    ----------
    entries : sequence of Entry
        All configurations.
    """

    entries: Sequence[Entry[T]]
    _seeds: list[NamedSeed] = field(default_factory=list)
    _is_asked: bool = False
    _built: int = 0
    _tried: int = 0
    _running: NamedSeed | None = None
    _ratio: float = 1.0  # of the least step to its estimate

    def next(self, best: Entry[T] | None) -> Chosen[T] | None:
        """Return the question for named plans, or the next one that is built; None without one.

        They are built one after the other, as long as they are expected to be faster; without a
        plan, until one fits.

        Parameters
        ----------
        best : Entry or None
            The configuration of the best plan.
        """
        entries = {e.configuration: e for e in self.entries if e.outcome in _OPEN}
        if not self._is_asked and entries:
            self._is_asked = True
            return Chosen([self.entries[-1]], NAMING)
        self._seeds = [seed for seed in self._seeds if seed.configuration in entries]
        if self._running is not None or not self._seeds:
            return None
        if best is not None and (self._built >= _BUILT or self._tried >= _TRIED):
            return None
        cost = inf if best is None or best.found is None else best.found.cost
        entry = entries[self._seeds[0].configuration]
        if self._ratio * self._seeds[0].seconds >= _BETTER * cost:
            return None
        if best is not None and entry.is_compiling:
            return None
        self._running = self._seeds.pop(0)
        self._tried += 1
        entry.named_seconds = self._running.seconds
        return Chosen([entry], BUILDING, self._running.plan)

    def take(self, seeds: list[NamedSeed]) -> None:
        """Take the named plans."""
        self._seeds = seeds

    def take_cost(self, entry: Entry[T], cost: float) -> None:
        """Take the cost of the one that was built; infinite where it does not fit."""
        assert self._running is not None
        entry.named_seconds = inf
        if cost < inf:
            self._built += 1
            self._ratio = min(self._ratio, cost / self._running.seconds)
        self._running = None
