"""Who calls a service: told before the first message, so that a stranger gets nothing to hold.

A member tells its role, its number and the token that the scheduler gave it. A process that has
none yet proves that it knows the secret of the run, where there is one.
"""

import hmac
import re
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

_KEY: Final = "shardwright-caller"
_TEXT: Final = re.compile(r"(\w{1,16}) (\d{1,9}) ([0-9a-f]{1,64})", re.ASCII)
JOINS: Final = "joins"
"""The role of a process that has no place yet."""


@dataclass(frozen=True)
class Caller:
    """A process that calls.

    Parameters
    ----------
    role : str
        Its role: that of a member, or `JOINS`.
    number : int
        Its number among the members of its role; what it has drawn, where it joins.
    proof : str
        Its token, in hexadecimal digits; where it joins the code of its number by the secret.
    """

    role: str
    number: int
    proof: str

    @staticmethod
    def member(role: str, number: int, token: int) -> "Caller":
        """Return a member, by its token."""
        return Caller(role, number, f"{token:x}")

    @staticmethod
    def joining(secret: bytes) -> "Caller":
        """Return a process that joins, and knows the secret."""
        drawn = secrets.randbelow(10**9)
        return Caller(JOINS, drawn, _code(secret, drawn))

    def knows(self, secret: bytes) -> bool:
        """Return whether a process that joins knows the secret."""
        return hmac.compare_digest(self.proof, _code(secret, self.number))

    def has(self, token: int) -> bool:
        """Return whether a member has a token; 0 is nobody's."""
        return bool(token) and hmac.compare_digest(self.proof, f"{token:x}")

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What stands before the messages of its calls."""
        return ((_KEY, f"{self.role} {self.number} {self.proof}"),)

    @staticmethod
    def of_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> "Caller | None":
        """Return who calls; None where the metadata does not say it."""
        told = next((value for key, value in metadata if key == _KEY), "")
        found = _TEXT.fullmatch(told) if isinstance(told, str) else None
        return None if found is None else Caller(found[1], int(found[2]), found[3])


def _code(secret: bytes, drawn: int) -> str:
    return hmac.digest(secret, f"{JOINS} {drawn}".encode(), "sha256").hex()


class TooManyCallsError(Exception):
    """A caller has as many calls at the same time as it may have."""


class Quotas:
    """How many calls each caller has at the same time.

    All processes that join are one caller: a flood of them leaves the calls of members alone.

    Parameters
    ----------
    most : callable
        The calls that a role may have.
    """

    def __init__(self, most: Callable[[str], int]) -> None:
        self._most = most
        self._calls: Counter[tuple[str, int]] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def one_more(self, caller: Caller) -> Iterator[Caller]:
        """Count a call while it lasts, and return who calls.

        Raises
        ------
        TooManyCallsError
            If it is one too many.
        """
        key = (caller.role, 0 if caller.role == JOINS else caller.number)
        with self._lock:
            if self._calls[key] >= self._most(caller.role):
                raise TooManyCallsError
            self._calls[key] += 1
        try:
            yield caller
        finally:
            with self._lock:
                self._calls[key] -= 1
