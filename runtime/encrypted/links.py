"""Connections between all processes, one for each direction, and what has arrived on them.

A thread for each connection reads it, so that nobody who sends waits for somebody who sends. One
direction is one connection: a connection of TLS may not be read and written at the same time.
"""

import socket
import ssl
import struct
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from shardwright.ir.errors import ExecutionError
from shardwright.ir.files.waiting import ARRIVAL, RETRY, WATCH
from shardwright.runtime.encrypted.door import Door
from shardwright.runtime.messages import MOST_BYTES

Key = tuple[int, int, int]  # of a message: who sent it, the group, the tag
_HEAD = struct.Struct("<qqq")  # group, tag, number of bytes
_HELLO = struct.Struct("<qq")  # the run, the number of the sender
_WELCOME = b"\1"  # what answers it
_BYE = -1  # in place of the number of bytes
_MOST = MOST_BYTES  # of a message
_PIECE = 2**24  # bytes; memory for more is taken when so many have come


class Links:
    """The connections of one process.

    Parameters
    ----------
    listener : socket
        Where the others connect to.
    accepting, calling : SSLContext
        How connections that others make, and own ones, are encrypted.
    run : int
        Tells runs apart.
    rank : int
        Number of this process.
    addresses : sequence of (str, int)
        Host and port of each process.
    failure : callable
        Returns why the run ends early, as far as others know; empty if it does not.

    Raises
    ------
    ExecutionError
        If the others cannot be reached.
    """

    def __init__(
        self,
        listener: socket.socket,
        accepting: ssl.SSLContext,
        calling: ssl.SSLContext,
        run: int,
        rank: int,
        addresses: Sequence[tuple[str, int]],
        failure: Callable[[], str],
    ) -> None:
        self._failure = failure
        self.rank, self.size, self._run = rank, len(addresses), run
        self._others = [number for number in range(self.size) if number != rank]
        self._arrived: defaultdict[Key, deque[bytearray]] = defaultdict(deque)
        self._changed = threading.Condition()
        self._heard: set[int] = set()
        self._parted: set[int] = set()
        self._lost: dict[int, str] = {}
        self._is_open = True
        self._door = Door(listener, lambda raw: self._greet(raw, accepting))
        threading.Thread(target=self._door.take, args=(self._all_heard,), daemon=True).start()
        self._out = {n: self._connected(n, addresses[n], calling) for n in self._others}
        self._locks = {n: threading.Lock() for n in self._others}
        self._wait(self._all_heard, "not all processes connect")
        listener.close()

    # Connecting

    def _all_heard(self) -> bool:
        return len(self._heard) == len(self._others)

    def _connected(
        self, number: int, address: tuple[str, int], context: ssl.SSLContext
    ) -> ssl.SSLSocket:
        """Return a connection to another process, which has answered on it."""
        end = time.monotonic() + ARRIVAL
        while True:
            try:
                return self._called(address, context)
            except (OSError, EOFError) as error:
                refused = isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError)
                if refused or time.monotonic() > end:
                    raise ExecutionError(
                        f"process {self.rank} cannot connect to process {number} at "
                        f"{address[0]}: {error}"
                    ) from None
            time.sleep(RETRY)

    def _called(self, address: tuple[str, int], context: ssl.SSLContext) -> ssl.SSLSocket:
        raw = socket.create_connection(address, ARRIVAL)
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream = context.wrap_socket(raw, server_hostname=address[0])
        except BaseException:
            raw.close()
            raise
        try:
            stream.sendall(_HELLO.pack(self._run, self.rank))
            _read(stream, len(_WELCOME))
        except BaseException:
            stream.close()
            raise
        stream.settimeout(None)
        return stream

    def _greet(self, raw: socket.socket, context: ssl.SSLContext) -> None:
        """Take the connection of another process; a stranger's is closed."""
        try:
            stream = context.wrap_socket(raw, server_side=True, do_handshake_on_connect=False)
        except OSError:
            self._door.know(raw)
            raw.close()
            return
        self._door.watch(stream, raw)
        try:
            stream.do_handshake()
            run, number = _HELLO.unpack(_read(stream, _HELLO.size))
        except (OSError, EOFError):
            self._door.know(stream)
            stream.close()
            return
        with self._changed:
            is_new = run == self._run and number in self._others and number not in self._heard
            if not self._door.know(stream) or not is_new:
                stream.close()
                return
            self._heard.add(number)
            self._changed.notify_all()
        stream.settimeout(None)
        with suppress(OSError):  # it is told where the stream is read
            stream.sendall(_WELCOME)
        self._listen(stream, number)

    def _listen(self, stream: ssl.SSLSocket, number: int) -> None:
        """Read messages until the other says goodbye, or its connection ends."""
        why = ""
        try:
            while True:
                group, tag, length = _HEAD.unpack(_read(stream, _HEAD.size))
                if length == _BYE:
                    break
                if not 0 <= length <= _MOST:
                    raise EOFError(f"a message has {length} bytes")
                data = _read(stream, length)
                with self._changed:
                    self._arrived[number, group, tag].append(data)
                    self._changed.notify_all()
        except (OSError, EOFError) as error:
            why = str(error) or "its connection has ended"
        with self._changed:
            if why:
                self._lost[number] = why
            self._parted.add(number)
            self._changed.notify_all()
        stream.close()

    # Messages

    def send(self, target: int, group: int, tag: int, data: bytes | memoryview) -> None:
        """Send a message; it has left when this returns.

        Raises
        ------
        ExecutionError
            If the other process has ended.
        """
        view = memoryview(data).cast("B")
        if target == self.rank:
            with self._changed:
                self._arrived[target, group, tag].append(bytearray(view))
                self._changed.notify_all()
            return
        try:
            with self._locks[target]:
                self._out[target].sendall(_HEAD.pack(group, tag, len(view)))
                self._out[target].sendall(view)
        except OSError as error:
            raise ExecutionError(f"process {target} has ended early: {error}") from None

    def has(self, source: int, group: int, tag: int) -> bool:
        """Return whether a message has arrived.

        Raises
        ------
        ExecutionError
            If it has not, and never will.
        """
        with self._changed:
            return self._has((source, group, tag))

    def holds(self, source: int, group: int, tag: int) -> bool:
        """Return whether a message has arrived; no where it never will."""
        with self._changed:
            return bool(self._arrived.get((source, group, tag)))

    def _has(self, key: Key) -> bool:
        if self._arrived.get(key):
            return True
        if key[0] in self._parted:
            why = self._lost.get(key[0], "it has said goodbye")
            raise ExecutionError(f"process {key[0]} has ended early: {why}")
        return False

    def receive(self, source: int, group: int, tag: int) -> bytearray:
        """Wait for a message and return it.

        Raises
        ------
        ExecutionError
            If the other process ends before it has sent it.
        """
        key = source, group, tag
        with self._changed:
            while not self._changed.wait_for(lambda: self._has(key), WATCH):
                if why := self._failure():
                    raise ExecutionError(why)
            waiting = self._arrived[key]
            found = waiting.popleft()
            if not waiting:
                del self._arrived[key]
        return found

    # The end

    def part(self) -> None:
        """Say goodbye, and wait for the others to do so: a message on its way is not cut off."""
        if not self._is_open:
            return
        self._is_open = False
        for number, stream in self._out.items():
            try:
                with self._locks[number]:
                    stream.sendall(_HEAD.pack(0, 0, _BYE))
            except OSError:
                continue  # it has ended before
        with self._changed:
            self._changed.wait_for(lambda: len(self._parted) == len(self._others), ARRIVAL)
        for stream in self._out.values():
            stream.close()

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, ARRIVAL):
                missing = sorted(set(self._others) - self._heard)
                raise ExecutionError(f"{what} within {ARRIVAL:.0f} s: {missing} are missing")


def _read(stream: ssl.SSLSocket, length: int) -> bytearray:
    """Return so many bytes.

    Raises
    ------
    EOFError
        If the connection ends before.
    """
    found, begin = bytearray(min(length, _PIECE)), 0
    while begin < length:
        if begin == len(found):
            found.extend(bytes(min(length - begin, begin)))
        with memoryview(found) as view:
            count = stream.recv_into(view[begin:])
        if not count:
            raise EOFError("its connection has ended")
        begin += count
    return found


def address_of(text: str) -> tuple[str, int]:
    """Return host and port of an address such as ``127.0.0.1:6667``."""
    host, _, port = text.rpartition(":")
    return host, int(port)


def pause() -> None:
    """Let other threads run between two questions whether something has arrived."""
    time.sleep(0)
