"""Automatic parallelism: the compiler searches the strategies of all operators.

shardwright launch -n 4 examples/mindspore/auto_parallel.py
"""

from network import Network, digits

import shardwright.mindspore as ms
from shardwright.mindspore import nn, train
from shardwright.mindspore.communication import init
from shardwright.mindspore.parallel.auto_parallel import AutoParallel


def main(epochs=3, devices=4):
    init()
    ms.set_seed(1)
    network = Network()
    optimizer = nn.Momentum(network.trainable_params(), 0.05, 0.9)
    spread = AutoParallel(network, "auto", devices=devices, cluster="cpu")
    model = ms.Model(spread, nn.CrossEntropyLoss(), optimizer)
    return model.train(epochs, digits(32), callbacks=[train.LossMonitor(16)])


if __name__ == "__main__":
    main()
