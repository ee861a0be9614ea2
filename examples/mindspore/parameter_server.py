"""LeNet-5 on parameter servers: a scheduler, servers and workers run this script.

shardwright launch --worker_num 2 --server_num 2 examples/mindspore/parameter_server.py
"""

import os

from lenet import LeNet5
from network import digits

import shardwright.mindspore as ms
from shardwright.mindspore import nn, train
from shardwright.mindspore.communication import get_group_size, get_rank, init


def main(epochs=1):
    synchronous = "ASYNCHRONOUS" not in os.environ
    ms.set_ps_context(enable_ps=True, synchronous=synchronous)
    init()  # the scheduler and the servers end here, when the workers have ended
    ms.set_seed(1)
    workers, rank = int(get_group_size()), int(get_rank())
    network = LeNet5()
    network.set_param_ps()
    optimizer = nn.Momentum(network.trainable_params(), 0.02, 0.9)
    model = ms.Model(network, nn.CrossEntropyLoss(), optimizer, metrics={"accuracy"})
    data = digits(32 // workers, num_shards=workers, shard_id=rank, shuffle=False)
    losses = model.train(epochs, data, callbacks=[train.LossMonitor(16)])
    print(f"losses {losses}")
    print(f"{model.eval(digits(32))['accuracy']:.1%} of the digits are read", flush=True)
    return losses


if __name__ == "__main__":
    main()
