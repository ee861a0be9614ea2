"""Operators: rule, shapes, kernel, gradient and flops of each, in one place.

A module per family. Importing the package registers them all.
"""

from shardwright.operators import (
    activation,
    arithmetic,
    attention,
    communication,
    comparison,
    conversion,
    convolution,
    dropout,
    fusion,
    indexing,
    loss,
    mathematics,
    matmul,
    normalization,
    optimizer,
    reduction,
    shape,
    slicing,
    softmax,
)

__all__ = [
    "activation",
    "arithmetic",
    "attention",
    "communication",
    "comparison",
    "conversion",
    "convolution",
    "dropout",
    "fusion",
    "indexing",
    "loss",
    "mathematics",
    "matmul",
    "normalization",
    "optimizer",
    "reduction",
    "shape",
    "slicing",
    "softmax",
]
