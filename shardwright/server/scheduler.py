"""The scheduler: members join it, get their numbers, and learn of each other."""

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shardwright.server.callers import JOINS, Caller
from shardwright.server.messages import message
from shardwright.server.transport import LATE, STRANGER, WAIT, CallError, Handler

SERVER, WORKER = "MS_PSERVER", "MS_WORKER"
_WORDS = {SERVER: "server", WORKER: "worker"}


@dataclass
class _Seat:
    """The place of one member: who holds it, and when it was heard last."""

    token: int = 0
    address: str = ""
    heard: float = 0.0
    has_left: bool = False


@dataclass
class Members:
    """The servers and workers of a run.

    Parameters
    ----------
    servers, workers : int
        How many there are.
    synchronous : bool
        Whether the run ends when a worker is lost.
    recovers : bool
        Whether servers come back from checkpoints.
    silence : float
        Seconds without a sign after which a member is lost.
    log : callable
        Writes a line.
    secret : bytes
        What processes that join have to know; empty where all may.
    """

    servers: int
    workers: int
    synchronous: bool
    recovers: bool
    silence: float
    log: Callable[[str], None]
    secret: bytes = b""
    run: int = field(default_factory=lambda: secrets.randbits(63))
    failure: str = ""

    def __post_init__(self) -> None:
        counts = {SERVER: self.servers, WORKER: self.workers}
        self._seats = {role: [_Seat() for _ in range(n)] for role, n in counts.items()}
        self._lost: dict[str, dict[int, str]] = {SERVER: {}, WORKER: {}}
        self._places: dict[str, Any] = {}
        self._ready = False
        self.changed = threading.Condition()

    @property
    def handlers(self) -> dict[str, Handler]:
        """The handlers of the methods."""
        return {"Join": self.join, "Beat": self.beat}

    def admit(self, method: str, caller: Caller) -> None:
        """Refuse a call, unless the caller has a place, or joins and knows the secret.

        Raises
        ------
        CallError
            If it is refused.
        """
        if method == "Join":
            if caller.role != JOINS or (self.secret and not caller.knows(self.secret)):
                raise CallError("this process does not know the secret of the run", STRANGER)
            return
        seats = self._seats.get(caller.role, [])
        if caller.number >= len(seats) or not caller.has(seats[caller.number].token):
            raise CallError("another process has the place of this one", STRANGER)

    # Calls

    def join(self, member: Any, seconds: float, caller: Caller) -> Any:
        """Give a member a place; the same one where the call comes again.

        It does where its answer was lost, and where somebody who has heard it sends it once more.
        """
        if member.role not in _WORDS:
            raise CallError(f"`{member.role[:40]}` is no role of a member", STRANGER)
        if (member.servers, member.workers) != (self.servers, self.workers):
            raise CallError(
                f"a {_WORDS[member.role]} expects {member.servers} servers and {member.workers} "
                f"workers, the scheduler {self.servers} and {self.workers}"
            )
        with self.changed:
            if caller.proof in self._places:
                return self._places[caller.proof]
            number = self._free(member.role, member.number)
            seat = _Seat(secrets.randbits(63) | 1, member.address[:200], time.monotonic())
            self._seats[member.role][number] = seat
            self._lost[member.role].pop(number, None)
            where = f" at {seat.address}" if seat.address else ""
            self.log(f"the {_WORDS[member.role]} {number}{where} has joined")
            if not self._ready and all(s.token for row in self._seats.values() for s in row):
                self._ready = True
                self.log(f"all {self.servers} servers and {self.workers} workers have joined")
            self.changed.notify_all()
            place = message("Place", number=number, token=seat.token, run=self.run)
            self._places[caller.proof] = place
            return place

    def _free(self, role: str, asked: int) -> int:
        """Return the number of a place that nobody has."""
        seats = self._seats[role]
        if self.failure:
            raise CallError(self.failure, LATE)
        if asked >= len(seats):
            raise CallError(f"{_WORDS[role]} {asked} of {len(seats)}", STRANGER)
        for number in range(len(seats)) if asked < 0 else (asked,):
            if not seats[number].token or number in self._lost[role]:
                return number
        if asked >= 0 and time.monotonic() - seats[asked].heard > self.silence / 5:
            return asked  # started again before it was missed
        raise CallError(f"there is no place for a {_WORDS[role]}", WAIT)

    def beat(self, sign: Any, seconds: float, caller: Caller) -> Any:
        """Note that a member lives, and tell it of the others."""
        role, number = caller.role, caller.number
        with self.changed:
            seat = self._seats[role][number]
            seat.heard = time.monotonic()
            if sign.error:
                self._lose(role, number, sign.error[:500])
            elif sign.leaves and not seat.has_left:
                seat.has_left = True
                self.log(f"the {_WORDS[role]} {number} has ended")
            self._look()
            self.changed.notify_all()
            return self._view(role)

    def _view(self, role: str) -> Any:
        servers = self._seats[SERVER]
        lost = self._lost[SERVER]
        return message(
            "View",
            ready=self._ready,
            servers=["" if i in lost else seat.address for i, seat in enumerate(servers)],
            workers=[seat.token for seat in self._seats[WORKER]] if role == SERVER else [],
            peers=[] if self.servers else [seat.address for seat in self._seats[WORKER]],
            gone=self._gone,
            ended=self.workers_ended,
            failure=self.failure,
        )

    # Who is lost

    @property
    def _gone(self) -> list[int]:
        """The workers that have left or are lost."""
        lost = self._lost[WORKER]
        return [i for i, s in enumerate(self._seats[WORKER]) if s.has_left or i in lost]

    @property
    def workers_ended(self) -> bool:
        """Whether every worker has left or is lost."""
        return len(self._gone) == self.workers

    @property
    def is_ready(self) -> bool:
        """Whether all members have joined."""
        return self._ready

    def fail(self, why: str) -> None:
        """End the run early."""
        with self.changed:
            self.failure = self.failure or why
            self.log(why)

    @property
    def servers_ended(self) -> bool:
        """Whether every server has left or is lost."""
        seats, lost = self._seats[SERVER], self._lost[SERVER]
        return all(seat.has_left or i in lost for i, seat in enumerate(seats))

    def lose(self, role: str, number: int, why: str) -> None:
        """Note that a member has died, unless it has told its end itself."""
        with self.changed:
            if number not in self._lost[role] and not self._seats[role][number].has_left:
                self._lose(role, number, why)
            self.changed.notify_all()

    def look(self) -> None:
        """Look for members that have not been heard for too long."""
        with self.changed:
            self._look()
            self.changed.notify_all()

    def _look(self) -> None:
        now = time.monotonic()
        for role, seats in self._seats.items():
            for number, seat in enumerate(seats):
                silent = seat.token and not seat.has_left and now - seat.heard > self.silence
                if silent and number not in self._lost[role]:
                    self._lose(role, number, f"it was not heard for {self.silence:.0f} s")

    def _lose(self, role: str, number: int, why: str) -> None:
        self._lost[role][number] = why
        what = f"the {_WORDS[role]} {number} has ended early: {why}"
        self.log(what)
        alone = len(self._lost[WORKER]) == self.workers
        if not self.failure and (
            (role == WORKER and (self.synchronous or alone))
            or (role == SERVER and not self.recovers)
        ):
            self.failure = what
