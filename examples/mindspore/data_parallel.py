"""Data parallelism by the context: every rank reads its own samples.

shardwright launch -n 4 examples/mindspore/data_parallel.py
"""

from network import Network, digits

import shardwright.mindspore as ms
from shardwright.mindspore import nn, train
from shardwright.mindspore.communication import get_group_size, get_rank, init


def main(epochs=3):
    init()
    ms.set_seed(1)
    mode = ms.ParallelMode.DATA_PARALLEL
    ms.set_auto_parallel_context(parallel_mode=mode, gradients_mean=True)
    network = Network()
    optimizer = nn.Momentum(network.trainable_params(), 0.02, 0.9)
    dataset = digits(8, num_shards=get_group_size(), shard_id=get_rank())
    model = ms.Model(network, nn.CrossEntropyLoss(), optimizer, metrics=["accuracy"])
    losses = model.train(epochs, dataset, callbacks=[train.LossMonitor(16), train.TimeMonitor()])
    print(f"accuracy: {model.eval(digits(32))['accuracy']:.3f}", flush=True)
    return losses


if __name__ == "__main__":
    main()
