"""What a process sends on its connections, written down, so that it can be sent again."""

import os
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from shardwright.runtime.encrypted import links
from shardwright.server import transport

_real = socket.create_connection


def recorded(host: str, port: int, folder: Path = Path()) -> int:
    """Return a port that leads to another one; what is sent there is written into files."""
    door = socket.create_server(("127.0.0.1", 0))
    own = int(door.getsockname()[1])
    (folder / "recorded" / f"door {own}").touch()
    threading.Thread(target=_serve, args=(door, (host, port), folder), daemon=True).start()
    return own


def _serve(door: socket.socket, target: tuple[str, int], folder: Path) -> None:
    number = 0
    while True:
        near, _ = door.accept()
        try:
            far = _real(target, 10)
        except OSError:
            near.close()
            continue
        for one in (near, far):
            one.settimeout(None)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        number += 1
        path = folder / "recorded" / f"{target[1]} {os.getpid()} {door.getsockname()[1]} {number}"
        for ends in ((near, far, path), (far, near, None)):
            threading.Thread(target=_pass, args=ends, daemon=True).start()


def _pass(source: socket.socket, target: socket.socket, path: Path | None) -> None:
    """Pass on what comes, until either end closes."""
    try:
        while data := source.recv(65536):
            if path is not None:
                with path.open("ab") as file:
                    file.write(data)
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        for one in (source, target):
            with suppress(OSError):  # it is closed already
                one.shutdown(socket.SHUT_RDWR)


class _Sockets:
    """The module of sockets, whose connections are recorded."""

    def __getattr__(self, name: str) -> Any:
        return getattr(socket, name)

    def create_connection(self, address: tuple[str, int], timeout: float) -> socket.socket:
        return _real(("127.0.0.1", recorded(*address[:2])), timeout)


def record_all() -> None:
    """Record the connections that this process makes from now on."""
    begin = transport.Connection.__init__

    def connect(self: Any, name: str, address: str, *more: Any) -> None:
        host, _, port = address.rpartition(":")
        begin(self, name, f"{host}:{recorded(host, int(port))}", *more)

    transport.Connection.__init__ = connect  # type: ignore[method-assign]
    links.socket = _Sockets()  # type: ignore[assignment]
