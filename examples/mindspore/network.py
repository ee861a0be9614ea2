"""The network of these examples, and the digits that it learns."""

from data import mnist

import shardwright.mindspore as ms
import shardwright.mindspore.dataset as ds
from shardwright.mindspore import nn


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.flatten = nn.Flatten()
        self.layer1 = nn.Dense(28 * 28, 256, activation="relu")
        self.layer2 = nn.Dense(256, 128, activation="relu")
        self.layer3 = nn.Dense(128, 10)

    def construct(self, x):
        return self.layer3(self.layer2(self.layer1(self.flatten(x))))


def digits(batch_size, **shards):
    transforms = [
        ds.vision.Rescale(1 / 255, 0.0),
        ds.vision.Normalize((0.1307,), (0.3081,)),
        ds.vision.HWC2CHW(),
    ]
    dataset = ds.MnistDataset(mnist(), **shards).map(transforms, "image")
    dataset = dataset.map(ds.transforms.TypeCast(ms.int32), "label")
    return dataset.batch(batch_size, drop_remainder=True)
