"""Masks of attention that are known when a model is imported."""

from shardwright.operators.info import Array

MASKED = -1e4  # a score below this has no weight after a softmax


def is_mask(numbers: Array) -> bool:
    """Return whether added numbers form a mask: some keep scores, the others exclude them."""
    out = numbers <= MASKED
    return bool(out.any() and ((numbers == 0) | out).all())
