"""Batch normalization with MindSpore's names: in data parallelism each rank has its own part."""

import numpy as np
import pytest

from shardwright import nn as own
from shardwright.dataset import ArrayDataset
from shardwright.mindspore import nn
from shardwright.parallel import AutoParallel
from shardwright.train import Model
from tests.extent import long_after

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.standard_normal((32, 3, 6, 6)).astype("float32")
LABELS = RANDOM.integers(0, 4, 32).astype("int32")
DATA = ArrayDataset({"image": IMAGES, "label": LABELS}).batch(16)


class Network(nn.Cell):
    def __init__(self, norm):
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = norm
        self.relu = nn.ReLU()
        self.flatten = nn.Flatten()
        self.dense = nn.Dense(8 * 36, 4)

    def construct(self, x):
        return self.dense(self.flatten(self.relu(self.norm(self.conv(x)))))


def trained(norm, mode, devices):
    network = Network(norm)
    parallel = AutoParallel(network, mode, devices=devices, cluster="cpu")
    optimizer = nn.Momentum(network.trainable_params(), 0.05, 0.9)
    model = Model(parallel, nn.CrossEntropyLoss(), optimizer)
    return model.train(2, DATA), model.session


@pytest.mark.parametrize("devices", long_after(2, [2, 4, 8]))
def test_each_rank_has_the_statistics_of_its_part(devices):
    expected, _ = trained(own.BatchNorm2d(8, parts=devices), "stand_alone", 1)
    losses, session = trained(nn.BatchNorm2d(8), "data_parallel", devices)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    program = session.compiled.program
    statistics = [n for n in program if n.operator in ("channel_mean", "channel_variance")]
    assert {n.results[0].layout.partial for n in statistics} == {()}
    whole, _ = trained(own.BatchNorm2d(8), "stand_alone", 1)
    assert not np.allclose(losses, whole, rtol=1e-5)


@pytest.mark.parametrize(
    ("norm", "mode"),
    [
        (lambda: nn.SyncBatchNorm(8), "data_parallel"),
        (lambda: own.BatchNorm2d(8), "data_parallel"),
        (lambda: nn.BatchNorm2d(8), "semi_auto"),
        (lambda: nn.BatchNorm2d(8), "stand_alone"),
    ],
)
def test_statistics_of_the_whole_batch(norm, mode):
    expected, _ = trained(own.BatchNorm2d(8), "stand_alone", 1)
    devices = 1 if mode == "stand_alone" else 4
    np.testing.assert_allclose(trained(norm(), mode, devices)[0], expected, rtol=1e-5)
