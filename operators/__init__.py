"""Operators: rule, shapes, kernel, gradient and flops of each, in one place.

A module per family. Importing the package registers them all.
"""

from shardwright.operators import (
    attention,
    communication,
    dropout,
    elementwise,
    loss,
    matmul,
    normalization,
    optimizer,
    reduction,
    softmax,
)

__all__ = [
    "attention",
    "communication",
    "dropout",
    "elementwise",
    "loss",
    "matmul",
    "normalization",
    "optimizer",
    "reduction",
    "softmax",
]
