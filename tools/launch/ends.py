"""The order in which processes end, as Linux tells it to those who wait for it.

MPI's launcher ends all ranks when one has died; a look at them a moment later finds all of them
dead. A thread waits for their ends instead, and wakes at the first one.
"""

import os
import select
import threading
from collections.abc import Collection

_PAUSE = 100  # milliseconds until processes that are new are waited for, too


class Ends:
    """Notes in which order processes end; nothing where the system cannot tell it."""

    def __init__(self) -> None:
        self._files: dict[int, int] = {}  # process, by the file that is ready when it has ended
        self._ended: list[set[int]] = []  # those of one moment together
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def follow(self, pid: int) -> None:
        """Wait for the end of a process."""
        try:
            self._files[os.pidfd_open(pid)] = pid
        except ProcessLookupError:  # before it could be followed, and not after those that run
            with self._lock:
                self._ended.append({pid, *(self._files[file] for file in self._ready(0))})
        except (AttributeError, OSError):  # the system does not tell it
            return
        if self._files and self._thread is None:
            self._thread = threading.Thread(target=self._watch, daemon=True, name="ends")
            self._thread.start()

    def _watch(self) -> None:
        while not self._stopped.is_set():
            ready = self._ready(_PAUSE)
            with self._lock:
                if ready:
                    self._ended.append({self._files.pop(file) for file in ready})
                for file in ready:
                    os.close(file)

    def _ready(self, pause: int) -> list[int]:
        """Return the files of processes that have ended, after some milliseconds at most."""
        poll = select.poll()
        for file in tuple(self._files):
            poll.register(file, select.POLLIN)
        return [file for file, _ in poll.poll(pause)]

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
