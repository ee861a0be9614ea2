"""Parameter servers: bytes a second beside a bare gRPC stream, tables by rows, hostile messages.

python benchmarks/parameter_server.py throughput --megabytes 1024 --tls
python benchmarks/parameter_server.py rows --rows 10000000 --share 0.01
python benchmarks/parameter_server.py hostile

Seconds are of the clock and of the processors (of the worker and the server together), since the
machine may be busy; every ratio is of one run.
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

import numpy as np

from shardwright.ir.types import TensorType
from shardwright.server.callers import Caller
from shardwright.server.certificates import make_certificates, self_signed
from shardwright.server.client import Client
from shardwright.server.member import Member
from shardwright.server.messages import message
from shardwright.server.scheduler import WORKER
from shardwright.server.security import PLAIN, Security, security_of
from shardwright.server.store import Task
from shardwright.server.tables import Table
from shardwright.server.transport import PIECE_BYTES, CallError, Connection, grpc

ROOT = Path(__file__).parents[1]
SERVE = """
import sys
from shardwright.server import set_ps_context, take_part
set_ps_context(enable_ps=True, heartbeat_timeout=300.0, **eval(sys.argv[1]))
take_part()
"""
BARE = """
import sys
from concurrent.futures import ThreadPoolExecutor
import grpc
size, count, port = map(int, sys.argv[1:4])
data = bytes(size)
def upload(pieces, context):
    return str(sum(map(len, pieces))).encode()
def download(request, context):
    for _ in range(count):
        yield data
class Handlers(grpc.GenericRpcHandler):
    def service(self, call):
        if call.method == "/bare/upload":
            return grpc.stream_unary_rpc_method_handler(upload)
        return grpc.unary_stream_rpc_method_handler(download)
options = (("grpc.max_receive_message_length", 2**22), ("grpc.max_send_message_length", 2**22))
server = grpc.server(ThreadPoolExecutor(4), options=options)
server.add_generic_rpc_handlers((Handlers(),))
if len(sys.argv) > 4:
    key, chain, root = (open(path, "rb").read() for path in sys.argv[4:7])
    credentials = grpc.ssl_server_credentials([(key, chain)], root, True)
    server.add_secure_port(f"127.0.0.1:{port}", credentials)
else:
    server.add_insecure_port(f"127.0.0.1:{port}")
server.start()
server.wait_for_termination()
"""


class Clock:
    """Seconds of the clock, and of the processors of this process and some others."""

    def __init__(self, *pids: int) -> None:
        self.pids = pids
        self.begin = self._now()

    def _now(self) -> np.ndarray:
        own = getrusage(RUSAGE_SELF)
        busy = own.ru_utime + own.ru_stime
        for pid in self.pids:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            busy += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return np.array([time.perf_counter(), busy])

    def seconds(self) -> tuple[float, float]:
        """Return the seconds since the beginning, and begin again."""
        before, self.begin = self.begin, self._now()
        wall, busy = self.begin - before
        return float(wall), float(busy)


def memory(pid: int) -> float:
    """Return the megabytes of memory that a process has in use."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 2**20


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def run_of(
    servers: int, how: dict[str, Any], security: Security
) -> Iterator[tuple[Any, list[int]]]:
    """Start a scheduler and servers; yield the member of the one worker, and their processes."""
    port, common = free_port(), {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    variables = {
        "MS_SCHED_HOST": "127.0.0.1",
        "MS_SCHED_PORT": str(port),
        "MS_SERVER_NUM": str(servers),
        "MS_WORKER_NUM": "1",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SERVE, repr(how)],
            env={**os.environ, **common, **variables, "MS_ROLE": role},
            stdout=subprocess.DEVNULL,
        )
        for role in ("MS_SCHED", *["MS_PSERVER"] * servers)
    ]
    member = Member(WORKER, f"127.0.0.1:{port}", servers, 1, security, silence=300.0)
    try:
        yield member, [process.pid for process in processes[1:]]
    finally:
        member.leave()
        for process in processes:
            process.wait(60)


@contextmanager
def certificates(wanted: bool) -> Iterator[tuple[dict[str, Any], Security]]:
    """Yield the settings and the encryption of a run, with new certificates where wanted."""
    if not wanted:
        yield {}, PLAIN
        return
    with tempfile.TemporaryDirectory() as folder:
        make_certificates(Path(folder) / "tls")
        path = str(Path(folder) / "tls" / "security.json")
        yield {"enable_ssl": True, "config_file_path": path}, security_of(path, "", "")


# Throughput


def throughput(arguments: argparse.Namespace) -> None:
    """Push and pull large tables, and send as many bytes over a bare stream."""
    rows = arguments.megabytes * 2**20 // (4 * 1024)
    sgd = (("learning_rate", 0.1),)
    table = Table("w", TensorType("float32", (rows, 1024)), "zeros", "sgd_update", sgd)
    gradient = np.ones((rows, 1024), np.float32)
    with certificates(arguments.tls) as (how, security):
        bare = bare_stream(arguments.megabytes, security)
        with run_of(1, how, security) as (member, (pid,)):
            client = Client(member, Task((table,), 1, True, 0), security, lambda _: gradient)
            clock, rates, values = Clock(pid), [], None
            for step in range(arguments.steps):
                clock.seconds()
                values = client.pull([0], values)
                pulled = clock.seconds()
                client.push({0: gradient}, {})
                rates.append((pulled, clock.seconds()))
                assert np.isclose(values[0][0, 0], -0.1 * step, atol=1e-5)
            client.close()
            used = memory(pid)
    how_encrypted = ", TLS" if arguments.tls else ""
    print(f"{arguments.megabytes} MiB{how_encrypted}; the server has {used:.0f} MiB")
    for number, name in enumerate(("pull", "push")):
        wall, busy = np.min([rate[number] for rate in rates], 0)
        bare_wall, bare_busy = bare[number]
        print(
            f"{name}: {arguments.megabytes / wall:,.0f} MiB/s, {busy:.2f} CPU s; "
            f"bare stream {arguments.megabytes / bare_wall:,.0f} MiB/s, {bare_busy:.2f} CPU s; "
            f"ratio {bare_wall / wall:.2f} of the clock, {bare_busy / busy:.2f} of the processors"
        )


def bare_stream(megabytes: int, security: Security) -> list[np.ndarray]:
    """Return the best seconds of a download and an upload of as many bytes, over gRPC alone."""
    port, count = free_port(), megabytes * 2**20 // PIECE_BYTES
    with tempfile.TemporaryDirectory() as folder:
        files = []
        if security.is_on:
            for i, data in enumerate((*security.service, security.authority)):
                files.append(str(Path(folder) / str(i)))
                Path(files[-1]).write_bytes(data)
        command = [sys.executable, "-c", BARE, str(PIECE_BYTES), str(count), str(port), *files]
        process = subprocess.Popen(command)
        options = (("grpc.max_receive_message_length", 2**22),)
        address = f"127.0.0.1:{port}"
        module = grpc()
        if security.is_on:
            channel = module.secure_channel(address, security.of_connections(), options)
        else:
            channel = module.insecure_channel(address, options)
        try:
            module.channel_ready_future(channel).result(60)
            data = bytes(PIECE_BYTES)
            download, upload = (
                channel.unary_stream("/bare/download"),
                channel.stream_unary("/bare/upload"),
            )
            clock, found = Clock(process.pid), []
            for _ in range(3):
                clock.seconds()
                assert sum(map(len, download(b""))) == count * PIECE_BYTES
                down = clock.seconds()
                assert int(upload(data for _ in range(count))) == count * PIECE_BYTES
                found.append((down, clock.seconds()))
        finally:
            channel.close()
            process.terminate()
            process.wait()
    return [np.min([item[i] for item in found], 0) for i in range(2)]


# Tables by rows


def rows(arguments: argparse.Namespace) -> None:
    """Pull and push a share of the rows of a large table, for some rules and caches."""
    count = int(arguments.rows * arguments.share)
    random = np.random.default_rng(0)
    kind = TensorType("float32", (arguments.rows, arguments.width))
    for name, update, settings, states in RULES:
        if arguments.rule not in (name, "all"):
            continue
        table = Table(
            "t", kind, "normal", update, settings, states, by_rows=True, hashed=arguments.hashed
        )
        for cached in (0, count):
            with run_of(arguments.servers, {}, PLAIN) as (member, pids):
                client = Client(member, Task((table,), 1, True, 0), PLAIN, lambda _: None, cached)
                clock, found = Clock(*pids), []
                for _ in range(arguments.steps):
                    ids = np.unique(random.zipf(1.2, count * 4) % arguments.rows)[:count]
                    fresh = random.choice(arguments.rows, count - len(ids), replace=False)
                    ids = np.union1d(ids, fresh)
                    gradient = np.ones((len(ids), arguments.width), np.float32)
                    clock.seconds()
                    client.pull_rows(0, ids)
                    pulled = clock.seconds()
                    client.push({}, {0: (ids, gradient)})
                    found.append((pulled, clock.seconds()))
                client.close()
                used = sum(map(memory, pids))
            pull, push = np.median(found, 0)
            print(
                f"{name}, cache of {cached:,}: {len(ids):,} of {arguments.rows:,} rows; pull "
                f"{pull[0]:.3f} s ({pull[1]:.3f} CPU), push {push[0]:.3f} s ({push[1]:.3f} CPU); "
                f"servers have {used:.0f} MiB"
            )


RULES = (
    ("SGD", "sgd_update", (("learning_rate", 0.1),), ()),
    ("LazyAdam", "adam_update", (("lazy", True), ("learning_rate", 0.1)), ("zeros", "zeros")),
    ("FTRL", "ftrl_update", (("learning_rate", 0.1),), ("constant(0.1)", "zeros")),
)


# Hostile connections


def hostile(arguments: argparse.Namespace) -> None:
    """Call a scheduler and a server without a valid certificate, again and again."""
    with tempfile.TemporaryDirectory() as folder, certificates(True) as (how, security):
        foreign, expired = Path(folder) / "foreign", Path(folder) / "expired"
        make_certificates(foreign)
        make_certificates(expired, days=-1)
        alone = self_signed()
        strangers = {
            "without a certificate": Security(security.authority, connection=(None, None)),
            "of another authority": _with(security, foreign / "client.pem"),
            "expired": _with(security, expired / "client.pem"),
            "self-signed": Security(security.authority, connection=(alone, alone)),
            "not encrypted": PLAIN,
        }
        with run_of(1, how, security) as (member, (pid,)):
            table = Table("w", TensorType("float32", (4,)), "ones", "sgd_update", ())
            client = Client(member, Task((table,), 1, True, 0), security, lambda _: None)
            addresses = {"Scheduler": member.address, "ParameterServer": client._links[0].address}
            before = memory(pid)
            for name, stranger in strangers.items():
                answered = [
                    _answered(service, address, stranger)
                    for service, address in addresses.items()
                    for _ in range(arguments.messages // 10)
                ]
                print(f"{name}: {sum(answered)} of {len(answered)} calls answered")
            values = client.pull([0])[0]
            print(f"the server has {memory(pid) - before:+.1f} MiB and still answers: {values}")
            client.close()


def _with(security: Security, path: Path) -> Security:
    data = path.read_bytes()
    return Security(security.authority, connection=(data, data))


def _answered(service: str, address: str, security: Security) -> bool:
    connection = Connection(service, address, security, Caller.joining(b""))
    method, kind = ("Join", "Member") if service == "Scheduler" else ("Declare", "Model")
    try:
        connection.call(method, message(kind), 10.0)
    except CallError as error:
        return not error.is_lost
    finally:
        connection.close()
    return True


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("throughput", "rows", "hostile"))
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--hashed", action="store_true")
    parser.add_argument("--rule", choices=("all", *(name for name, *_ in RULES)), default="all")
    parser.add_argument("--messages", type=int, default=1000)
    arguments = parser.parse_args()
    works: dict[str, Callable[[argparse.Namespace], None]] = {
        "throughput": throughput,
        "rows": rows,
        "hostile": hostile,
    }
    works[arguments.what](arguments)


if __name__ == "__main__":
    main()
