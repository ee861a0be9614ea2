"""Masks of attention that are known when a model is imported."""

from shardwright.operators.info import Array

MASKED = -1e4
"""What BERT, and MindSpore since, add to scores that a mask leaves out: they have no weight after a
softmax, as those of all lower numbers."""

HIDDEN = -1e30
"""A score whose exponential is 0 in every element type, and which is finite, as sums of two are."""


def is_mask(numbers: Array) -> bool:
    """Return whether added numbers form a mask: some keep scores, the others exclude them."""
    out = numbers <= MASKED
    return bool(out.any() and ((numbers == 0) | out).all())
