"""Counts: how many of the equal blocks have which plan, so that the step is short and fits.

Let n blocks of a kind have plans, each with its seconds by resource and its bytes. A linear program
takes shares of all plans: no resource is busy for longer than the step (or one of its halves, where
the seconds of both are told), and the memory limit holds in the backward pass of the last block of
each kind. Blocks before it then hold what they hold at their own turns from forward to backward, it
its own backward pass too, and blocks after it what is held at the end of the step: gradients, and
no saved tensors. All do at the end. What is left of the memory is the room for parameters that are
gathered ahead.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, combinations_with_replacement

import numpy as np
from numpy.typing import NDArray

from shardwright.ir.rounding import EQUAL
from shardwright.planner.fronts.front import BlockPlan
from shardwright.solver.linear_program import Mixture, least_mixture

Floats = NDArray[np.float64]
_GAIN = 2e-3  # share of the step that a further plan of equal blocks must gain, as it must be told
_MOST = 4  # most plans of equal blocks
_SHARE = 1e-6  # share of the blocks of a kind below which a count is a rounding error


@dataclass(frozen=True)
class Run:
    """Blocks of one kind that have one plan.

    Parameters
    ----------
    plan : BlockPlan
        The plan.
    count : int
        Number of blocks.
    """

    plan: BlockPlan
    count: int


@dataclass(frozen=True)
class Choice:
    """The plans of all kinds of blocks.

    Parameters
    ----------
    runs : tuple of tuple of Run
        For each kind, the plans and their counts; those that hold least first.
    seconds : float
        The load of the busiest resource, of each half where they are told: no schedule takes less.
    links_bind : bool
        Whether that is a level of links, in any of them.
    """

    runs: tuple[tuple[Run, ...], ...]
    seconds: float
    links_bind: bool


@dataclass(frozen=True)
class Counts:
    """The linear program over the fronts of all kinds of blocks.

    Parameters
    ----------
    counts : sequence of int
        Number of blocks of each kind.
    fronts : sequence of sequence of BlockPlan
        The plans of each kind.
    spans : sequence of (int, int)
        The first and the last block of each kind.
    limit_bytes : float
        Memory of a device.
    """

    counts: Sequence[int]
    fronts: Sequence[Sequence[BlockPlan]]
    spans: Sequence[tuple[int, int]]
    limit_bytes: float

    def best(self, ahead: float, most_bytes: float = np.inf) -> Choice | None:
        """Return the choice of the least seconds; None where none fits.

        Parameters
        ----------
        ahead : float
            How often the largest parameter that is gathered must fit beside all that is held.
        most_bytes : float
            Bytes of that parameter at most.
        """
        sizes = [size for size in self.gathers if size <= most_bytes]
        programs = [self._within(size, ahead) for size in sizes]
        loads = [program.solved.load for program in programs]
        best: tuple[float, int, Choice] | None = None
        for number in sorted(range(len(programs)), key=loads.__getitem__):
            if loads[number] == np.inf or (best and loads[number] > (1 + EQUAL) * best[0]):
                break
            # Of whole blocks, some plans may not fit where parts do; equal blocks then do.
            program = programs[number]
            choice = _rounded(program, _GAIN) or _rounded(program, np.inf)
            if choice and (best is None or (choice.seconds, number) < best[:2]):
                best = choice.seconds, number, choice
        return best and best[2]

    def least_seconds(self) -> float:
        """Return a bound of the seconds, without room for gathers; infinite where none fits."""
        fronts = [list(front) for front in self.fronts]
        return _Program(self.counts, fronts, self.spans, self.limit_bytes).solved.load

    @property
    def gathers(self) -> list[float]:
        """The sizes of gathers that plans can be restricted to."""
        least = max(min(plan.gathered_bytes for plan in front) for front in self.fronts)
        sizes = {plan.gathered_bytes for front in self.fronts for plan in front}
        return sorted(size for size in sizes if size >= least)

    def _within(self, gathered: float, ahead: float) -> "_Program":
        """Return the program of plans whose gathers are no larger, with room for these."""
        fronts = [[p for p in front if p.gathered_bytes <= gathered] for front in self.fronts]
        return _Program(self.counts, fronts, self.spans, self.limit_bytes - ahead * gathered)


@dataclass(frozen=True)
class _Program:
    """The linear program within the memory that is left beside gathers."""

    counts: Sequence[int]
    fronts: list[list[BlockPlan]]
    spans: Sequence[tuple[int, int]]
    room: float

    @cached_property
    def solved(self) -> Mixture:
        """The seconds, and how many blocks have each plan."""
        loads = [np.array([plan.seconds for plan in front]) for front in self.fronts]
        held = [self._held(group) for group in range(len(self.fronts))]
        return least_mixture(self.counts, loads, held, np.full(held[0].shape[1], self.room))

    def _held(self, group: int) -> Floats:
        """Return the bytes of each plan in the backward pass of each kind, and at the end.

        One block of a kind is the last one; all are taken for it in part.
        """
        first, plans = self.spans[group][0], self.fronts[group]
        held, own, after = (
            np.array([getattr(plan, f"{name}_bytes") for plan in plans])
            for name in ("held", "own", "after")
        )
        rows = [after if first > last else held for _, last in self.spans]
        rows[group] = held + own / self.counts[group]
        return np.stack([*rows, after], axis=1)

    def of(self, group: int, plans: Sequence[BlockPlan]) -> "_Program":
        """Return the program in which one kind has some plans alone."""
        fronts = [list(plans) if i == group else f for i, f in enumerate(self.fronts)]
        return _Program(self.counts, fronts, self.spans, self.room)

    def rounded(self, shares: Sequence[Floats]) -> Choice | None:
        """Return the choice of whole blocks, kind by kind; None where it does not fit."""
        numbers = list(shares)
        for group, share in enumerate(shares):
            tried = [[*numbers[:group], n, *numbers[group + 1 :]] for n in _whole(share)]
            numbers = min(tried, key=self._excess_and_seconds)
        if self._excess_and_seconds(numbers)[0] > 0:
            return None
        runs = []
        for front, number in zip(self.fronts, numbers, strict=True):
            taken = [Run(plan, int(n)) for plan, n in zip(front, number, strict=True) if n]
            runs.append(tuple(sorted(taken, key=lambda run: run.plan.held_bytes)))
        loads = self._loads(numbers)
        links_bind = len(loads) > 1 or bool(loads.argmax())  # links bind one of the halves
        return Choice(tuple(runs), _length(loads), links_bind)

    def _loads(self, numbers: Sequence[Floats]) -> Floats:
        """Return the load of each resource, a row for each interval."""
        pairs = zip(numbers, self.fronts, strict=True)
        each = [np.tensordot(n, [p.seconds for p in front], 1) for n, front in pairs]
        return np.sum(each, axis=0)

    def _excess_and_seconds(self, numbers: Sequence[Floats]) -> tuple[float, float]:
        """Return by how much a choice exceeds the room, and its seconds."""
        held = np.sum([n @ self._held(group) for group, n in enumerate(numbers)], axis=0)
        excess = float(held.max()) - self.room
        small = excess <= _SHARE * self.room
        return 0.0 if small else excess, _length(self._loads(numbers))


def _length(loads: Floats) -> float:
    """Return the sum over intervals of the load of the busiest resource."""
    return float(loads.max(axis=1).sum())


def _rounded(program: _Program, gain: float) -> Choice | None:
    """Return a choice of whole blocks whose kinds have no plan that gains less; None without."""
    for group in range(len(program.fronts)):
        program = _with_fewer(program, group, gain)
    found = program.solved
    return program.rounded(found.taken) if np.isfinite(found.load) else None


def _with_fewer(program: _Program, group: int, gain: float) -> _Program:
    """Return the program in which a kind has as few plans as lose less than a part of the step."""
    free = program.solved
    if not np.isfinite(free.load):
        return program
    used = np.flatnonzero(free.taken[group] > _SHARE).tolist()
    most = min(len(used), _MOST, program.counts[group])
    for size in range(1, most + 1):
        among = range(len(program.fronts[group])) if size == 1 else used
        least, best = _fastest(program, group, [*combinations(among, size)], free)
        if least <= (1 + gain) * free.load or size == most:
            return best
    return program


def _fastest(
    program: _Program, group: int, tried: Sequence[Sequence[int]], free: Mixture
) -> tuple[float, _Program]:
    """Return the program of the least seconds, in which a kind has some of several plans alone.

    Those whose bound, by the prices of the program with all plans, says that they take longer than
    another one are not solved.
    """
    bounds = [free.bound + float(free.dearer[group][[*plans]].min()) for plans in tried]
    least, first, best = np.inf, len(tried), program
    for number in sorted(range(len(tried)), key=bounds.__getitem__):
        if bounds[number] > (1 + EQUAL) * least:
            break
        one = program.of(group, [program.fronts[group][place] for place in tried[number]])
        seconds = one.solved.load
        if (seconds, number) < (least, first):
            least, first, best = seconds, number, one
    return least, best


def _whole(shares: Floats) -> list[Floats]:
    """Return all whole numbers of the same sum of which each is a share rounded down, or more."""
    down = np.floor(shares + _SHARE)
    used = np.flatnonzero(shares > _SHARE)
    missing = round(shares.sum() - down.sum())
    several = combinations_with_replacement(used, missing)
    return [down + np.bincount(taken, minlength=len(shares)) for taken in several]
