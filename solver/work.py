"""Work: what a search does, counted instead of timed, so that a plan depends on its input alone.

A clock tells how busy a machine is. So whatever is searched charges what it does, in seconds that a
reference core would take for it, and a search ends when its budget is spent. Only the few places
charge in which nearly all time goes, by `SECONDS_OF`.

These rates were fitted together to processor seconds of searches of two large models
(`benchmarks/work.md`, which compares their sums with processor seconds); of CP-SAT it is the unit
that OR-Tools calls deterministic time. Those of additions are in `shardwright.solver.elimination`.
With all of them twice as high, a search does half as much for the same effort, and the gap that is
left is that of half the effort; with half of them, it takes twice the processor time. With one of
them twice as high, what it prices gets half of its share before the budget is spent. An answer that
is proven stays the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from typing import NamedTuple


class Rates(NamedTuple):
    """Seconds of work for one unit of what is counted.

    Parameters
    ----------
    block_node : float
        An operator of a program that is cut into blocks.
    pass_node : float
        A node that a pass leaves.
    simulated_node : float
        A node whose step is simulated.
    step : float
        An operator, a parameter or a result that is added to a problem.
    strategy : float
        A strategy of an operator that is priced.
    pair_entry : float
        An entry of a table between two choices that is priced.
    network : float
        A variable or a pair of a problem, to make the network that is searched.
    difference : float
        An entry of a table that is compared with that of another strategy.
    message : float
        A message of an elimination, besides its additions.
    state : float
        A state of a Pareto front that a join makes.
    partial : float
        A partial assignment of a search in order.
    cpsat_unit : float
        A unit of CP-SAT's deterministic time.
    flat_entry : float
        An entry of a table, in a round of presolve of message passing.
    swept_entry : float
        An entry of a table, in a step of dual ascent.
    decoded_entry : float
        An entry of a table, where a decoded assignment is improved.
    model_entry : float
        An entry of a table, to build the model for CP-SAT.
    exchange : float
        A variable whose strategy is exchanged in a local search.
    """

    block_node: float = 5e-5
    pass_node: float = 1.5e-5
    simulated_node: float = 9e-5
    step: float = 1.5e-4
    strategy: float = 2e-5
    pair_entry: float = 1e-7
    network: float = 6e-5
    difference: float = 1e-9
    message: float = 6e-5
    state: float = 4e-7
    partial: float = 1e-4
    cpsat_unit: float = 1.0
    flat_entry: float = 1e-7
    swept_entry: float = 2e-9
    decoded_entry: float = 1e-8
    model_entry: float = 2e-5
    exchange: float = 1e-5


SECONDS_OF = Rates()


class Work:
    """The work done so far, in seconds of a reference core."""

    is_counted = True

    def __init__(self) -> None:
        self._done = 0.0

    @property
    def done(self) -> float:
        """The seconds that were charged."""
        return self._done

    @property
    def is_stopped(self) -> bool:
        """Whether nothing more is to be done, whatever is left."""
        return False

    def charge(self, seconds: float) -> None:
        """Add work that was done."""
        self._done += seconds

    def seconds_by_clock(self) -> float:
        """Return after how many seconds of a clock a search is to end, whatever it has done."""
        return inf

    def anew(self) -> Work:
        """Return work of which nothing is done, for another process."""
        return Work()


class StoppedWork(Work):
    """Work that ends after some seconds of a clock: where it does, a plan depends on the machine.

    Parameters
    ----------
    end : float
        On the monotonic clock, which all processes of a machine share.
    """

    def __init__(self, end: float) -> None:
        super().__init__()
        self._end = end

    @classmethod
    def after(cls, seconds: float) -> StoppedWork:
        """Return work that ends so many seconds from now."""
        return cls(time.monotonic() + seconds)

    def __reduce__(self) -> tuple[Callable[[float], StoppedWork], tuple[float]]:
        """Return the end by the time of day: machines share no other clock."""
        return _stopped_at, (time.time() + self._end - time.monotonic(),)

    @property
    def is_stopped(self) -> bool:
        """Whether the seconds are over."""
        return time.monotonic() >= self._end

    def seconds_by_clock(self) -> float:
        """Return the seconds left."""
        return max(self._end - time.monotonic(), 0.0)

    def anew(self) -> StoppedWork:
        """Return work of which nothing is done, with the same end."""
        return StoppedWork(self._end)


def _stopped_at(end: float) -> StoppedWork:
    return StoppedWork.after(end - time.time())


class Clock(Work):
    """Time instead of work, for contests that are judged by a clock."""

    is_counted = False

    @property
    def done(self) -> float:
        """The seconds of a clock."""
        return time.monotonic()


class Budget:
    """What a search may spend; a budget made from another one spends that, too.

    Parameters
    ----------
    seconds : float
        Seconds of a reference core; unlimited by default.
    work : Work, optional
        What is counted; by default, it begins with this budget.

    Examples
    --------
    >>> budget = Budget(8.0)
    >>> part = budget.share(1 / 4)
    >>> part.charge(1.5)
    >>> part.left, budget.left, part.is_spent
    (0.5, 6.5, False)
    """

    def __init__(self, seconds: float = inf, work: Work | None = None) -> None:
        self.work = Work() if work is None else work
        self.begin = self.work.done
        self.end = self.begin + seconds

    @property
    def spent(self) -> float:
        """Seconds that were charged since the budget was made, by whatever spends the same."""
        return self.work.done - self.begin

    @property
    def seconds(self) -> float:
        """Seconds of the whole budget."""
        return self.end - self.begin

    @property
    def left(self) -> float:
        """Seconds left; 0 where it is spent."""
        return 0.0 if self.work.is_stopped else max(self.end - self.work.done, 0.0)

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left."""
        return self.work.done >= self.end or self.work.is_stopped

    def charge(self, seconds: float) -> None:
        """Charge work that was done."""
        self.work.charge(seconds)

    def share(self, fraction: float) -> Budget:
        """Return a budget of a part of what is left."""
        return Budget(fraction * self.left, self.work)

    def within(self, seconds: float) -> Budget:
        """Return a budget of so many seconds, or of what is left if that is less."""
        return Budget(min(seconds, self.left), self.work)

    def beyond(self, seconds: float = inf) -> Budget:
        """Return a budget of so many seconds, even if fewer are left: for what cannot wait."""
        return Budget(seconds, self.work)

    def seconds_by_clock(self) -> float:
        """Return after how many seconds of a clock to end what cannot be counted meanwhile."""
        return self.work.seconds_by_clock() if self.work.is_counted else self.left

    def __repr__(self) -> str:
        return f"<Budget: {self.spent:.3g} of {self.seconds:.3g} s>"
