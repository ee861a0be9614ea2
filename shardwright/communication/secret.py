"""Both ends of a connection prove that they know a secret, which is not sent.

Each end sends a number that it has drawn, and the code of both numbers by the secret (HMAC with
SHA-256, RFC 2104). What is sent afterwards is neither encrypted nor signed.
"""

import hmac
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Final

from shardwright.ir.errors import ModelError
from shardwright.ir.files.waiting import ANSWER

SECRET_VARIABLE: Final = "SHARDWRIGHT_SECRET"
_LEAST: Final = 16  # characters of a secret: 64 random bits in hexadecimal digits
LINE: Final = 4096  # greatest length of a line that is exchanged, in bytes


class UnknownCallerError(Exception):
    """The other end does not know the secret, or has not answered in time."""


def secret_at(host: str) -> bytes:
    """Return the secret of all processes that meet at an address, of the environment.

    Raises
    ------
    ModelError
        If it is short; or missing, and processes of other hosts can reach the address.
    """
    text = os.environ.get(SECRET_VARIABLE, "")
    hint = f"give all processes the same text, of `openssl rand -hex 16`, in `{SECRET_VARIABLE}`"
    if text and len(text) < _LEAST:
        raise ModelError(
            f"the variable `{SECRET_VARIABLE}` has {len(text)} characters, expected at least "
            f"{_LEAST}",
            hint=hint,
        )
    if not text and not _is_own(host):
        raise ModelError(
            f"the variable `{SECRET_VARIABLE}` is missing, by which the scheduler at {host} knows "
            "the workers of this run",
            hint=hint,
        )
    return text.encode()


def _is_own(host: str) -> bool:
    """Return whether only processes of this host reach an address."""
    try:
        found = {str(item[4][0]) for item in socket.getaddrinfo(host, None)}
    except OSError:  # told where it is connected to
        return True
    return all(ip_address(address.partition("%")[0]).is_loopback for address in found)


def check_caller(connection: socket.socket, secret: bytes) -> None:
    """Let the caller at the other end prove that it knows the secret, and prove it to it.

    Raises
    ------
    UnknownCallerError
        If it does not.
    """
    with _in_time(connection):
        own = secrets.token_hex(16)
        connection.sendall(f"{own}\n".encode())
        other, _, proof = _line(connection).partition(" ")
        if not hmac.compare_digest(proof.encode(), _code(secret, "caller", own, other)):
            connection.sendall(b"refused\n")
            raise UnknownCallerError("it does not know the secret of this run")
        connection.sendall(_code(secret, "called", own, other) + b"\n")


def introduce(connection: socket.socket, secret: bytes) -> None:
    """Prove to the called end that this one knows the secret, and let it prove the same.

    Raises
    ------
    ModelError
        If the two know different ones.
    UnknownCallerError
        If the other end does not answer.
    """
    with _in_time(connection):
        other, own = _line(connection), secrets.token_hex(16)
        connection.sendall(own.encode() + b" " + _code(secret, "caller", other, own) + b"\n")
        proof = _line(connection)
        if not hmac.compare_digest(proof.encode(), _code(secret, "called", other, own)):
            host, port = connection.getpeername()[:2]
            raise ModelError(
                f"the scheduler at {host}:{port} knows another secret than this process",
                hint=f"give all processes of a run the same `{SECRET_VARIABLE}`",
            )


def _code(secret: bytes, side: str, called: str, caller: str) -> bytes:
    return hmac.digest(secret, f"{side} {called} {caller}".encode(), "sha256").hex().encode()


@contextmanager
def _in_time(connection: socket.socket) -> Iterator[None]:
    """Limit how long the other end may take."""
    before = connection.gettimeout()
    connection.settimeout(ANSWER)
    try:
        yield
    except OSError as error:
        raise UnknownCallerError(str(error)) from None
    connection.settimeout(before)


def _line(connection: socket.socket) -> str:
    """Return the next line, and read nothing behind it."""
    found = bytearray()
    while len(found) < LINE:
        byte = connection.recv(1)
        if not byte:
            raise UnknownCallerError("the connection is closed")
        if byte == b"\n":
            return found.decode(errors="replace")
        found += byte
    raise UnknownCallerError("what it sent is no answer")
