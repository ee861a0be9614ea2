"""Strategies of some operators by hand, the rest by the compiler: hybrid parallelism.

shardwright launch -n 4 examples/mindspore/semi_auto_parallel.py
"""

from network import digits

import shardwright.mindspore as ms
from shardwright.mindspore import nn, ops, train
from shardwright.mindspore.common.initializer import Normal, initializer
from shardwright.mindspore.communication import init
from shardwright.mindspore.parallel.auto_parallel import AutoParallel


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.flatten = nn.Flatten()
        self.weight1 = ms.Parameter(initializer(Normal(0.05), [28 * 28, 256], ms.float32))
        self.weight2 = ms.Parameter(initializer(Normal(0.05), [256, 10], ms.float32))
        self.matmul1 = ops.MatMul().shard(((2, 1), (1, 2)))  # rows, and columns of the weight
        self.relu = ops.ReLU().shard(((2, 2),))
        self.matmul2 = ops.MatMul().shard(((2, 2), (2, 1)))  # partial sums are reduced

    def construct(self, x):
        x = self.relu(self.matmul1(self.flatten(x), self.weight1))
        return self.matmul2(x, self.weight2)


def main(epochs=3, devices=4):
    init()
    ms.set_seed(1)
    network = Network()
    optimizer = nn.Momentum(network.trainable_params(), 0.05, 0.9)
    spread = AutoParallel(network, "semi_auto", devices=devices, cluster="cpu")
    spread.dataset_strategy("full_batch")
    model = ms.Model(spread, nn.CrossEntropyLoss(), optimizer)
    return model.train(epochs, digits(32), callbacks=[train.LossMonitor(16)])


if __name__ == "__main__":
    main()
