"""Passes over micro-batches that repeat: one stands for all that follow it, until the last ones.

A schedule is greedy, so what follows a moment depends on the work that is left then. Where the same
work is left when two passes in a row begin, the second is like the first, and further passes
between them are like both. The last passes must not be felt yet: nothing of the last pass may be
ahead.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.schedule import Tasks
from shardwright.ir.liveness import Loop

Floats = NDArray[np.float64]
_ROUNDING = 1e-9  # relative difference of moments that are equal


@dataclass(frozen=True)
class Repeated:
    """A pass that repeats the one before.

    Parameters
    ----------
    number : int
        The pass.
    start : float
        The moment at which it begins, in seconds.
    seconds : float
        By how much it is later than the pass before.
    """

    number: int
    start: float
    seconds: float


def repeated_pass(tasks: Tasks, starts: Floats) -> Repeated | None:
    """Return the first pass that repeats the one before; None if there is none.

    Parameters
    ----------
    tasks : Tasks
        The tasks of a program with a loop over micro-batches.
    starts : array
        When they start, in seconds.
    """
    loop = tasks.loop
    if loop is None:
        return None
    moments = _Moments.of(tasks, starts, loop)
    for number in range(2, len(moments.begins) - 1):
        if moments.repeats(number):
            begin = moments.begins[number]
            return Repeated(number, begin, begin - moments.begins[number - 1])
    return None


@dataclass(frozen=True)
class _Moments:
    """When the tasks of a program start and end.

    Parameters
    ----------
    before_end, after_start : float
        The end of all work before the loop, and the start of the first after it.
    starts, ends : array
        The starts and ends of the nodes of each pass.
    begins : list of float
        The start of the first computation of each pass.
    """

    before_end: float
    after_start: float
    starts: Floats
    ends: Floats
    begins: list[float]

    @classmethod
    def of(cls, tasks: Tasks, starts: Floats, loop: Loop) -> "_Moments":
        """Divide the tasks into those of each pass, before and after the loop."""
        length = loop.stop - loop.start
        start, end = starts, starts + tasks.seconds
        passes = 1 + max(number for _, number in tasks.order)
        stop = loop.start + passes * length
        of_passes = start[loop.start : stop].reshape(passes, length)
        body = tasks.tasks[loop.start : loop.start + length]
        first = next((i for i, task in enumerate(body) if task.in_line), 0)
        return cls(
            float(end[: loop.start].max(initial=0.0)),
            float(start[stop:].min(initial=np.inf)),
            of_passes,
            end[loop.start : stop].reshape(passes, length),
            of_passes[:, first].tolist(),
        )

    def repeats(self, number: int) -> bool:
        """Return whether the same work is left when a pass begins as when the one before began."""
        last, now = self.begins[number - 1], self.begins[number]
        if self.before_end > last or self.after_start < now:
            return False
        earlier, later = self._left(last), self._left(now)
        is_done, is_left = not later[0].any(), bool(np.isinf(earlier[-1]).all())
        close = np.isclose(earlier[:-1], later[1:], rtol=0.0, atol=_ROUNDING * now)
        return is_done and is_left and bool(close.all())

    def _left(self, moment: float) -> Floats:
        """Return the seconds that are left of each task; infinity if it has not started."""
        rounding = _ROUNDING * moment
        left = np.where(self.starts < moment - rounding, self.ends - moment, np.inf)
        return np.where(self.ends <= moment + rounding, 0.0, left)
