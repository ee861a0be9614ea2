"""VGG-16."""

from shardwright import nn
from shardwright.tensor import Tensor
from shardwright.tracing import Definition
from shardwright.zoo.images import classifier

_DEPTHS = (2, 2, 3, 3, 3)


class Vgg16(nn.Cell):
    """VGG-16 (Simonyan and Zisserman, 2015): convolutions of 3 x 3, and two wide dense layers."""

    def __init__(
        self, side: int, width: int, hidden: int, classes: int, dropout: float, dtype: str
    ) -> None:
        before, cells = 3, []
        for i, depth in enumerate(_DEPTHS):
            after = width * min(1 << i, 8)
            for _ in range(depth):
                cells += [nn.Conv2d(before, after, 3, has_bias=True, dtype=dtype), nn.ReLU()]
                before = after
            cells.append(nn.MaxPool2d(2, 2))
        self.features = nn.SequentialCell(cells)
        self.flatten = nn.Flatten()
        self.fc1 = nn.Dense(before * (side >> 5) ** 2, hidden, activation="relu", dtype=dtype)
        self.fc2 = nn.Dense(hidden, hidden, activation="relu", dtype=dtype)
        self.fc3 = nn.Dense(hidden, classes, dtype=dtype)
        self.dropout1, self.dropout2 = nn.Dropout(dropout), nn.Dropout(dropout)

    def construct(self, x: Tensor) -> Tensor:
        """Return the scores of the classes."""
        x = self.dropout1(self.fc1(self.flatten(self.features(x))))
        return self.fc3(self.dropout2(self.fc2(x)))


def vgg16(
    batch: int = 32,
    side: int = 224,
    width: int = 64,
    hidden: int = 4096,
    classes: int = 1000,
    dropout: float = 0.5,
    dtype: str = "float32",
) -> Definition:
    """VGG-16 for ImageNet."""
    network = Vgg16(side, width, hidden, classes, dropout, dtype)
    return classifier(network, "vgg16", batch, (3, side, side), classes, dtype)
