"""A training step written out, whose parameters and optimizer states are divided among the ranks.

shardwright launch -n 4 examples/mindspore/optimizer_parallel.py
"""

from network import Network, digits

import shardwright.mindspore as ms
from shardwright.mindspore import nn
from shardwright.mindspore.communication import init
from shardwright.mindspore.nn.utils import no_init_parameters
from shardwright.mindspore.parallel.auto_parallel import AutoParallel


def main(epochs=3):
    init()
    ms.set_seed(1)
    with no_init_parameters():
        network = Network()
        optimizer = nn.Adam(network.trainable_params(), 1e-3)
    loss_fn = nn.CrossEntropyLoss()

    def forward(images, labels):
        return loss_fn(network(images), labels)

    grad_fn = ms.value_and_grad(forward, None, network.trainable_params())

    @ms.jit
    def train_step(images, labels):
        loss, gradients = grad_fn(images, labels)
        optimizer(gradients)
        return loss

    step = AutoParallel(train_step, parallel_mode="semi_auto", cluster="cpu")
    step.hsdp(threshold=0)
    losses = []
    for epoch in range(epochs):
        for i, (images, labels) in enumerate(digits(32)):
            losses.append(float(step(images, labels)))
            if i % 16 == 0:
                print(f"epoch: {epoch}, step: {i}, loss is {losses[-1]}", flush=True)
    return losses


if __name__ == "__main__":
    main()
