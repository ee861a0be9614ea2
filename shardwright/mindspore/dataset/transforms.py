"""Transformations of columns of a dataset."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardwright.dataset.transforms import OneHot, RandomOperation, TypeCast
from shardwright.operators.info import Array


class Compose(RandomOperation):
    """Transformations in turn, as one.

    Parameters
    ----------
    transforms : sequence of callable
        The transformations.
    """

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = tuple(transforms)

    def draw(self, x: Array, random: np.random.Generator) -> Array:
        """Apply them."""
        for each in self.transforms:
            x = each.draw(x, random) if isinstance(each, RandomOperation) else each(x)
        return x


__all__ = ["Compose", "OneHot", "TypeCast"]
