"""LeNet-5 on handwritten digits; the compiler decides for eight devices.

    python examples/lenet.py [FOLDER]

The digits are scikit-learn's, or MNIST's files in FOLDER.
"""

import sys

import shardwright as sw
import shardwright.dataset as ds
from shardwright import nn, train


class LeNet5(nn.Cell):
    def __init__(self, num_class=10):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, pad_mode="same")
        self.conv2 = nn.Conv2d(6, 16, 5, pad_mode="valid")
        self.fc1 = nn.Dense(16 * 5 * 5, 120)
        self.fc2 = nn.Dense(120, 84)
        self.fc3 = nn.Dense(84, num_class)
        self.relu = nn.ReLU()
        self.max_pool2d = nn.MaxPool2d(kernel_size=2, stride=2)
        self.flatten = nn.Flatten()

    def construct(self, x):
        x = self.max_pool2d(self.relu(self.conv1(x)))
        x = self.max_pool2d(self.relu(self.conv2(x)))
        x = self.relu(self.fc1(self.flatten(x)))
        return self.fc3(self.relu(self.fc2(x)))


def create_dataset(batch_size, folder=None):
    if folder is None:
        dataset = ds.digits().map(lambda image: image.reshape(1, 28, 28), "image")
    else:
        operations = [ds.vision.Rescale(1 / 255, 0.0), ds.vision.HWC2CHW()]
        dataset = ds.MnistDataset(folder).map(operations, "image")
        dataset = dataset.map(ds.transforms.TypeCast("int32"), "label")
    return dataset.shuffle(seed=1).batch(batch_size)


def main(epochs=10, folder=None):
    net = LeNet5()
    optimizer = nn.Adam(net.trainable_params(), 0.005)
    model = sw.Model(sw.AutoParallel(net, devices=8), nn.CrossEntropyLoss(), optimizer)
    return model.train(epochs, create_dataset(32, folder), callbacks=[train.LossMonitor(20)])


if __name__ == "__main__":
    main(folder=sys.argv[1] if len(sys.argv) > 1 else None)
