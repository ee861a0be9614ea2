"""LeNet-5 in data parallelism, with checkpoints.

shardwright launch -n 4 examples/mindspore/lenet.py
"""

import tempfile

from network import digits

import shardwright.mindspore as ms
from shardwright.mindspore import nn, train
from shardwright.mindspore.communication import init


class LeNet5(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, pad_mode="same")
        self.conv2 = nn.Conv2d(6, 16, 5, pad_mode="valid")
        self.fc1 = nn.Dense(16 * 5 * 5, 120)
        self.fc2 = nn.Dense(120, 84)
        self.fc3 = nn.Dense(84, 10)
        self.relu, self.pool = nn.ReLU(), nn.MaxPool2d(kernel_size=2, stride=2)
        self.flatten = nn.Flatten()

    def construct(self, x):
        x = self.pool(self.relu(self.conv1(x)))
        x = self.flatten(self.pool(self.relu(self.conv2(x))))
        return self.fc3(self.relu(self.fc2(self.relu(self.fc1(x)))))


def main(epochs=2, folder=None):
    init()
    ms.set_seed(1)
    mode = ms.ParallelMode.DATA_PARALLEL
    ms.set_auto_parallel_context(parallel_mode=mode, gradients_mean=True)
    network = LeNet5()
    optimizer = nn.Adam(network.trainable_params(), 2e-3)
    config = train.CheckpointConfig(save_checkpoint_steps=32, keep_checkpoint_max=2)
    folder = folder or tempfile.mkdtemp(prefix="lenet-")
    saver = train.ModelCheckpoint("lenet", folder, config)
    model = ms.Model(network, nn.CrossEntropyLoss(), optimizer)
    losses = model.train(epochs, digits(32), callbacks=[train.LossMonitor(16), saver])
    other = LeNet5()
    ms.load_checkpoint(saver.latest_ckpt_file_name, other)
    images, _ = next(iter(digits(32)))
    same = (other(images).asnumpy() == network(images).asnumpy()).all()
    print(f"the checkpoint gives the same scores: {same}", flush=True)
    return losses


if __name__ == "__main__":
    main()
