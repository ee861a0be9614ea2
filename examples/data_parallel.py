"""Data parallelism by the compiler, every rank reading its own part of the data.

    SHARDWRIGHT_WORLD=4 python examples/data_parallel.py

The batch of 8 is each rank's; the losses are those of one device with all batches together.
"""

import shardwright as sw
import shardwright.dataset as ds
from shardwright import nn, train
from shardwright.communication import get_group_size, get_rank, init


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.SequentialCell(
            nn.Dense(784, 128, activation="relu"),
            nn.Dense(128, 64, activation="relu"),
            nn.Dense(64, 10),
        )

    def construct(self, x):
        return self.layers(x)


def main(epochs=5):
    init()
    net = sw.AutoParallel(Network(), parallel_mode="data_parallel")
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    opt = nn.Momentum(filter(lambda x: x.requires_grad, net.network.get_parameters()), 0.05, 0.9)
    dataset = ds.digits(num_shards=get_group_size(), shard_id=get_rank()).shuffle(seed=1).batch(8)
    model = sw.Model(net, loss_fn=loss, optimizer=opt)
    return model.train(epochs, dataset, callbacks=[train.LossMonitor(20)])


if __name__ == "__main__":
    main()
