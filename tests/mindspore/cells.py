"""Cells and tensors of tests."""

import numpy as np

from shardwright.mindspore import Tensor, nn


class Applied(nn.Cell):
    """A function as a cell."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def construct(self, *inputs):
        return self.function(*inputs)


def ones(*shape, dtype="float32"):
    return Tensor(np.ones(shape), dtype)
