"""A member of a run: a server or a worker, which tells the scheduler that it lives."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from shardwright.ir.errors import ModelError
from shardwright.ir.files.waiting import ARRIVAL, RETRY
from shardwright.server.callers import Caller
from shardwright.server.messages import message
from shardwright.server.scheduler import WORKER
from shardwright.server.security import Security
from shardwright.server.transport import STRANGER, WAIT, CallError, Connection


class Member:
    """The place of this process in a run.

    Parameters
    ----------
    role : str
        ``MS_PSERVER`` or ``MS_WORKER``.
    scheduler : str
        Address of the scheduler.
    servers, workers : int
        How many there are.
    security : Security
        How messages are encrypted.
    number : int, optional
        The number that it asks for.
    address : str
        Where it listens: a server, and a worker where there are none.
    silence : float
        Seconds without a sign of the scheduler after which the run has ended.
    secret : bytes
        What all processes of the run know; empty where none is needed.

    Raises
    ------
    ModelError
        If there is no scheduler, or it has no place.
    """

    def __init__(
        self,
        role: str,
        scheduler: str,
        servers: int,
        workers: int,
        security: Security,
        number: int | None = None,
        address: str = "",
        silence: float = 30.0,
        secret: bytes = b"",
    ) -> None:
        self.role, self.address, self.silence = role, scheduler, silence
        connection = Connection("Scheduler", scheduler, security, Caller.joining(secret))
        asked = message(
            "Member",
            role=role,
            number=-1 if number is None else number,
            address=address,
            servers=servers,
            workers=workers,
        )
        place = self._joined(connection, asked)
        connection.close()
        self.number, self.run = int(place.number), int(place.run)
        self.caller = Caller.member(role, self.number, int(place.token))
        self._connection = Connection("Scheduler", scheduler, security, self.caller)
        self.view = message("View")
        self.changed = threading.Condition()
        self._failure = ""
        self._has_left = False
        self._told = threading.Lock()
        self._beats = threading.Thread(target=self._beat_on, daemon=True)
        self._beats.start()

    def _joined(self, connection: Connection, asked: Any) -> Any:
        end = time.monotonic() + ARRIVAL
        while True:
            try:
                return connection.call("Join", asked)
            except CallError as error:
                certain = not error.is_lost or "CERTIFICATE_VERIFY_FAILED" in str(error)
                if certain and not error.may_repeat:
                    raise ModelError(f"the scheduler refuses this process: {error}") from None
                if time.monotonic() > end:
                    raise ModelError(
                        f"the scheduler at {self.address} has no answer for this process: {error}",
                        hint="start the script once with MS_ROLE=MS_SCHED; certificates are of one "
                        "authority on both sides",
                    ) from None
            time.sleep(RETRY)

    # Signs

    def beat(self, error: str = "", leaves: bool = False) -> None:
        """Tell the scheduler that this process lives, and hear of the others."""
        sign = message("Sign", error=error, leaves=leaves)
        with self._told:
            view = self._connection.call("Beat", sign, max(2.0, self.silence / 3))
        with self.changed:
            self.view = view
            self.changed.notify_all()

    def _beat_on(self) -> None:
        """Tell it again and again."""
        heard = time.monotonic()
        while not self._has_left:
            try:
                self.beat()
                heard = time.monotonic()
            except CallError as error:
                if error.code == STRANGER or time.monotonic() - heard > self.silence:
                    if not self._has_left:
                        self._fail(f"the scheduler at {self.address} is lost: {error}")
                    return
            pause = min(1.0, self.silence / 10)
            with self.changed:
                self.changed.wait_for(lambda: self._has_left, pause)

    def _fail(self, why: str) -> None:
        with self.changed:
            self._failure = why
            self.changed.notify_all()

    @property
    def failure(self) -> str:
        """Why the run ends early; empty if it does not."""
        return self._failure or str(self.view.failure)

    def leave(self, error: str = "") -> None:
        """Tell the scheduler that this process ends."""
        with self.changed:
            if self._has_left:
                return
            self._has_left = True
            self.changed.notify_all()
        try:
            self.beat(error, leaves=True)
        except CallError:
            return  # it has ended before
        finally:
            self._connection.close()

    # Others

    def wait_for(self, condition: Callable[[], Any], seconds: float, what: str) -> None:
        """Wait until the view of the others fulfils a condition.

        Raises
        ------
        ModelError
            If the run ends early, or it takes longer; says what was waited for.
        """
        with self.changed:
            self.changed.wait_for(lambda: self.failure or condition(), seconds)
            self.check()
            if not condition():
                raise ModelError(f"{what} within {seconds:.0f} s")

    def check(self) -> None:
        """Raise an error if the run ends early."""
        if self.failure:
            raise ModelError(self.failure)

    @property
    def servers(self) -> Sequence[str]:
        """The address of each server; empty where there is none at present."""
        return tuple(self.view.servers)

    def admit(self, method: str, caller: Caller) -> None:
        """Refuse a call to this server, unless it is of a worker that the scheduler has told of.

        Raises
        ------
        CallError
            If the scheduler has not told of it yet.
        """
        tokens = self.view.workers
        known = caller.role == WORKER and caller.number < len(tokens)
        if not known or not caller.has(tokens[caller.number]):
            raise CallError(f"worker {caller.number} is not known to the scheduler", WAIT)
