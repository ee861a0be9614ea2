"""Data parallelism written by hand: slices by rank and an all-reduce of the loss.

    SHARDWRIGHT_WORLD=8 python examples/manual_parallel.py
    shardwright compile examples/manual_parallel.py:model --devices 8 --mode hybrid_parallel

Without the variable it is the program of one device, and its losses are the same.
"""

from digits_data import create_dataset

import shardwright as sw
from shardwright import nn, ops, train
from shardwright.communication import get_group_size, get_rank, init

init()
cur_rank = get_rank()
batch_size = 32
device_num = get_group_size()
shard_size = batch_size // device_num


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.flatten = nn.Flatten()
        self.layer1 = nn.Dense(28 * 28, 512)
        self.relu1 = nn.ReLU()
        self.layer2 = nn.Dense(512, 512)
        self.relu2 = nn.ReLU()
        self.layer3 = nn.Dense(512, 10)

    def construct(self, x):
        x = x[cur_rank * shard_size : cur_rank * shard_size + shard_size]
        x = self.flatten(x)
        x = self.layer1(x)
        x = self.relu1(x)
        x = self.layer2(x)
        x = self.relu2(x)
        return self.layer3(x)


class ReduceLoss(nn.Cell):
    def __init__(self):
        super().__init__()
        self.loss = nn.CrossEntropyLoss()
        self.all_reduce = ops.AllReduce()

    def construct(self, data, label):
        label = label[cur_rank * shard_size : cur_rank * shard_size + shard_size]
        loss_value = self.loss(data, label)
        return self.all_reduce(loss_value) / device_num


def model():
    inputs = (
        sw.InputSpec("image", sw.TensorType("float32", (batch_size, 784))),
        sw.InputSpec("label", sw.TensorType("int32", (batch_size,)), 10),
    )
    return Network(), inputs, ReduceLoss()


def main(epochs=10):
    net = Network()
    optimizer = nn.SGD(net.trainable_params(), 1e-2)
    loss_cb = train.LossMonitor(20)
    model = sw.Model(net, loss_fn=ReduceLoss(), optimizer=optimizer)
    return model.train(epochs, create_dataset(batch_size), callbacks=[loss_cb])


if __name__ == "__main__":
    main()
