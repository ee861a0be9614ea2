"""The times of the operators of a step, as `shardwright calibrate --csv` reads them."""

import linecache
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from types import ModuleType
from typing import Any

import torch

COLUMNS = "operator,amount,seconds,traffic,alignment"
_AHEAD = 64  # calls that are queued while a GPU sleeps
_SLEEP = 20_000_000  # cycles: about 10 ms, longer than such calls take to be queued


class OperatorTimes:
    """Takes the time of every call that a program makes of its operators.

    On a GPU, the time is that between two events in the stream. It sleeps before every few calls,
    which are all queued when it wakes, so that it never waits for the next one.

    Parameters
    ----------
    program : module
        The module `program` of a package.
    device : torch.device
        Where it runs.
    """

    def __init__(self, program: Any, device: torch.device) -> None:
        self._program, self._device, self._calls = program, device, 0
        self._begun: list[tuple[str, Any, Any]] = []
        self.least: dict[str, float] = {}

    @contextmanager
    def of_a_step(self) -> Iterator[None]:
        """Take the times of the calls inside; of all steps the least time of a line counts."""
        parts = vars(self._program).items()
        own = {name: part for name, part in parts if isinstance(part, ModuleType)}
        self._begun.clear()
        try:
            for name, module in own.items():
                setattr(self._program, name, _Timed(module, self._timed))
            yield
        finally:
            for name, module in own.items():
                setattr(self._program, name, module)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        # A line may call several functions; in a loop over micro-batches it runs again, later.
        for variable, calls in groupby(self._begun, lambda call: call[0]):
            seconds = sum(self._seconds(begin, end) for _, begin, end in calls)
            self.least[variable] = min(seconds, self.least.get(variable, seconds))

    def rows(self, work: Mapping[str, tuple[str, float, float, int]]) -> Iterator[str]:
        """Yield the lines of the file: those of operators that take time."""
        yield COLUMNS
        for variable, seconds in self.least.items():
            operator, amount, traffic, alignment = work.get(variable, ("", 0.0, 0.0, 0))
            if amount > 0 and seconds > 0:
                yield f"{operator},{amount!r},{seconds!r},{traffic!r},{alignment}"

    def _timed(self, function: Callable[..., Any], *operands: Any, **attributes: Any) -> Any:
        frame = sys._getframe(2)
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        variable = line.split("=")[0].split(",")[0].strip()
        begin = self._now(before=True)
        result = function(*operands, **attributes)
        self._begun.append((variable, begin, self._now(before=False)))
        return result

    def _now(self, before: bool) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        if before and self._calls % _AHEAD == 0:
            sleep: Callable[[int], None] = torch.cuda._sleep
            sleep(_SLEEP)
        self._calls += before
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _seconds(self, begin: Any, end: Any) -> float:
        if self._device.type != "cuda":
            return float(end - begin)
        return float(begin.elapsed_time(end)) / 1e3


class _Timed:
    """Stands for a module, whose functions it times."""

    def __init__(self, module: ModuleType, timed: Callable[..., Any]) -> None:
        self._module, self._call = module, timed

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._module, name)
        return lambda *operands, **attributes: self._call(function, *operands, **attributes)
