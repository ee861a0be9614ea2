"""Data parallelism written by hand: every rank takes its rows, and the losses are summed.

shardwright launch -n 4 examples/mindspore/manual_parallel.py
"""

from network import Network, digits

import shardwright.mindspore as ms
from shardwright.mindspore import nn, ops, train
from shardwright.mindspore.communication import get_group_size, get_rank, init

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(1)
init()
rank, ranks = get_rank(), get_group_size()
rows = 32 // ranks


class OwnRows(nn.Cell):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def construct(self, x):
        return self.network(x[rank * rows : rank * rows + rows])


class MeanLoss(nn.Cell):
    def __init__(self):
        super().__init__()
        self.loss = nn.CrossEntropyLoss()
        self.all_reduce = ops.AllReduce(ops.ReduceOp.SUM)

    def construct(self, logits, labels):
        labels = labels[rank * rows : rank * rows + rows]
        return self.all_reduce(self.loss(logits, labels)) / ranks


def main(epochs=3):
    network = OwnRows(Network())
    optimizer = nn.Momentum(network.trainable_params(), 0.02, 0.9)
    model = ms.Model(network, MeanLoss(), optimizer)
    return model.train(epochs, digits(32), callbacks=[train.LossMonitor(16)])


if __name__ == "__main__":
    main()
