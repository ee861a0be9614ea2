"""The complete scripts of MindSpore's documents, run as they are but for their imports."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.extent import first, long_after
from tests.shardwright.scripts import launching
from tests.shardwright.scripts.documents import LAYOUTS, ported, script
from tests.shardwright.scripts.launching import ROOT, cifar, losses, mnist, needs_mpi, run
from tests.shardwright.server.runs import launched, needs_grpc

several = first(2, [1, *(pytest.param(ranks, marks=needs_mpi) for ranks in (4, 2))])
# What a document leaves to its reader: the arguments of a call, and modules of other pages.
ARGUMENTS = """
import numpy as _numpy
from shardwright.mindspore import dataset as _dataset
_rows = _numpy.ones((8, 512), _numpy.float32)
args, kwargs = (1, _dataset.NumpySlicesDataset(_rows).batch(8)), {}
"""
NETWORK = """
from shardwright.mindspore import nn, ops


class Network(nn.Cell):
    def __init__(self, classes):
        super().__init__()
        self.pool = nn.MaxPool2d(16, 16)
        self.conv = nn.Conv2d(3, 8, 3, weight_init="XavierUniform")
        self.norm = nn.BatchNorm2d(8, gamma_init="ones")
        self.mean = ops.ReduceMean(keep_dims=True)
        self.flatten = nn.Flatten()
        self.end = nn.Dense(8, classes)

    def construct(self, x):
        x = ops.ReLU()(self.norm(self.conv(self.pool(x))))
        return self.end(self.flatten(self.mean(x, (2, 3))))


def resnet50(batch_size, classes):
    return Network(classes)


class SoftmaxCrossEntropyExpand(nn.Cell):
    def __init__(self, sparse=False):
        super().__init__()
        self.loss = nn.SoftmaxCrossEntropyWithLogits(sparse=sparse, reduction="mean")

    def construct(self, logits, labels):
        return self.loss(logits, labels)
"""

# What a document says of itself in other places: a slow step, and the training that is served.
TUNED = """
import time
from shardwright.dataset.configuration import SETTINGS


def slow(x):
    time.sleep(0.002)
    return x * 2


data = ds.NumpySlicesDataset(list(range(64)), shuffle=False)
data = data.map(slow, num_parallel_workers=1).batch(1)
seen = [int(item[0].asnumpy()[0]) for item in data.create_tuple_iterator()]
print(SETTINGS.autotune)
print(len(seen), seen[2], sum(value % 2 for value in seen) + 3)
"""
SERVED = """
import os
from types import SimpleNamespace

import shardwright.mindspore as ms
import shardwright.mindspore.dataset as ds
from shardwright.mindspore import context, nn
from shardwright.mindspore.dataset import vision
from shardwright.mindspore.communication import get_group_size, get_rank, init
from shardwright.mindspore.train import Callback, LossMonitor


class LeNet5(nn.Cell):
    def __init__(self, classes):
        super().__init__()
        self.layers = nn.SequentialCell(
            nn.Conv2d(1, 6, 5, pad_mode="valid"), nn.ReLU(), nn.MaxPool2d(2, 2), nn.Flatten(),
            nn.Dense(6 * 12 * 12, 32), nn.ReLU(), nn.Dense(32, 16), nn.ReLU(), nn.Dense(16, classes)
        )

    def construct(self, x):
        return self.layers(x)


cfg = SimpleNamespace(num_classes=10)
SCRIPT
init()
data = ds.MnistDataset(os.environ["DATA_PATH"], "train", num_shards=get_group_size(),
                       shard_id=get_rank(), shuffle=False)
data = data.map([vision.Rescale(1 / 255.0, 0), vision.HWC2CHW()], "image")
data = data.map(lambda x: x.astype("int32"), "label").batch(16)
optimizer = nn.Momentum(network.trainable_params(), 0.05, 0.9)
model = ms.Model(network, nn.SoftmaxCrossEntropyWithLogits(True, "mean"), optimizer)
model.train(4, data, callbacks=[LossMonitor(1)])
served = [p for p in network.trainable_params() if p.is_served]
print(f"parameters of the servers: {len(served)} of {len(network.trainable_params())}")
"""


@pytest.mark.parametrize("ranks", several)
@pytest.mark.parametrize(("document", "lines"), long_after(1, [("001", 10), ("000", 2)]))
def test_training_scripts_learn_the_same_on_any_number_of_processes(
    document, lines, ranks, tmp_path
):
    code = ported(script(document, "train"))
    data = str(mnist(tmp_path, 64))
    found = launching.losses_of_each(code, ranks, tmp_path, DATA_PATH=data)
    assert all(each == found[0] for each in found)
    assert len(found[0]) == lines
    assert lines == 1 or found[0][-1] < found[0][0]
    one = losses(run(code, 1, tmp_path, DATA_PATH=data)) if ranks > 1 else found[0]
    np.testing.assert_allclose(found[0], one, rtol=1e-5)


@pytest.mark.parametrize("ranks", several)
def test_the_modes_of_the_context_are_printed_and_set(ranks, tmp_path):
    printed = run(ported(script("003", "modes")), ranks, tmp_path)
    expected = sorted(f"rank_id is {rank}, device_num is {ranks}" for rank in range(ranks))
    assert all(line in printed for line in expected)


@pytest.mark.parametrize("ranks", several)
def test_a_network_without_loss_runs_in_data_parallel(ranks, tmp_path):
    run(ARGUMENTS + ported(script("003", "data_parallel")), ranks, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("ranks", several)
def test_the_residual_network_trains_on_shards(ranks, tmp_path):
    data = str(cifar(tmp_path, 64))
    code = "from resnet import SoftmaxCrossEntropyExpand\n" + ported(script("004", "train"))
    (tmp_path / "resnet.py").write_text(NETWORK)
    found = launching.losses_of_each(code, ranks, tmp_path, DATA_PATH=data)
    steps = 2 * 64 // (32 * ranks) * 10  # those to train and to test with
    assert len(found[0]) == steps
    assert np.mean(found[0][-3:]) < np.mean(found[0][:3])


@needs_mpi
def test_the_script_of_workers_and_a_scheduler(tmp_path):
    data = cifar(tmp_path, 128)
    (tmp_path / "resnet.py").write_text(NETWORK)
    code = "from resnet import SoftmaxCrossEntropyExpand\n" + ported(script("004", "train"))
    (tmp_path / "resnet50_distributed_training.py").write_text(code)
    (tmp_path / "run.sh").write_text(script("004", "run.sh") + "wait\n")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "OPENBLAS_NUM_THREADS": "1",
    }
    command = [str(shutil.which("bash")), "run.sh", str(data)]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=300)
    logs = [losses((tmp_path / f"worker_{i}.txt").read_text()) for i in range(8)]
    assert len(logs[0]) == 10
    assert np.mean(logs[0][-3:]) < np.mean(logs[0][:3])
    scheduler = (tmp_path / "scheduler.txt").read_text()
    assert scheduler.endswith("scheduler: all workers ended\n")
    assert scheduler.count("has joined") == 8


@pytest.mark.long
def test_the_number_of_processes_of_a_dataset_is_tuned(tmp_path):
    code = ported(script("003", "autotune")) + TUNED
    assert run(code, 1, tmp_path).splitlines() == ["True", "64 4 3"]


@pytest.mark.long
@needs_grpc
def test_a_network_is_trained_on_parameter_servers(tmp_path):
    data = str(mnist(tmp_path, 64))
    code = SERVED.replace("SCRIPT", ported(script("003", "parameter_server")))
    logs = launched(code, tmp_path, 2, 2, DATA_PATH=data)
    for log in logs:
        found = losses(log)
        assert len(found) == 8
        assert found[-1] < found[0]
        assert "parameters of the servers: 7 of 7" in log


def test_every_script_of_the_documents_is_run():
    run_here = {
        ("000", "train"),
        ("001", "train"),
        ("003", "autotune"),
        ("003", "modes"),
        ("003", "data_parallel"),
        ("003", "parameter_server"),
        ("004", "setup"),
        ("004", "train"),
        ("004", "run.sh"),
    }
    assert {(d, name) for d, blocks in LAYOUTS.items() for name in blocks} == run_here
