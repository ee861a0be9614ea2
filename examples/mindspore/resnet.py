"""ResNet-50 under MindSpore's names, and the loss that its training uses."""

import math

import shardwright.mindspore as ms
from shardwright.mindspore import nn, ops


def convolution(before, after, kernel, stride=1):
    return nn.Conv2d(
        before, after, kernel, stride, pad_mode="same", weight_init="XavierUniform", has_bias=False
    )


def normalization(channels):
    return nn.BatchNorm2d(
        channels,
        eps=1e-5,
        momentum=0.9,
        gamma_init="ones",
        beta_init="zeros",
        moving_mean_init="zeros",
        moving_var_init="ones",
    )


class Bottleneck(nn.Cell):
    """Convolutions of 1 x 1, 3 x 3 and 1 x 1, and a shortcut."""

    def __init__(self, before, width, stride):
        super().__init__()
        after = 4 * width
        self.conv1 = convolution(before, width, 1)
        self.bn1 = normalization(width)
        self.conv2 = convolution(width, width, 3, stride)
        self.bn2 = normalization(width)
        self.conv3 = convolution(width, after, 1)
        self.bn3 = normalization(after)
        self.relu = ops.ReLU()
        self.add = ops.Add()
        self.changes = stride != 1 or before != after
        if self.changes:
            self.down = convolution(before, after, 1, stride)
            self.bn_down = normalization(after)

    def construct(self, x):
        shortcut = self.bn_down(self.down(x)) if self.changes else x
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        return self.relu(self.add(self.bn3(self.conv3(x)), shortcut))


class ResNet(nn.Cell):
    """A residual network (He et al., 2016)."""

    def __init__(self, depths, width, classes):
        super().__init__()
        self.conv1 = convolution(3, width, 7, 2)
        self.bn1 = normalization(width)
        self.relu = ops.ReLU()
        self.pool = nn.MaxPool2d(kernel_size=3, stride=2, pad_mode="same")
        before, layers = width, []
        for i, depth in enumerate(depths):
            for j in range(depth):
                stride = 2 if i and not j else 1
                layers.append(Bottleneck(before, width << i, stride))
                before = 4 * (width << i)
        self.layers = nn.SequentialCell(layers)
        self.mean = ops.ReduceMean(keep_dims=True)
        self.flatten = nn.Flatten()
        self.end = nn.Dense(before, classes, weight_init="XavierUniform")

    def construct(self, x):
        x = self.pool(self.relu(self.bn1(self.conv1(x))))
        return self.end(self.flatten(self.mean(self.layers(x), (2, 3))))


def resnet50(batch_size, num_classes, width=64):
    """Return ResNet-50; `width` is that of its first layer."""
    return ResNet((3, 4, 6, 3), width, num_classes)


class CrossEntropy(nn.Cell):
    """The cross entropy of scores, operator by operator."""

    def __init__(self, sparse=False):
        super().__init__()
        self.sparse = sparse
        self.exp, self.log = ops.Exp(), ops.Log()
        self.max = ops.ReduceMax(keep_dims=True)
        self.sum = ops.ReduceSum(keep_dims=True)
        self.mean = ops.ReduceMean()
        self.one_hot = ops.OneHot()
        self.on, self.off = ms.Tensor(1.0, ms.float32), ms.Tensor(0.0, ms.float32)

    def construct(self, logits, labels):
        if self.sparse:
            labels = self.one_hot(labels, ops.shape(logits)[1], self.on, self.off)
        shifted = logits - self.max(logits, -1)
        logs = shifted - self.log(self.sum(self.exp(shifted), -1))
        return self.mean(ops.scalar_to_tensor(-1.0) * self.sum(logs * labels, -1))


def parameters_of(network):
    return sum(math.prod(parameter.shape) for parameter in network.trainable_params())
