"""The order in which processes end, as Linux tells it to those who wait for it.

MPI's launcher ends all ranks when one has died; a look at them a moment later finds all of them
dead. A thread waits for their ends instead, and wakes at the first one.
"""

import os
import select
import threading
from collections.abc import Collection
from contextlib import suppress

_PAUSE = 100  # milliseconds until processes that are new are waited for, too


class Ends:
    """Notes in which order processes end; nothing where the system cannot tell it."""

    def __init__(self) -> None:
        self._files: dict[int, int] = {}  # process, by the file that is ready when it has ended
        self._ended: list[set[int]] = []  # those of one moment together
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def follow(self, pid: int) -> None:
        """Wait for the end of a process."""
        with suppress(AttributeError, OSError):  # not Linux, or the process is gone
            self._files[os.pidfd_open(pid)] = pid
        if self._files and self._thread is None:
            self._thread = threading.Thread(target=self._watch, daemon=True, name="ends")
            self._thread.start()

    def _watch(self) -> None:
        while not self._stopped.is_set():
            poll = select.poll()
            for file in tuple(self._files):
                poll.register(file, select.POLLIN)
            ready = [file for file, _ in poll.poll(_PAUSE)]
            if ready:
                self._ended.append({self._files.pop(file) for file in ready})
            for file in ready:
                os.close(file)

    def first(self, pids: Collection[int]) -> int | None:
        """Return the one of some processes that ended before the others; None if unknown."""
        for moment in tuple(self._ended):
            found = moment.intersection(pids)
            if found:
                return found.pop() if len(found) == 1 else None
        return None

    def stop(self) -> None:
        """Wait no longer."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        for file in self._files:
            os.close(file)
        self._files.clear()
