"""Work: what a search does, counted instead of timed, so that a plan depends on its input alone.

A clock tells how busy a machine is. So whatever is searched charges what it does, in seconds that a
reference core would take for it, and a search ends when its budget is spent. Only the few places
charge in which nearly all time goes, by the rates of `shardwright.solver.rates`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf


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
