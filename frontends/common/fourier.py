"""Matrices of cosines and sines: a Fourier transform of a dimension is a product with them."""

import numpy as np

from shardwright.operators.info import Array


def waves(before: int, after: int, length: int) -> tuple[Array, Array]:
    """Return cosines and sines ``[before, after]`` of a transform of a length."""
    places = np.outer(np.arange(before), np.arange(after)) % length
    angle = 2 * np.pi * places / length
    return np.cos(angle), np.sin(angle)


def waves_to_real(length: int) -> tuple[Array, Array]:
    """Return the cosines and sines of a transform back to ``length`` real numbers.

    It is given by its first half: the other elements are conjugates of these, which count twice.
    """
    count = length // 2 + 1
    twice = np.full((count, 1), 2.0)
    twice[0] = 1.0
    if length % 2 == 0:
        twice[-1] = 1.0
    cos, sin = waves(count, length, length)
    return twice * cos, twice * sin
