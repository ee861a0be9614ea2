"""A training step written out, its optimizer split over all devices.

python examples/optimizer_parallel.py
"""

from digits_data import create_dataset

import shardwright as sw
from shardwright import nn
from shardwright.parallel import AutoParallel


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.flatten = nn.Flatten()
        self.layer1 = nn.Dense(28 * 28, 512)
        self.layer2 = nn.Dense(512, 512)
        self.layer3 = nn.Dense(512, 10)
        self.relu = nn.ReLU()

    def construct(self, x):
        x = self.flatten(x)
        x = self.layer1(x)
        x = self.relu(x)
        x = self.layer2(x)
        x = self.relu(x)
        return self.layer3(x)


net = Network()
optimizer = nn.SGD(net.trainable_params(), 1e-2)
net.layer1.set_comm_fusion(0)
net.layer2.set_comm_fusion(1)
net.layer3.set_comm_fusion(2)
loss_fn = nn.CrossEntropyLoss()


def forward_fn(data, target):
    logits = net(data)
    loss = loss_fn(logits, target)
    return loss, logits


grad_fn = sw.value_and_grad(forward_fn, None, net.trainable_params(), has_aux=True)


@sw.jit
def train_step(inputs, targets):
    (loss_value, _), grads = grad_fn(inputs, targets)
    optimizer(grads)
    return loss_value


def main(epochs=10):
    parallel_net = AutoParallel(train_step, parallel_mode="semi_auto", devices=8)
    parallel_net.hsdp()
    losses = []
    for epoch in range(epochs):
        for i, (image, label) in enumerate(create_dataset(32)):
            losses.append(parallel_net(image, label))
            if i % 10 == 0:
                print(f"epoch: {epoch}, step: {i}, loss is {losses[-1]}")
    return losses


if __name__ == "__main__":
    main()
