"""LeNet-5."""

from shardwright import nn
from shardwright.tensor import Tensor
from shardwright.tracing import Definition
from shardwright.zoo.images import classifier


class LeNet5(nn.Cell):
    """LeNet-5 (LeCun et al., 1998), with rectifiers and maxima in place of its smooth functions."""

    def __init__(self, channels: int, side: int, classes: int, dtype: str) -> None:
        self.conv1 = nn.Conv2d(channels, 6, 5, pad_mode="valid", has_bias=True, dtype=dtype)
        self.conv2 = nn.Conv2d(6, 16, 5, pad_mode="valid", has_bias=True, dtype=dtype)
        self.max_pool2d = nn.MaxPool2d(2, 2)
        self.relu = nn.ReLU()
        self.flatten = nn.Flatten()
        after = ((side - 4) // 2 - 4) // 2
        self.fc1 = nn.Dense(16 * after * after, 120, dtype=dtype)
        self.fc2 = nn.Dense(120, 84, dtype=dtype)
        self.fc3 = nn.Dense(84, classes, dtype=dtype)

    def construct(self, x: Tensor) -> Tensor:
        """Return the scores of the classes."""
        x = self.max_pool2d(self.relu(self.conv1(x)))
        x = self.max_pool2d(self.relu(self.conv2(x)))
        x = self.relu(self.fc1(self.flatten(x)))
        return self.fc3(self.relu(self.fc2(x)))


def lenet5(
    batch: int = 32, side: int = 32, channels: int = 1, classes: int = 10, dtype: str = "float32"
) -> Definition:
    """LeNet-5 for digits; MNIST's are enlarged to 32 x 32."""
    network = LeNet5(channels, side, classes, dtype)
    return classifier(network, "lenet5", batch, (channels, side, side), classes, dtype)
