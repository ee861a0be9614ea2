"""Workers of data parallelism whose messages are encrypted: mutual TLS, without MPI."""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import suppress

import numpy as np
import pytest

from shardwright.ir.errors import ExecutionError
from shardwright.runtime.encrypted import Library, Links, door
from shardwright.runtime.encrypted import links as module
from shardwright.runtime.messages import decoded, encoded, received
from shardwright.runtime.messages import sent as sent_to
from shardwright.server.certificates import make_certificates, self_signed
from shardwright.server.security import Security, security_of
from tests.shardwright.server.runs import ROOT, free_port, needs_grpc

pytestmark = needs_grpc
BEGIN = """
import os
import shardwright.mindspore as ms
from shardwright.mindspore.communication import get_group_size, get_rank, init

ms.set_context(deterministic="ON")
ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True)
if "CERTIFICATES" in os.environ:
    ms.set_ps_context(
        enable_ssl=True,
        config_file_path=os.environ["CERTIFICATES"],
        server_password="s",
        client_password="c",
    )
init()
"""
TRAINING = """
import numpy as np
from shardwright.dataset import ArrayDataset
from shardwright.mindspore import nn

rank, size = get_rank(), get_group_size()
x = np.random.default_rng(0).standard_normal((64, 8)).astype("float32")
columns = {"x": x, "y": (np.arange(64) % 4).astype("int32")}
data = ArrayDataset(columns, num_shards=size, shard_id=rank).batch(16 // size)
net = nn.SequentialCell(nn.Dense(8, 32), nn.ReLU(), nn.Dense(32, 4))
model = ms.Model(
    net,
    loss_fn=nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"),
    optimizer=nn.Momentum(net.trainable_params(), 0.05, 0.9),
)
for epoch in range(EPOCHS):
    losses = model.train(1, data)
    print([float(loss).hex() for loss in losses or model.session.losses], flush=True)
"""
COLLECTIVES = """
from pathlib import Path
from tests.runtime.mpi_program import main

for task in ("exchanges", "native", "rings"):
    main(task, Path("."))
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return folders with certificates: of us, of others, and of us but expired."""
    root = tmp_path_factory.mktemp("certificates")
    for name in ("ours", "foreign"):
        make_certificates(root / name, server_password="s", client_password="c")
    make_certificates(root / "expired", days=-1)
    return root


class Run:
    """Processes of one script, by MindSpore's variables; they end with the block."""

    def __init__(self, code, folder, workers):
        (folder / "train.py").write_text(code)
        self._folder, self._all = folder, []
        self._variables = {"MS_WORKER_NUM": str(workers), "MS_SCHED_HOST": "127.0.0.1"}
        self._variables["MS_SCHED_PORT"] = str(free_port())

    def start(self, role, certificates, **more):
        process = subprocess.Popen(
            [sys.executable, "train.py"],
            cwd=self._folder,
            env={
                **os.environ,
                **self._variables,
                **more,
                "PYTHONPATH": str(ROOT),
                "OMP_NUM_THREADS": "1",
                "MS_ROLE": role,
                "CERTIFICATES": str(certificates),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._all.append(process)
        return process

    def workers(self, count, certificates):
        return [
            self.start("MS_WORKER", certificates, MS_NODE_ID=str(number)) for number in range(count)
        ]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self._all:
            process.kill()
            process.communicate()


def ended(*processes):
    """Wait for processes; return their exit codes and what they wrote."""
    written = [process.communicate(timeout=120)[0] for process in processes]
    return [process.returncode for process in processes], written


def run_all(code, folder, workers, certificates):
    """Run a script as workers and a scheduler; return exit codes and texts, the scheduler last."""
    with Run(code, folder, workers) as run:
        started = run.workers(workers, certificates)
        return ended(*started, run.start("MS_SCHED", certificates))


@pytest.mark.long
def test_workers_train_what_one_process_does(folders, tmp_path):
    code = BEGIN + TRAINING.replace("EPOCHS", "2")
    codes, written = run_all(code, tmp_path, 2, folders / "ours/security.json")
    assert codes == [0, 0, 0], written
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "train.py"]
    alone = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert alone.returncode == 0, alone.stderr
    assert written[0] == written[1]
    losses = [
        np.array([float.fromhex(x) for x in json.loads(line.replace("'", '"'))])
        for line in (written[0] + alone.stdout).splitlines()
    ]
    assert len(losses) == 4
    np.testing.assert_allclose(losses[:2], losses[2:], rtol=1e-6)
    assert "all 0 servers and 2 workers have joined" in written[2]
    assert written[2].endswith("scheduler: all members have ended\n")


@pytest.mark.long
def test_every_collective_is_that_of_one_process_to_the_bit(folders, tmp_path):
    codes, written = run_all(BEGIN + COLLECTIVES, tmp_path, 4, folders / "ours/security.json")
    assert codes == [0] * 5, written
    assert [json.loads(line) for line in written[0].splitlines()] == [[], [], []]


@pytest.mark.long
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_is_lost_ends_the_run(sign, folders, tmp_path):
    quick = BEGIN.replace("enable_ssl=True,", "enable_ssl=True, heartbeat_timeout=3.0,")
    code = quick + TRAINING.replace("EPOCHS", "1_000_000")
    certificates = folders / "ours/security.json"
    with Run(code, tmp_path, 2) as run:
        scheduler = run.start("MS_SCHED", certificates)
        one, other = run.workers(2, certificates)
        assert one.stdout.readline().startswith("[")  # it trains
        other.send_signal(sign)
        codes, written = ended(one, scheduler)
    assert codes == [1, 1]
    assert "1 has ended early" in written[0]
    assert "has ended early" in written[1]


@pytest.mark.long
def test_without_a_certificate_no_worker_takes_part(folders, tmp_path):
    """One of another authority is refused by the scheduler, which waits for the right ones."""
    hasty = "import shardwright.server.member as m\nm.ARRIVAL = HASTE\ninit()"
    code = BEGIN.replace("init()", hasty.replace("HASTE", "float(os.environ.get('HASTE', 60))"))
    certificates = folders / "ours/security.json"
    with Run(code + "print(get_rank())", tmp_path, 2) as run:
        scheduler = run.start("MS_SCHED", certificates)
        assert "listening" in scheduler.stdout.readline()
        foreign = folders / "foreign/security.json"
        codes, written = ended(run.start("MS_WORKER", foreign, HASTE="3"))
        assert codes == [1]
        assert "has no answer for this process" in written[0] or "refuses" in written[0]
        codes, written = ended(*run.workers(2, certificates), scheduler)
    assert codes == [0, 0, 0], written
    assert written[:2] == ["0\n", "1\n"]


# Connections


def pair(security, meanwhile=None):
    """Return both ends of two processes, here in threads; `meanwhile` runs while one waits."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    addresses = [listener.getsockname() for listener in listeners]
    found = {}

    def link(rank):
        contexts = security.of_sockets()
        found[rank] = Links(listeners[rank], *contexts, 7, rank, addresses, lambda: "")

    first, second = (threading.Thread(target=link, args=(rank,)) for rank in range(2))
    second.start()
    if meanwhile is not None:
        meanwhile(addresses[1])
    first.start()
    first.join(30)
    second.join(30)
    return found[0], found[1]


def part(*links):
    threads = [threading.Thread(target=end.part) for end in links]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def ours(folders):
    return security_of(folders / "ours/security.json", "s", "c")


def test_strangers_at_the_port_of_a_worker_get_no_byte(folders):
    mine = ours(folders)
    foreign = security_of(folders / "foreign/security.json", "s", "c")
    expired = (folders / "expired/client.pem").read_bytes()
    strangers = {
        "self-signed": Security(mine.authority, mine.service, (self_signed(),) * 2),
        "foreign": Security(mine.authority, mine.service, foreign.connection),
        "a server's": Security(mine.authority, mine.service, mine.service),
        "expired": Security(mine.authority, mine.service, (expired, expired)),
    }
    received = {}

    def knock(address):
        def call(name, context):
            try:
                raw = socket.create_connection(address, 5)
                with raw, context.wrap_socket(raw, server_hostname="127.0.0.1") as stream:
                    stream.sendall(b"\0" * 64)
                    received[name] = stream.recv(64)
            except OSError:
                received[name] = b""

        for name, security in strangers.items():
            call(name, security.of_sockets()[1])
        call("none", ssl.create_default_context(cadata=mine.authority.decode()))
        with socket.create_connection(address, 5) as raw:
            raw.sendall(b"GET / HTTP/1.1\r\n\r\n")
            try:
                received["plain"] = raw.recv(64)
            except OSError:
                received["plain"] = b""

    links = pair(mine, meanwhile=knock)
    # A socket that does not speak TLS gets at most an alert: no message.
    assert received.pop("plain")[:1] in (b"", b"\x15")
    assert received == dict.fromkeys([*strangers, "none"], b"")
    worlds = [Library(end, lambda: None).COMM_WORLD for end in links]
    worlds[0].Isend(np.arange(5), dest=1)
    got = np.zeros(5, np.int64)
    worlds[1].Recv(got, source=0)
    assert got.tolist() == [0, 1, 2, 3, 4]
    part(*links)


def test_silent_and_slow_strangers_keep_no_worker_out(folders, monkeypatch):
    monkeypatch.setattr(door, "_MOST", 8)
    end, strangers = threading.Event(), []

    def drip():
        while not end.wait(0.01):
            for stranger in strangers:
                with suppress(OSError):  # it has been closed
                    stranger.send(b"\x16\x03\x01\x02\0\1"[:1])

    def knock(address):
        strangers.extend(socket.create_connection(address, 5) for _ in range(40))
        threading.Thread(target=drip, daemon=True).start()

    links = pair(ours(folders), meanwhile=knock)
    end.set()
    for stranger in strangers:
        stranger.close()
    worlds = [Library(link, lambda: None).COMM_WORLD for link in links]
    worlds[0].Isend(np.arange(3), dest=1)
    got = np.zeros(3, np.int64)
    worlds[1].Recv(got, source=0)
    assert got.tolist() == [0, 1, 2]
    part(*links)


def test_messages_of_any_size_in_both_directions_at_once(folders):
    links = pair(ours(folders))
    worlds = [Library(end, lambda: None).COMM_WORLD for end in links]
    sent = [np.random.default_rng(i).integers(0, 255, 2**23).astype(np.uint8) for i in range(2)]
    got = [np.zeros_like(array) for array in sent]

    def exchange(i):
        worlds[i].Isend(sent[i], dest=1 - i)
        sent_to(worlds[i], encoded({"empty": np.zeros(0)}), 1 - i, 0)
        worlds[i].Recv(got[i], source=1 - i)
        assert decoded(received(worlds[i], 1 - i, 0))["empty"].size == 0

    threads = [threading.Thread(target=exchange, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    np.testing.assert_array_equal(got[0], sent[1])
    np.testing.assert_array_equal(got[1], sent[0])
    part(*links)


def test_memory_is_taken_for_what_has_come():
    """A message of 16 GiB that is announced takes at most twice of what has come of it."""
    rooms, come = [], 0

    class Stream:
        def recv_into(self, view):
            nonlocal come
            rooms.append((len(view), come))
            count = min(len(view), 2**22) if come < 2**25 else 0
            come += count
            return count

    with pytest.raises(EOFError):
        module._read(Stream(), 2**34)
    assert come == 2**25
    assert all(room <= max(2**24, before) for room, before in rooms)
    whole = bytes(range(256)) * 2**17
    left = memoryview(whole)

    class Sending:
        def recv_into(self, view):
            nonlocal left
            count = min(len(view), len(left), 2**22 + 1)
            view[:count], left = left[:count], left[count:]
            return count

    assert module._read(Sending(), len(whole)) == whole


def test_whoever_waits_for_a_process_that_has_gone_is_told(folders):
    one, two = pair(ours(folders))
    threading.Thread(target=two.part, daemon=True).start()
    with pytest.raises(ExecutionError, match="process 1 has ended early: it has said goodbye"):
        one.receive(1, 0, 0)
    part(one)
