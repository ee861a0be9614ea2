# ruff: noqa: D101, D102, D103  (models are for reading; the classes say what they are for)
"""Small models that exercise what seeded bugs break."""

from shardwright import InputSpec, Parameter, TensorType, initializer, nn, ops
from shardwright.communication import get_group_size, get_rank

BATCH, CLASSES = 16, 4


def _inputs(*shape):
    return (
        InputSpec("x", TensorType("float32", (BATCH, *shape))),
        InputSpec("label", TensorType("int32", (BATCH,)), CLASSES),
    )


class Twins(nn.Cell):
    """Nodes that are nearly equal: in an attribute, in the order of operands, in all."""

    def __init__(self):
        self.first = nn.Dense(8, 8)
        self.second = nn.Dense(8, CLASSES)

    def construct(self, x):
        h = self.first(x)
        differences = ops.tanh(h - x) * ops.sigmoid(x - h)
        low, high = ops.split(h, 1, 2)
        low_again, high_again = ops.split(h, 1, 2)
        halves = ops.concat((low * 2.0, high_again * 5.0), 1) - ops.concat((high, low_again), 1)
        return self.second(h * 2.0 - ops.relu(h * 5.0) + differences + halves)


class Stopped(nn.Cell):
    """A path through which no gradient goes, on trained values."""

    def __init__(self):
        self.first = nn.Dense(8, 8)
        self.second = nn.Dense(8, CLASSES)

    def construct(self, x):
        h = ops.tanh(self.first(x))
        return self.second(h * ops.stop_gradient(h))


class Normalized(nn.Cell):
    """Statistics that are updated without a gradient; a bias whose gradient is zero."""

    def __init__(self):
        self.first, self.bn, self.second = nn.Dense(8, 8), nn.BatchNorm1d(8), nn.Dense(8, CLASSES)

    def construct(self, x):
        return self.second(ops.relu(self.bn(self.first(x))))


class Greatest(nn.Cell):
    """Partial maxima, and equal layers that are read twice."""

    def __init__(self):
        self.layers = nn.CellList([nn.Dense(8, 8) for _ in range(3)])
        self.last = nn.Dense(8, CLASSES)

    def construct(self, x):
        for layer in self.layers:
            x = ops.tanh(layer(layer(x)))
        return self.last(x) - ops.ReduceMax(keep_dims=True)(x, 0)[:, :CLASSES]


class Columns(nn.Cell):
    """Uneven sizes: biases that four ranks cannot share equally."""

    def __init__(self):
        self.layers = nn.SequentialCell(nn.Dense(8, 10), nn.ReLU(), nn.Dense(10, 6), nn.ReLU())
        self.last = nn.Dense(6, CLASSES)

    def construct(self, x):
        return self.last(self.layers(x))


def own(tensor):
    """Return the rank's part of the batch."""
    size = tensor.shape[0] // get_group_size()
    return tensor[get_rank() * size : (get_rank() + 1) * size]


class SplitByHand(nn.Cell):
    """A batch that is cut by the rank, and weights of which each rank has its part."""

    def __init__(self):
        inner = 8 // get_group_size()
        own_part = {"layerwise_parallel": True}
        self.first = nn.Dense(8, 8)
        self.up = Parameter(initializer("normal(0.5)", (8, inner)), **own_part)
        self.down = Parameter(initializer("normal(0.5)", (inner, CLASSES)), **own_part)

    def construct(self, x):
        return ops.AllReduce()(ops.relu(self.first(x)) @ self.up @ self.down)


class BatchByHand(nn.Cell):
    """Data parallelism by hand; the loss of each rank is that of its part."""

    def __init__(self):
        self.first, self.second = nn.Dense(8, 8), nn.Dense(8, CLASSES)

    def construct(self, x):
        return self.second(ops.relu(self.first(own(x))))


class MeanLoss(nn.Cell):
    def __init__(self):
        self.loss = nn.CrossEntropyLoss()

    def construct(self, scores, label):
        return ops.AllReduce()(self.loss(scores, own(label))) / get_group_size()


class SumLoss(nn.Cell):
    def construct(self, scores, label):
        return ops.ReduceSum()(ops.square(scores - ops.one_hot(label, CLASSES)))


def twins():
    return Twins(), _inputs(8), nn.CrossEntropyLoss()


def stopped():
    return Stopped(), _inputs(8), nn.CrossEntropyLoss()


def normalized():
    return Normalized(), _inputs(8), nn.CrossEntropyLoss()


def greatest():
    return Greatest(), _inputs(8), nn.CrossEntropyLoss()


def columns():
    return Columns(), _inputs(8), nn.CrossEntropyLoss()


def summed():
    """Return a network whose loss is a sum over the whole batch."""
    return Columns(), _inputs(8), SumLoss()


def split_by_hand():
    return SplitByHand(), _inputs(8), nn.CrossEntropyLoss()


def batch_by_hand():
    return BatchByHand(), _inputs(8), MeanLoss()
