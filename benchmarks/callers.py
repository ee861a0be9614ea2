"""Callers that do not belong to a run, at every port of it: ``python benchmarks/callers.py``.

A training listens at some ports: its scheduler, its parameter servers, its workers. From their
first moment to their last, callers do at each of them what a stranger may think of. The training
must end as without them: with code 0, and with the losses of all steps to the bit.

Strangers of a run over TLS have no certificate, one of another authority, or that of a worker of
this run, and no token. What is replayed is what the workers have sent: all bytes of each of their
connections, again on other ones.
"""

import argparse
import os
import random
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults import ROOT, processes_in
from killed_runs import TRAINING
from machine import machine
from recording import recorded

from shardwright.server.callers import JOINS, Caller
from shardwright.server.certificates import make_certificates
from shardwright.server.messages import methods
from shardwright.server.security import PLAIN, Security, security_of
from shardwright.server.transport import grpc

EPOCHS, SLEEP = 2, 0.1  # seconds between two steps: with less, a training ends before its callers
LONGEST = 180.0  # seconds that a training may take on a busy machine
SECRET = "0123456789abcdef0123456789abcdef"
_MANY = 200  # connections, and streams of each method, that one kind of caller has at a time
_DRIP = 0.05  # seconds between two bytes of a slow stream
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"

# In a worker: connections lead through a thread that writes down what is sent on them.
RECORDING = f"""
import os, sys
sys.path.append({str(Path(__file__).parent)!r})
import recording
if os.environ["MS_ROLE"] == "MS_WORKER":
    recording.record_all()
"""
_TLS = 'config_file_path="certificates/security.json", server_password="s", client_password="c"'
_PARALLEL = "ms.set_auto_parallel_context(parallel_mode='data_parallel', gradients_mean=True)"


@dataclass(frozen=True)
class Form:
    """A kind of training.

    Parameters
    ----------
    context : str
        Lines of the script that say how it runs.
    servers : int
        Parameter servers.
    encrypted : bool
        Whether its messages are.
    calls : bool
        Whether its services are of gRPC.
    """

    context: str
    servers: int
    encrypted: bool
    calls: bool = True


FORMS = {
    "parameter servers": Form("ms.set_ps_context(enable_ps=True)", 1, False),
    "parameter servers, TLS": Form(
        f"ms.set_ps_context(enable_ps=True, enable_ssl=True, {_TLS})", 1, True
    ),
    "workers, TLS": Form(f"ms.set_ps_context(enable_ssl=True, {_TLS})\n{_PARALLEL}", 0, True),
    "workers, MPI by a scheduler": Form(_PARALLEL, 0, False, calls=False),
}


class Training:
    """A training in a folder."""

    def __init__(self, folder: Path, form: Form) -> None:
        self.folder, self.form = folder, form
        served = "net.set_param_ps()" if form.servers else ""
        code = (RECORDING if form.calls else "") + TRAINING.replace(
            "CONTEXT", form.context
        ).replace("SERVED", served)
        code = code.replace("SLEEP", str(SLEEP)).replace("EPOCHS", str(EPOCHS))
        (folder / "train.py").write_text(code)
        (folder / "recorded").mkdir()
        for name in ("certificates", "others"):
            make_certificates(folder / name, server_password="s", client_password="c")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        # MPI starts without letting other threads run: its connections are recorded here.
        self.shown = self.port if form.calls else recorded("127.0.0.1", self.port, folder)
        roles = ["MS_SCHED", *["MS_PSERVER"] * form.servers, *["MS_WORKER"] * 2]
        numbers = [0, *range(form.servers), 0, 1]
        self.processes = list(map(self._started, roles, numbers))

    def _started(self, role: str, number: int) -> "subprocess.Popen[bytes]":
        variables = {
            "MS_ROLE": role,
            "MS_NODE_ID": str(number),
            "MS_WORKER_NUM": "2",
            "MS_SERVER_NUM": str(self.form.servers),
            "MS_SCHED_HOST": "127.0.0.1",
            "MS_SCHED_PORT": str(self.shown if role == "MS_WORKER" else self.port),
            "SHARDWRIGHT_SECRET": SECRET,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
        }
        with (self.folder / f"{role}.{number}").open("w") as said:
            return subprocess.Popen(
                [sys.executable, "train.py"],
                cwd=self.folder,
                env={**os.environ, **variables},
                stdout=said,
                stderr=subprocess.STDOUT,
            )

    def security(self, authority: str = "certificates") -> Security:
        """Return the encryption of its strangers."""
        if not self.form.encrypted:
            return PLAIN
        return security_of(self.folder / authority / "security.json", "s", "c")

    def end(self) -> tuple[list[int], list[str]]:
        """Wait for the end; return the codes of all processes, and what they said."""
        deadline = time.monotonic() + LONGEST
        for process in self.processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
        for pid in processes_in(self.folder):
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
        codes = [process.wait() for process in self.processes]
        return codes, [path.read_text() for path in sorted(self.folder.glob("MS_*"))]

    def ports(self) -> set[int]:
        """Return the ports at which its processes listen; of MPI the scheduler's alone."""
        listening = {}
        tables = [Path("/proc/net", name).read_text() for name in ("tcp", "tcp6")]
        for line in "\n".join(tables).splitlines():
            words = line.split()
            if words[3:4] == ["0A"]:  # it listens
                listening[f"socket:[{words[9]}]"] = int(words[1].rpartition(":")[2], 16)
        found = set()
        for process in self.processes[: len(self.processes) if self.form.calls else 1]:
            with suppress(OSError):  # it has ended
                for one in Path(f"/proc/{process.pid}/fd").iterdir():
                    with suppress(OSError):
                        found.add(listening.get(os.readlink(one), 0))
        own = {int(path.name.split()[1]) for path in self.folder.glob("recorded/door *")}
        return found - own - {0}


# What callers do


@dataclass
class Strangers:
    """What callers do at the ports of a training, until it ends.

    Parameters
    ----------
    training : Training
        The training.
    """

    training: Training
    over: threading.Event = field(default_factory=threading.Event)
    counts: Counter[str] = field(default_factory=Counter)
    threads: list[threading.Thread] = field(default_factory=list)

    def start(self, act: "Act") -> None:
        """Let callers act at every port from the moment at which it is there."""

        def look() -> None:
            known = set[int]()
            while not self.over.wait(0.05):
                for port in self.training.ports() - known:
                    known.add(port)
                    self.begin(self._until_over, act, port)

        self.begin(look)

    def begin(self, work: Callable[..., Any], *arguments: Any) -> None:
        """Do something in a thread."""
        self.threads.append(threading.Thread(target=work, args=arguments, daemon=True))
        self.threads[-1].start()

    def _until_over(self, act: "Act", port: int) -> None:
        while not self.over.is_set():
            with suppress(OSError, ValueError, grpc().RpcError):
                act(self, port)
            self.over.wait(0.02)

    def connected(self, port: int) -> socket.socket:
        """Return a new connection."""
        self.counts["connections"] += 1
        return socket.create_connection(("127.0.0.1", port), 5)

    def end(self) -> None:
        """End all callers."""
        self.over.set()
        for thread in self.threads:
            thread.join(10)


Act = Callable[[Strangers, int], None]


def _callers() -> Iterator[Caller]:
    """Yield callers without a token."""
    yield Caller("", 0, "")
    yield Caller("MS_WORKER", 0, "1")
    yield Caller("MS_PSERVER", 0, f"{random.getrandbits(63):x}")
    yield Caller(JOINS, 1, "0" * 64)
    yield Caller.joining(b"another secret, not of this run")


def _channels(strangers: Strangers, port: int) -> list[Any]:
    """Return channels to a port: with the certificate of a worker, and with another one."""
    address = f"127.0.0.1:{port}"
    training = strangers.training
    if not training.form.encrypted:
        return [grpc().insecure_channel(address)]
    secured = []
    for folder in ("certificates", "others"):
        own = training.security(folder).connection
        authority = training.security().authority
        credentials = grpc().ssl_channel_credentials(authority, *own)
        secured.append(grpc().secure_channel(address, credentials))
    return secured


def no_token(strangers: Strangers, port: int) -> None:
    """Call every method without a token of the run."""
    if not strangers.training.form.calls:
        with strangers.connected(port) as line:
            line.recv(64)
            line.sendall(b"cmd=abort rank=0\n" * 3)
            line.recv(64)
        return
    for channel in _channels(strangers, port):
        with channel:
            for service in ("Scheduler", "ParameterServer"):
                for method in methods(service).values():
                    for caller in _callers():
                        if strangers.over.is_set():
                            return
                        answered = _called(channel, method, caller)
                        strangers.counts["calls"] += 1
                        strangers.counts["answered"] += answered


def _called(channel: Any, method: Any, caller: Caller) -> bool:
    """Call a method; return whether it was answered."""
    call = getattr(channel, method.kind)(method.path)
    data = bytes(random.randrange(256) for _ in range(random.randrange(40)))
    request = iter([data]) if method.streams_requests else data
    try:
        answer = call(request, timeout=2.0, metadata=caller.metadata)
        list(answer) if method.streams_responses else answer
    except grpc().RpcError:
        return False
    return True


def flood_of_connections(strangers: Strangers, port: int) -> None:
    """Open many connections at a time, which send nothing."""
    held = []
    try:
        while len(held) < _MANY and not strangers.over.is_set():
            held.append(strangers.connected(port))
        strangers.over.wait(0.5)
    finally:
        for one in held:
            one.close()


def flood_of_streams(strangers: Strangers, port: int) -> None:
    """Open many streams of every method, which send nothing, with and without a certificate."""
    if not strangers.training.form.calls:
        flood_of_connections(strangers, port)
        return
    calls = []
    for channel in _channels(strangers, port):
        with channel:
            for service in ("Scheduler", "ParameterServer"):
                for method in methods(service).values():
                    kind = "stream" if method.streams_responses else "unary"
                    call = getattr(channel, f"stream_{kind}")(method.path)
                    call = call if method.streams_responses else call.future
                    for caller in _callers():
                        silent = iter(strangers.over.is_set, True)
                        slow = (b"" for _ in silent if not strangers.over.wait(5))
                        made = call(slow, timeout=5.0, metadata=caller.metadata)
                        calls.append(made)
                        strangers.counts["calls"] += 1
            strangers.over.wait(1)
            for one in calls:
                one.cancel()


def slow_streams(strangers: Strangers, port: int) -> None:
    """Send what a process would send, a byte at a time, on many connections."""
    training = strangers.training
    what = _hello() if training.form.encrypted else _PREFACE + bytes(1000)
    what = what if training.form.calls else b"0" * 250
    lines = [strangers.connected(port) for _ in range(_MANY)]
    if training.form.encrypted:  # and behind the handshake, with the certificate of a worker
        lines += [_secured(training, strangers.connected(port)) for _ in range(8)]
    try:
        for at in range(len(what)):
            for line in lines:
                data = _PREFACE + bytes(1000) if isinstance(line, ssl.SSLSocket) else what
                with suppress(OSError):  # it is closed
                    line.send(data[at : at + 1])
            strangers.counts["bytes"] += len(lines)
            if strangers.over.wait(_DRIP):
                return
    finally:
        for line in lines:
            line.close()


def _secured(training: Training, line: socket.socket) -> ssl.SSLSocket:
    context = training.security().of_sockets()[1]
    context.set_alpn_protocols(["h2"])
    return context.wrap_socket(line, server_hostname="127.0.0.1")


def _hello() -> bytes:
    """Return what a client of TLS sends first."""
    out = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), out, server_hostname="a.b")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return out.read()


def wrong_versions(strangers: Strangers, port: int) -> None:
    """Speak old versions of TLS and HTTP, other protocols, and noise."""
    for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_3):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = version
        with suppress(OSError), strangers.connected(port) as line:
            context.wrap_socket(line, server_hostname="127.0.0.1").send(_PREFACE)
    texts = (
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"PRI * HTTP/9.0\r\n\r\nSM\r\n\r\n",
        b"cmd=init pmi_version=99 pmi_subversion=7\ncmd=join rank=0 size=2\n",
        b"SSH-2.0-OpenSSH_9.9\r\n",
        _PREFACE + b"\xff\xff\xff\xff" * 100,
        random.randbytes(5000),
    )
    for text in texts:
        with suppress(OSError), strangers.connected(port) as line:
            line.settimeout(0.5)
            line.sendall(text)
            line.recv(4096)


def replays(strangers: Strangers, port: int) -> None:
    """Send once more what workers have sent to this port, connection by connection."""
    folder = strangers.training.folder / "recorded"
    for path in sorted(folder.glob(f"{port} *")):
        with suppress(OSError), strangers.connected(port) as line:
            line.settimeout(0.3)
            data = path.read_bytes()
            strangers.counts["bytes"] += len(data)
            line.sendall(data)
            line.recv(65536)
        if strangers.over.is_set():
            return


ACTS: dict[str, Act] = {
    "no token": no_token,
    "flood of connections": flood_of_connections,
    "flood of streams": flood_of_streams,
    "slow streams": slow_streams,
    "wrong versions": wrong_versions,
    "replays": replays,
}


# Trials


@dataclass
class Result:
    """How a training ended."""

    form: str
    act: str
    right: bool
    seconds: float
    steps: int
    counts: Counter[str]
    said: str = ""

    @property
    def row(self) -> str:
        """Its line of the table."""
        numbers = [self.counts[name] for name in ("connections", "calls", "answered", "bytes")]
        cells = [self.form, self.act, "yes" if self.right else "NO", f"{self.steps}"]
        cells += [f"{number:,}" for number in numbers]
        return f"| {' | '.join(cells)} | {self.seconds:.0f} |"


def trial(name: str, act: str, expected: Sequence[str] | None) -> tuple[Result, list[str]]:
    """Train while callers act; return how it ended, and the lines that tell losses."""
    with tempfile.TemporaryDirectory() as place:
        begin = time.monotonic()
        training = Training(Path(place), FORMS[name])
        strangers = Strangers(training)
        if act in ACTS:
            strangers.start(ACTS[act])
        codes, said = training.end()
        strangers.end()
        seconds = time.monotonic() - begin
    lines = [line for text in said for line in text.splitlines() if line.startswith("step ")]
    right = not any(codes) and len(lines) > 0 and (expected is None or lines == expected)
    told = "" if right else f"codes {codes}: {' '.join(' '.join(said).split())[-1500:]}"
    return Result(name, act, right, seconds, len(lines), strangers.counts, told), lines


def main() -> None:
    """Run all trials, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--form", choices=FORMS, help="of this form alone; writes no page")
    parser.add_argument("--act", choices=ACTS, help="with these callers alone; writes no page")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    arguments = parser.parse_args()
    random.seed(0)
    warnings.simplefilter("ignore", DeprecationWarning)  # old versions of TLS are asked for
    results = []
    for name in [arguments.form] if arguments.form else FORMS:
        unbroken, expected = trial(name, "nobody", None)
        results.append(unbroken)
        print(unbroken.row, unbroken.said, flush=True)
        for act in [arguments.act] if arguments.act else ACTS:
            result, _ = trial(name, act, expected)
            results.append(result)
            print(result.row, result.said, flush=True)
    if not arguments.form and not arguments.act:
        arguments.out.write_text(page(results))
    sys.exit(not all(result.right for result in results))


def page(results: Sequence[Result]) -> str:
    """Return the page of results."""
    text = f"# Callers of no run\n\n{(__doc__ or '').split(chr(10), 2)[2].strip()}\n\n"
    right = sum(result.right for result in results)
    steps = results[0].steps if results else 0
    text += f"{right} of {len(results)} trainings of {steps // 2} steps of two workers end right. "
    text += f"On {machine()}.\n\n"
    heads = ("training", "callers", "right", "losses equal", "connections", "calls", "answered")
    heads = (*heads, "bytes", "seconds")
    text += f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}\n"
    return text + "\n".join(result.row for result in results) + "\n"


if __name__ == "__main__":
    main()
