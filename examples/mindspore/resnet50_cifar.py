"""ResNet-50 on CIFAR-10's format in data parallelism, every rank with its own samples.

    shardwright launch -n 4 examples/mindspore/resnet50_cifar.py

The pictures are 32 x 32 and the first layer has 8 channels, so that a laptop trains it; say
``WIDTH=64`` for the whole network.
"""

import os

from data import cifar
from resnet import CrossEntropy, resnet50

import shardwright.mindspore as ms
import shardwright.mindspore.dataset as ds
from shardwright.mindspore import nn, train
from shardwright.mindspore.communication import get_group_size, get_rank, init


def create_dataset(batch_size):
    dataset = ds.Cifar10Dataset(cifar(), num_shards=get_group_size(), shard_id=get_rank())
    transforms = [
        ds.vision.RandomCrop((32, 32), (4, 4, 4, 4)),
        ds.vision.Rescale(1 / 255, 0.0),
        ds.vision.Normalize((0.47, 0.47, 0.47), (0.2, 0.2, 0.2)),
        ds.vision.HWC2CHW(),
    ]
    dataset = dataset.map(ds.transforms.TypeCast(ms.int32), "label").map(transforms, "image")
    return dataset.batch(batch_size, drop_remainder=True)


def main(epochs=2):
    init()
    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    ms.set_seed(1)
    mode = ms.ParallelMode.DATA_PARALLEL
    ms.set_auto_parallel_context(parallel_mode=mode, gradients_mean=True)
    network = resnet50(32, 10, int(os.environ.get("WIDTH", "8")))
    parameters = filter(lambda parameter: parameter.requires_grad, network.get_parameters())
    optimizer = nn.Momentum(parameters, 0.02, 0.9)
    model = train.Model(network, CrossEntropy(sparse=True), optimizer)
    dataset = create_dataset(32)
    return model.train(epochs, dataset, callbacks=[train.LossMonitor(4)], dataset_sink_mode=True)


if __name__ == "__main__":
    main()
