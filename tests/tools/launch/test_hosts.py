"""Two hosts: namespaces of Linux with a network, names, processes and shared memory each."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shardwright.scripts.launching import needs_mpi, run

ROOT = Path(__file__).parents[3]
HOSTS = {f"sw{os.getpid()}-{i}": f"10.77.31.{i}" for i in (1, 2)}
TRAIN = """
import socket
import numpy as np
import shardwright as sw
import shardwright.dataset as ds
from shardwright import nn
from shardwright.communication import get_group_size, get_rank, init

init()
random = np.random.default_rng(0)
x = random.normal(size=(32, 12)).astype(np.float32)
y = random.integers(0, 4, 32).astype(np.int32)
net = nn.SequentialCell(nn.Dense(12, 4096, activation="relu"), nn.Dense(4096, 4))
optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
network = sw.AutoParallel(net, "data_parallel", devices=4)
model = sw.Model(network, nn.CrossEntropyLoss(), optimizer)
losses = model.train(1, ds.ArrayDataset({"x": x, "y": y}).batch(8))
print(f"{get_rank()} at {socket.gethostname()}:", [loss.hex() for loss in losses])
"""
PARAMETERS = 4 * (12 * 4096 + 4096 + 4096 * 4 + 4)  # bytes


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def hosts():
    """Connect two namespaces by a cable; skip where this user may not make any."""
    first, second = HOSTS
    try:
        ip("netns", "add", first)
        ip("netns", "add", second)
        ip(*f"link add cable netns {first} type veth peer name cable netns {second}".split())
        for name, address in HOSTS.items():
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "cable")
            for link in ("lo", "cable"):
                ip("-n", name, "link", "set", link, "up")
        yield first, second
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"two namespaces of a network cannot be made here: {error}")
    finally:
        for name in HOSTS:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@needs_mpi
def test_two_hosts_train_what_one_process_does(hosts, tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    address = HOSTS[hosts[0]]
    launch = f"{sys.executable} -m shardwright launch -n 4 --local_worker_num 2 --timeout 120"
    launch += f" --master_addr {address} --master_port 8118 --log_dir logs_$(hostname) train.py"
    processes = []
    for number, name in enumerate(hosts):
        script = f"hostname {name}; exec {launch.replace(' train', f' --node_rank {number} train')}"
        command = ["ip", "netns", "exec", name, "unshare", "--uts", "--ipc", "--pid", "--fork"]
        processes.append(
            subprocess.Popen(
                [*command, "--mount-proc", "sh", "-c", script],
                cwd=tmp_path,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "OMP_NUM_THREADS": "1",
                    "SHARDWRIGHT_SECRET": "0123456789abcdef",
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    said = [process.communicate(timeout=240)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    logs = [tmp_path / f"logs_{hosts[i // 2]}" / f"worker_{i}.log" for i in range(4)]
    found = [re.fullmatch(r"(\d) at (\S+): (.*)\n", path.read_text()) for path in logs]
    assert [line[1] for line in found] == list("0123")
    assert [line[2] for line in found] == [hosts[0]] * 2 + [hosts[1]] * 2
    one = run(TRAIN, 1, tmp_path)
    assert {line[3] for line in found} == {one.partition(": ")[2].rstrip("\n")}
    sent = int(re.search(r"TX:.*\n\s+(\d+)", ip("-n", hosts[0], "-s", "link", "show", "cable"))[1])
    assert sent > 4 * PARAMETERS  # gradients of four steps went over the cable
