"""Operators with strategies of their own: the compiler decides the rest.

python examples/semi_auto_parallel.py
"""

from digits_data import create_dataset

import shardwright as sw
from shardwright import nn, ops, train
from shardwright.parallel import AutoParallel, Layout


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.flatten = nn.Flatten()
        self.fc1_weight = sw.Parameter(sw.initializer("normal(0.05)", [28 * 28, 512], sw.float32))
        self.fc2_weight = sw.Parameter(sw.initializer("normal(0.05)", [512, 512], sw.float32))
        self.fc3_weight = sw.Parameter(sw.initializer("normal(0.05)", [512, 10], sw.float32))
        layout = Layout((2, 4), ("dp", "mp"))
        self.matmul1 = ops.MatMul().shard((layout("dp", "None"), layout("None", "mp")))
        self.relu1 = ops.ReLU().shard(((2, 4),))
        self.matmul2 = ops.MatMul().shard(((2, 4), (4, 1)))
        self.relu2 = ops.ReLU().shard(((8, 1),))
        self.matmul3 = ops.MatMul()

    def construct(self, x):
        x = self.flatten(x)
        x = self.matmul1(x, self.fc1_weight)
        x = self.relu1(x)
        x = self.matmul2(x, self.fc2_weight)
        x = self.relu2(x)
        return self.matmul3(x, self.fc3_weight)


def main(epochs=10):
    net = Network()
    optimizer = nn.SGD(net.trainable_params(), 1e-2)
    parallel_net = AutoParallel(net, parallel_mode="semi_auto", devices=8)
    parallel_net.dataset_strategy("full_batch")
    model = sw.Model(parallel_net, loss_fn=nn.CrossEntropyLoss(), optimizer=optimizer)
    return model.train(epochs, create_dataset(32), callbacks=[train.LossMonitor(20)])


if __name__ == "__main__":
    main()
