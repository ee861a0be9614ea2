"""The number of processes that make samples, from measured waits.

At intervals, the tuner looks at how long the training has waited for samples, and at how busy the
processes were. It doubles the processes while the training waits, as far as the processors allow:
processes that wait themselves, for files for example, use less than one each. Where twice as many
do not make more samples in the same time, it goes back. It takes one away where they are idle for
the most part. The interval in which processes start is not looked at.
"""

import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardwright.dataset.configuration import Settings
from shardwright.dataset.workers import Made, Workers
from shardwright.ir.files.writing import begins, write_file

LOGGER = logging.getLogger("shardwright.dataset")
_SLOW = 0.05  # share of the time in which the training waits, from which on there are more
_IDLE = 0.35  # share of the time in which processes work, below which there are fewer
_GAIN = 1.1  # speed-up for which twice as many processes stay
_MOST = 32  # processes


@dataclass(frozen=True)
class Measurement:
    """What was measured in an interval.

    Parameters
    ----------
    wait : float
        Share of the time in which the training waited for samples.
    busy : float
        Mean share of the time in which a process worked.
    processor : float
        Share of that time in which it used a processor.
    steps : mapping of str to float
        Seconds of each step of the pipeline for a sample, or a batch.
    rate : float
        Samples, or batches, in a second.
    """

    wait: float
    busy: float
    processor: float
    steps: dict[str, float]
    rate: float = 0.0

    @property
    def slowest(self) -> str:
        """The step that takes longest."""
        return max(self.steps, key=lambda name: self.steps[name], default="")

    @staticmethod
    def of(made: Sequence[Made], waited: float, elapsed: float, count: int) -> "Measurement":
        """Return the measurement of an interval."""
        seconds = sum(one.seconds for one in made)
        used = sum(one.processor_seconds for one in made)
        steps: dict[str, float] = {}
        for one in made:
            for name, part in one.steps.items():
                steps[name] = steps.get(name, 0.0) + part / len(made)
        busy = min(1.0, seconds / (elapsed * count)) if elapsed else 0.0
        share = used / seconds if seconds else 1.0
        rate = len(made) / elapsed if elapsed else 0.0
        return Measurement(waited / elapsed if elapsed else 0.0, busy, share, steps, rate)


def next_count(count: int, found: Measurement, processors: int) -> int:
    """Return how many processes there are to be.

    Examples
    --------
    >>> steps = {"map(1)": 0.1}
    >>> next_count(1, Measurement(0.9, 1.0, 1.0, steps), processors=4)
    2
    >>> next_count(4, Measurement(0.9, 1.0, 1.0, steps), processors=4)
    4
    >>> next_count(4, Measurement(0.9, 1.0, 0.1, steps), processors=4)
    8
    >>> next_count(4, Measurement(0.0, 0.2, 1.0, steps), processors=4)
    3
    """
    most = max(1, min(_MOST, int(processors / max(found.processor, 1e-3))))
    if found.wait > _SLOW:
        return max(count, min(2 * count, most))
    return max(1, count - 1) if found.busy < _IDLE else count


@dataclass
class Tuner:
    """Tunes the processes of one pipeline, over all its epochs.

    Parameters
    ----------
    count : int
        How many there are at first.
    """

    count: int
    found: list[Measurement] = field(default_factory=list)
    _before: tuple[int, float] | None = None  # the number before it was doubled, and its rate
    _most: int = _MOST

    def decide(self, found: Measurement, processors: int) -> int:
        """Return how many processes there are to be after an interval."""
        before, self._before = self._before, None
        if before is not None and found.rate < _GAIN * before[1]:
            self._most = before[0]
            return before[0]
        count = min(self._most, next_count(self.count, found, processors))
        if count > self.count:
            self._before = self.count, found.rate
        return count

    def run(self, workers: Workers, keys: Iterator[Any], settings: Settings) -> Iterator[Any]:
        """Yield the samples of an epoch, and change the number of processes meanwhile."""
        begin, waited, taken, fresh = time.perf_counter(), 0.0, 0, True
        for number, sample in enumerate(workers.run(keys), 1):
            yield sample
            if number % settings.interval:
                continue
            now = time.perf_counter()
            made = list(workers.measured)[-(number - taken) :]
            found = Measurement.of(made, workers.waited - waited, now - begin, workers.count)
            fresh = False if fresh else self._change(workers, found)
            begin, waited, taken = now, workers.waited, number
        if settings.tuned_file is not None:
            write_tuned(Path(f"{settings.tuned_file}_{_rank()}.json"), self, settings)

    def _change(self, workers: Workers, found: Measurement) -> bool:
        """Change the number of processes as measured; return whether it changes."""
        self.found.append(found)
        doubled = self._before is not None
        count = self.decide(found, _processors())
        if count == workers.count:
            return False
        why = f"`{found.slowest}` is slow, the training waits {found.wait:.0%} of the time"
        if count < workers.count:
            why = f"its processes work {found.busy:.0%} of the time"
            why = "twice as many processes make no more samples" if doubled else why
        LOGGER.warning(
            "autotune: %s: num_parallel_workers from %d to %d", why, workers.count, count
        )
        workers.set_count(count)
        self.count = count
        return True


def write_tuned(path: Path, tuner: Tuner, settings: Settings) -> None:
    """Write the tuned numbers as JSON.

    Raises
    ------
    OutputError
        If the file cannot be written, or another kind of file is there.
    """
    last = tuner.found[-1].steps if tuner.found else {}
    content = {
        "shardwright": "autotune",
        "num_parallel_workers": tuner.count,
        "prefetch_size": settings.prefetch,
        "seconds": {name: round(seconds, 6) for name, seconds in last.items()},
    }
    ours = begins(b'{\n "shardwright": "autotune"')
    text = json.dumps(content, indent=1) + "\n"
    write_file(path, text.encode(), "the tuned pipeline", ours)


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _rank() -> int:
    return int(os.environ.get("PMI_RANK", "0"))
