"""Hand-written parallel networks, as a user's file has them."""

from shardwright import InputSpec, Parameter, TensorType, initializer, nn, ops
from shardwright.communication import get_group_size, get_rank

BATCH, CLASSES = 8, 6


def own(tensor):
    """Return the rank's part of the batch."""
    size = tensor.shape[0] // get_group_size()
    start = get_rank() * size
    return tensor[start : start + size]


class SplitBatch(nn.Cell):
    def __init__(self):
        self.layer1 = nn.Dense(4, 6)
        self.layer2 = nn.Dense(6, CLASSES)

    def construct(self, x):
        return self.layer2(ops.relu(self.layer1(own(x))))


class MeanLoss(nn.Cell):
    def __init__(self):
        self.loss = nn.CrossEntropyLoss()

    def construct(self, scores, label):
        return ops.AllReduce()(self.loss(scores, own(label))) / get_group_size()


class SplitLayers(nn.Cell):
    """Two products on weights of which each rank has its own part."""

    def __init__(self):
        inner = 8 // get_group_size()
        own_part = {"layerwise_parallel": True}
        self.first = nn.Dense(4, 4)
        self.up = Parameter(initializer("normal(0.5)", (4, inner)), **own_part)
        self.down = Parameter(initializer("normal(0.5)", (inner, CLASSES)), **own_part)

    def construct(self, x):
        hidden = ops.relu(self.first(x) @ self.up)
        return ops.AllReduce()(hidden @ self.down)


def inputs():
    return (
        InputSpec("x", TensorType("float32", (BATCH, 4))),
        InputSpec("label", TensorType("int32", (BATCH,)), CLASSES),
    )


def split_batch():
    return SplitBatch(), inputs(), MeanLoss()


def local_loss():
    def loss(scores, label):
        return nn.CrossEntropyLoss()(scores, own(label))

    return SplitBatch(), inputs(), loss


def split_layers():
    return SplitLayers(), inputs(), nn.CrossEntropyLoss()


def no_loss():
    return SplitBatch(), inputs()[:1]


class Misspelt(nn.Cell):
    def construct(self, x):
        return ops.rleu(x)


class Misfit(nn.Cell):
    def __init__(self):
        self.layer = nn.Dense(5, CLASSES)

    def construct(self, x):
        return self.layer(x)


def wrong_operator():
    return Misspelt(), inputs()[:1]


def wrong_shape():
    return Misfit(), inputs()[:1]


def fails():
    return 1 / 0
