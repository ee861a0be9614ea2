"""The scheduler of workers that are started one by one."""

import re
import socket
import threading
import time
from contextlib import ExitStack, suppress

import pytest

from shardwright.communication.rendezvous import Meeting, Scheduler
from shardwright.communication.secret import introduce, secret_at
from shardwright.ir.errors import ModelError
from shardwright.runtime.encrypted import door


class _Line:
    """A connection to a scheduler that sends and reads lines."""

    def __init__(self, port: int, secret: bytes | None = b"") -> None:
        deadline = time.monotonic() + 10
        while True:
            try:
                self.connection = socket.create_connection(("127.0.0.1", port), 10)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        if secret is not None:
            try:
                introduce(self.connection, secret)
            except ModelError:
                self.connection.close()
                raise
        self.answers = self.connection.makefile("r")

    def __enter__(self) -> "_Line":
        return self

    def __exit__(self, *_: object) -> None:
        self.answers.close()
        self.connection.close()

    def ask(self, line: str) -> str:
        """Send a line, and return the answer."""
        self.connection.sendall(f"{line}\n".encode())
        return self.answers.readline()


class _Served:
    """A scheduler that serves one worker in a thread."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.said: list[str] = []
        self.secret = b""
        scheduler = Scheduler(Meeting("127.0.0.1", self.port, 1), self.said.append)
        self.code: list[int] = []
        self.thread = threading.Thread(
            target=lambda: self.code.append(scheduler.serve()), daemon=True
        )
        self.thread.start()

    def whole_run(self) -> str:
        """Join, ask for the name of the values, and finish; return the name."""
        with _Line(self.port, self.secret) as worker, _Line(self.port, self.secret) as mpi:
            assert worker.ask("cmd=join rank=-1 size=1") == "cmd=joined rank=0\n"
            mpi.connection.sendall(b"cmd=mpi rank=0\n")
            answer = mpi.ask("cmd=get_my_kvsname")
            assert mpi.ask("cmd=finalize") == "cmd=finalize_ack rc=0\n"
            self.thread.join(10)
        assert self.code == [0]
        found = re.fullmatch(r"cmd=my_kvsname kvsname=(\S+) rc=0\n", answer)
        assert found, answer
        return found[1]


def test_every_run_has_a_name_of_its_own() -> None:
    assert _Served().whole_run() != _Served().whole_run()


@pytest.mark.parametrize(
    "line",
    [
        b"cmd=join rank=none size=1\n",
        b"cmd=join\n",
        b"cmd=mpi\n",
        b"cmd=finalize\n",
        b"cmd=abort\n",
        b"cmd=put key=a\n",
        b"cmd=get\n",
        b"\xff\xfe\x00\n",
        b"x" * 100_000,
    ],
)
def test_a_stranger_does_not_end_a_run(line: bytes) -> None:
    served = _Served()
    with _Line(served.port, None) as stranger, suppress(OSError):  # closed before it has read all
        stranger.connection.sendall(line)
        stranger.connection.shutdown(socket.SHUT_WR)
        assert len(stranger.answers.read()) < 1000
    served.whole_run()


SECRET = "0123456789abcdef"


def test_a_caller_without_the_secret_is_refused_and_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHARDWRIGHT_SECRET", SECRET)
    served = _Served()
    with pytest.raises(ModelError, match="knows another secret than this process"):
        _Line(served.port, b"another")
    with _Line(served.port, None) as stranger:
        stranger.answers.readline()  # the number that the scheduler has drawn
        assert stranger.ask("cmd=abort rank=0") == "refused\n"
    served.secret = SECRET.encode()
    served.whole_run()
    assert "scheduler: a caller is refused: it does not know the secret of this run" in served.said


@pytest.mark.parametrize("slow", [False, True])
def test_silent_and_slow_callers_keep_nobody_out(slow: bool) -> None:
    served = _Served()
    with _Line(served.port, None) as first, ExitStack() as held:
        first.answers.readline()
        address = "127.0.0.1", served.port
        strangers = [held.enter_context(socket.create_connection(address)) for _ in range(80)]
        if slow:
            end = threading.Event()
            threading.Thread(target=_drip, args=(strangers, end), daemon=True).start()
            held.callback(end.set)
        served.whole_run()


def _drip(strangers: list[socket.socket], end: threading.Event) -> None:
    """Send a byte on each connection at times."""
    while not end.wait(0.1):
        for stranger in strangers:
            with suppress(OSError):  # it has been closed
                stranger.send(b"0")


def test_a_slow_caller_is_closed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "ANSWER", 0.5)
    served = _Served()
    with _Line(served.port, None) as stranger, ExitStack() as held:
        end = threading.Event()
        threading.Thread(target=_drip, args=([stranger.connection], end), daemon=True).start()
        held.callback(end.set)
        begin = time.monotonic()
        with suppress(ConnectionError):  # it is closed while a byte is on its way
            while stranger.connection.recv(4096):
                pass
        assert time.monotonic() - begin < 5
        served.whole_run()


@pytest.mark.parametrize(
    ("host", "secret", "what"),
    [
        ("127.0.0.1", "", None),
        ("localhost", "", None),
        ("::1", "", None),
        ("10.1.2.3", SECRET, None),
        ("10.1.2.3", "", "is missing, by which the scheduler at 10.1.2.3 knows the workers"),
        ("0.0.0.0", "", "is missing"),
        ("127.0.0.1", "short", "has 5 characters, expected at least 16"),
    ],
)
def test_addresses_that_other_hosts_reach_need_a_secret(
    host: str, secret: str, what: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDWRIGHT_SECRET", secret)
    if what is None:
        assert secret_at(host) == secret.encode()
    else:
        with pytest.raises(ModelError, match=what):
            secret_at(host)
