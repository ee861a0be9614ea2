"""Transformations of single arrays of a dataset; `vision` and `transforms` in MindSpore."""

from collections.abc import Sequence

import numpy as np

from shardwright.ir.types import numpy_dtype
from shardwright.operators.info import Array


class Rescale:
    """Multiply and add: ``x * rescale + shift``."""

    def __init__(self, rescale: float, shift: float) -> None:
        self.rescale = rescale
        self.shift = shift

    def __call__(self, x: Array) -> Array:
        """Return the array in its new scale, as float32."""
        return (x * self.rescale + self.shift).astype(np.float32)


class Normalize:
    """Subtract the mean and divide by the deviation of each channel, the last dimension."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self.mean = np.asarray(mean, np.float32)
        self.std = np.asarray(std, np.float32)

    def __call__(self, x: Array) -> Array:
        """Return the normalized array, as float32."""
        return ((x - self.mean) / self.std).astype(np.float32)


class HWC2CHW:
    """Put the channel first: ``[height, width, channel]`` to ``[channel, height, width]``."""

    def __call__(self, x: Array) -> Array:
        """Return the array with its channel first."""
        return np.transpose(x, (2, 0, 1))


class TypeCast:
    """Give the elements another type."""

    def __init__(self, output_type: str) -> None:
        self.output_type = output_type

    def __call__(self, x: Array) -> Array:
        """Return the elements as the other type."""
        return x.astype(numpy_dtype(self.output_type))
