"""Operators: rule, shapes, kernel, gradient and flops of each, in one place.

A package per family. Importing this one registers every operator.
"""

from shardwright.operators.communication import (
    collectives,
    fusion,
    host,
    inserted,
    member_buffers,
    ranks,
)
from shardwright.operators.elementwise import (
    activation,
    arithmetic,
    bitwise,
    comparison,
    conversion,
    functions,
    mathematics,
    on_gradient,
    special,
)
from shardwright.operators.indexing import gather, scatter, shape, slicing
from shardwright.operators.linear import einsum, matmul, matrices, triangular
from shardwright.operators.models import (
    attention,
    balanced_attention,
    batch_normalization,
    dropout,
    eight_bit,
    loss,
    loss_scale,
    muon,
    normalization,
    optimizer,
    ring_attention,
    rotary,
    routing,
    schedule,
    updates,
)
from shardwright.operators.recurrent import alignment, layers, recurrence
from shardwright.operators.reduction import extremes, reduce, scan, softmax, sorting
from shardwright.operators.windows import convolution, halo_exchange, pooling, resize

__all__ = [
    "activation",
    "alignment",
    "arithmetic",
    "attention",
    "balanced_attention",
    "batch_normalization",
    "bitwise",
    "collectives",
    "comparison",
    "conversion",
    "convolution",
    "dropout",
    "eight_bit",
    "einsum",
    "extremes",
    "functions",
    "fusion",
    "gather",
    "halo_exchange",
    "host",
    "inserted",
    "layers",
    "loss",
    "loss_scale",
    "mathematics",
    "matmul",
    "matrices",
    "member_buffers",
    "muon",
    "normalization",
    "on_gradient",
    "optimizer",
    "pooling",
    "ranks",
    "recurrence",
    "reduce",
    "resize",
    "ring_attention",
    "rotary",
    "routing",
    "scan",
    "scatter",
    "schedule",
    "shape",
    "slicing",
    "softmax",
    "sorting",
    "special",
    "triangular",
    "updates",
]
