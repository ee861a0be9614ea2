"""Runs with parameter servers: in this process, and of scripts."""

import importlib.util
import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from shardwright.ir.types import TensorType
from shardwright.server.client import Client
from shardwright.server.member import Member
from shardwright.server.scheduler import SERVER, WORKER, Members
from shardwright.server.security import PLAIN
from shardwright.server.service import ParameterServer
from shardwright.server.store import Store, Task
from shardwright.server.tables import Table
from shardwright.server.transport import Service

ROOT = Path(__file__).parents[3]
needs_grpc = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("grpc", "cryptography")),
    reason="grpcio or cryptography is not installed (the extra `server` has both)",
)
SGD = ("sgd_update", (("learning_rate", 0.5),))


def table(name, shape, initializer="normal", **others):
    update, settings = others.pop("rule", SGD)
    kind = TensorType("float32", shape)
    return Table(name, kind, initializer, update, settings, **others)


@dataclass
class Run:
    """A scheduler and servers in this process, for workers."""

    address: str
    servers: int
    workers: int
    answers: list
    members: Members
    security: object
    secret: bytes

    def worker(self, task, initial=None, number=None):
        """Return the client of one worker; all must join before a client answers."""
        member = self.member(number)
        return Client(member, task, self.security, initial)

    def member(self, number=None):
        return Member(
            WORKER,
            self.address,
            self.servers,
            self.workers,
            self.security,
            number,
            silence=60.0,
            secret=self.secret,
        )


@contextmanager
def running(servers, workers, security=PLAIN, synchronous=True, begin=None, secret=b""):
    """Run a scheduler and servers; `begin` makes the store of a server."""
    members = Members(servers, workers, synchronous, False, 60.0, lambda line: None, secret)
    scheduler = Service(
        "Scheduler", members.handlers, members.admit, "127.0.0.1:0", security, servers + workers
    )
    address = f"127.0.0.1:{scheduler.port}"
    services, joined, answers = [], [], []
    for _ in range(servers):
        places = []
        answer = ParameterServer(-1, servers, None)
        made = begin or (lambda task, a=answer: Store(task, a.number, servers))
        answer._begin = lambda task, a=answer, m=made: m(task) if begin is None else m(task, a)
        service = Service(
            "ParameterServer",
            answer.handlers,
            lambda method, caller, p=places: p[0].admit(method, caller),
            "127.0.0.1:0",
            security,
            workers,
        )
        place = f"127.0.0.1:{service.port}"
        member = Member(SERVER, address, servers, workers, security, None, place, 60.0, secret)
        places.append(member)
        answer.number = member.number
        services.append(service)
        joined.append(member)
        answers.append(answer)
    try:
        yield Run(address, servers, workers, answers, members, security, secret)
    finally:
        for member in joined:
            member.leave()
        for service in (*services, scheduler):
            service.stop(0.1)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def launched(code, folder, servers, workers, *options, fails=False, says="", **variables):
    """Run a script with parameter servers by the launcher; return the logs of the workers."""
    script = folder / "train.py"
    script.write_text(code)
    command = [
        *(sys.executable, "-m", "shardwright", "launch", "-n", str(workers)),
        *("--server_num", str(servers), "--master_port", str(free_port())),
        *("--log_dir", str(folder / "logs"), *options, str(script)),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}
    found = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=300
    )
    logs = [(folder / "logs" / f"worker_{i}.log").read_text() for i in range(workers)]
    assert (found.returncode != 0) == fails, found.stderr + "".join(logs)
    assert not fails or says in found.stderr, found.stderr
    return logs


def task(*tables, workers=1, synchronous=True, seed=0):
    return Task(tuple(tables), workers, synchronous, seed)
