"""Operators: rule, shapes, kernel, gradient and flops of each, in one place.

A module per family. Importing the package registers them all.
"""

from shardwright.operators import (
    communication,
    elementwise,
    matmul,
    normalization,
    reduction,
    softmax,
)

__all__ = [
    "communication",
    "elementwise",
    "matmul",
    "normalization",
    "reduction",
    "softmax",
]
