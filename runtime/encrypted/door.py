"""A door at which processes connect: callers that are not known yet are few, and wait briefly.

A stranger may open as many connections as it likes, and send what it likes as slowly as it likes.
Each holds a thread and a descriptor until it has shown who it is; where there are too many, the
oldest is closed: a process of the run takes some milliseconds to show it, and tries again.
"""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from shardwright.ir.files.waiting import ANSWER, LOOK, WATCH

# Callers at a time that are not known yet: each holds a thread. A process of the run is closed out
# only where so many call while it answers; twice as many cost a stranger's machine twice as much.
_MOST: Final = 64
# Connections that the system keeps until they are taken: where there are too many, those of the run
# are not heard, and come again after a second. Half as many are taken in some 50 ms.
BACKLOG: Final = 1024


class Door:
    """Takes connections, and gives each a thread.

    Parameters
    ----------
    server : socket
        Where it listens.
    greet : callable
        Takes a connection in a thread of its own; calls `know` when it is known whose it is.
    """

    def __init__(self, server: socket.socket, greet: Callable[[socket.socket], None]) -> None:
        self._server, self._greet = server, greet
        self._unknown: dict[socket.socket, float] = {}  # until when
        self._lock = threading.Lock()

    def take(self, until: Callable[[], bool] = lambda: False) -> None:
        """Take connections until something holds, or the server is closed."""
        with suppress(OSError):  # it is closed
            self._server.settimeout(WATCH)
        while self._server.fileno() >= 0 and not until():
            try:
                connection, _ = self._server.accept()
            except TimeoutError:
                self._close_late(0)
            except OSError:  # it is closed, a caller has gone, or there are no descriptors
                self._close_late(0)
                time.sleep(LOOK)
            else:
                connection.settimeout(ANSWER)
                self._close_late(1)
                self.watch(connection)
                threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def watch(self, connection: socket.socket, instead: socket.socket | None = None) -> None:
        """Watch a connection of an unknown caller, perhaps in the place of what it was before."""
        with self._lock:
            end = self._unknown.pop(instead, 0.0) if instead else time.monotonic() + ANSWER
            self._unknown[connection] = end

    def know(self, connection: socket.socket) -> bool:
        """Note that it is known whose a connection is; return whether it is still open."""
        with self._lock:
            return self._unknown.pop(connection, None) is not None

    def _close_late(self, more: int) -> None:
        """Close whoever has waited too long, and the oldest where there are too many."""
        now = time.monotonic()
        with self._lock:
            # What was put in the place of another is behind younger ones, and may be late already.
            waiting = sorted(self._unknown, key=self._unknown.__getitem__)
            count = sum(end < now for end in self._unknown.values())
            for connection in waiting[: max(count, len(waiting) + more - _MOST)]:
                del self._unknown[connection]
                with suppress(OSError):  # it has ended
                    connection.shutdown(socket.SHUT_RDWR)
