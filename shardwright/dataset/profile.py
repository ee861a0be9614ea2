"""How long the steps of a pipeline take in this process."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Profile:
    """Seconds of each step, while they are measured."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] | None = None

    def start(self) -> None:
        """Begin to measure."""
        self._seconds = {}

    def stop(self) -> None:
        """Measure no longer."""
        self._seconds = None

    def take(self) -> dict[str, float]:
        """Return what was measured, and begin anew."""
        found, self._seconds = self._seconds or {}, {}
        return found

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure a step."""
        if self._seconds is None:
            yield
            return
        begin = time.perf_counter()
        yield
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - begin


PROFILE = Profile()
