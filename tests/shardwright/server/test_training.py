"""Scripts that train on parameter servers."""

import re

import numpy as np
import pytest

from tests.shardwright.server.runs import launched, needs_grpc

SCRIPT = """
import os
import numpy as np
import shardwright.mindspore as ms
import shardwright.mindspore.dataset as ds
from shardwright.mindspore import nn
from shardwright.mindspore.communication import get_group_size, get_rank, init

servers = "MS_ROLE" in os.environ
ms.set_ps_context(enable_ps=servers, {settings})
if servers:
    init()
ms.set_seed(3)
x = np.random.default_rng(0).normal(size=(32, 6)).astype(np.float32)
y = x[:, :3].argmax(1).astype(np.int32)
workers, rank = int(get_group_size()), int(get_rank())
data = ds.NumpySlicesDataset(dict(x=x, y=y), shuffle=False, num_shards=workers, shard_id=rank)
network = nn.SequentialCell(nn.Dense(6, 300), nn.ReLU(), nn.Dense(300, 3))
if servers:
    network.set_param_ps()
optimizer = {optimizer}
model = ms.Model(network, nn.CrossEntropyLoss(), optimizer)
losses = model.train({epochs}, data.batch(8 // workers))
print("losses", losses)
print("sum", [float(abs(p.asnumpy()).astype("float64").sum()) for p in network.get_parameters()])
"""
MOMENTUM = "nn.Momentum(network.trainable_params(), 0.1, 0.9)"
ADAM = "nn.Adam(network.trainable_params(), 0.01)"


def script(optimizer=MOMENTUM, epochs=2, settings=""):
    return SCRIPT.format(optimizer=optimizer, epochs=epochs, settings=settings)


def numbers(log, what="losses"):
    return eval(re.search(rf"^{what} (.*)$", log, re.MULTILINE)[1])


def alone(code, capsys, monkeypatch):
    monkeypatch.delenv("MS_ROLE", raising=False)
    exec(compile(code, "train.py", "exec"), {})
    return capsys.readouterr().out


@pytest.mark.long
@needs_grpc
def test_one_worker_learns_as_one_process_does_to_the_bit(tmp_path, capsys, monkeypatch):
    expected = alone(script(ADAM), capsys, monkeypatch)
    (log,) = launched(script(ADAM), tmp_path, 2, 1)
    assert numbers(log) == numbers(expected)
    assert numbers(log, "sum") == numbers(expected, "sum")


@pytest.mark.long
@needs_grpc
def test_two_workers_learn_what_one_process_does(tmp_path, capsys, monkeypatch):
    expected = alone(script(), capsys, monkeypatch)
    first, second = launched(script(), tmp_path, 2, 2)
    losses = np.mean([numbers(first), numbers(second)], 0)
    assert losses == pytest.approx(numbers(expected), rel=1e-5)
    assert numbers(first, "sum") == numbers(second, "sum")
    assert losses[-1] < 0.7 * losses[0]
