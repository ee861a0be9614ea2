"""ResNet: residual networks for images."""

from shardwright import nn
from shardwright.ir.errors import ModelError
from shardwright.tensor import Tensor
from shardwright.tracing import Definition
from shardwright.zoo.images import classifier

_STAGES = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}


def _convolution(before: int, after: int, kernel: int, stride: int, dtype: str) -> nn.Cell:
    """Return a convolution and its normalization."""
    convolution = nn.Conv2d(
        before,
        after,
        kernel,
        stride,
        pad_mode="pad",
        padding=kernel // 2,
        weight_init="he_normal",
        dtype=dtype,
    )
    return nn.SequentialCell(convolution, nn.BatchNorm2d(after, dtype=dtype))


class ResidualBlock(nn.Cell):
    """Two 3 x 3 convolutions, or with a bottleneck 1 x 1, 3 x 3 and 1 x 1, and a shortcut.

    Where space shrinks, the first 3 x 3 convolution has the stride.
    """

    def __init__(self, before: int, width: int, stride: int, bottleneck: bool, dtype: str) -> None:
        after = 4 * width if bottleneck else width
        kernels = (1, 3, 1) if bottleneck else (3, 3)
        strides = (1, stride, 1) if bottleneck else (stride, 1)
        sizes = (before, width, width, after) if bottleneck else (before, width, after)
        self.depth = len(kernels)
        for i, (kernel, step) in enumerate(zip(kernels, strides, strict=True)):
            cell = _convolution(sizes[i], sizes[i + 1], kernel, step, dtype)
            setattr(self, f"conv{i + 1}", cell)
        changes = stride != 1 or before != after
        self.shortcut = _convolution(before, after, 1, stride, dtype) if changes else None
        self.relu = nn.ReLU()

    def construct(self, x: Tensor) -> Tensor:
        """Convolve, add the shortcut."""
        y = x
        for i in range(1, self.depth + 1):
            y = getattr(self, f"conv{i}")(y)
            if i < self.depth:
                y = self.relu(y)
        return self.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResNet(nn.Cell):
    """Residual network (He et al., 2016); with `small` the stem for CIFAR's images."""

    def __init__(self, layers: int, width: int, classes: int, small: bool, dtype: str) -> None:
        if layers not in _STAGES:
            raise ModelError(
                f"no residual network has {layers} layers", hint=f"use one of {tuple(_STAGES)}"
            )
        bottleneck = layers >= 50
        kernel, stride = (3, 1) if small else (7, 2)
        self.conv1 = _convolution(3, width, kernel, stride, dtype)
        self.relu = nn.ReLU()
        self.maxpool = None if small else nn.MaxPool2d(3, 2, "pad", 1)
        before, stages = width, []
        for i, depth in enumerate(_STAGES[layers]):
            blocks = []
            for j in range(depth):
                stride = 2 if i > 0 and j == 0 else 1
                blocks.append(ResidualBlock(before, width << i, stride, bottleneck, dtype))
                before = (width << i) * (4 if bottleneck else 1)
            stages.append(nn.SequentialCell(blocks))
        self.stages = nn.SequentialCell(stages)
        self.mean = nn.GlobalAvgPool()
        self.end_point = nn.Dense(before, classes, dtype=dtype)

    def construct(self, x: Tensor) -> Tensor:
        """Return the scores of the classes."""
        x = self.relu(self.conv1(x))
        if self.maxpool is not None:
            x = self.maxpool(x)
        return self.end_point(self.mean(self.stages(x)))


def resnet(
    layers: int = 50,
    batch: int = 32,
    side: int = 224,
    width: int = 64,
    classes: int = 1000,
    small: bool = False,
    dtype: str = "float32",
) -> Definition:
    """ResNet-18, 34, 50, 101 or 152; `small` for images of CIFAR's size."""
    network = ResNet(layers, width, classes, small, dtype)
    return classifier(network, f"resnet{layers}", batch, (3, side, side), classes, dtype)
