"""Operators: rule, shapes, kernel, gradient and flops of each, in one place.

A package per family. Importing this one registers every operator.
"""

from shardwright.operators.attention import balanced, ring, rotary, scaled_dot_product
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
from shardwright.operators.linear import (
    decompositions,
    einsum,
    head_loss,
    matmul,
    matrices,
    nf4,
    triangular,
)
from shardwright.operators.models import (
    batch_normalization,
    dropout,
    eight_bit,
    loss,
    loss_scale,
    muon,
    normalization,
    optimizer,
    routing,
    schedule,
    updates,
)
from shardwright.operators.recurrent import alignment, layers, linear_attention, recurrence
from shardwright.operators.reduction import extremes, reduce, scan, softmax, sorting
from shardwright.operators.windows import convolution, halo_exchange, pooling, resize

__all__ = [
    "activation",
    "alignment",
    "arithmetic",
    "balanced",
    "batch_normalization",
    "bitwise",
    "collectives",
    "comparison",
    "conversion",
    "convolution",
    "decompositions",
    "dropout",
    "eight_bit",
    "einsum",
    "extremes",
    "functions",
    "fusion",
    "gather",
    "halo_exchange",
    "head_loss",
    "host",
    "inserted",
    "layers",
    "linear_attention",
    "loss",
    "loss_scale",
    "mathematics",
    "matmul",
    "matrices",
    "member_buffers",
    "muon",
    "nf4",
    "normalization",
    "on_gradient",
    "optimizer",
    "pooling",
    "ranks",
    "recurrence",
    "reduce",
    "resize",
    "ring",
    "rotary",
    "routing",
    "scaled_dot_product",
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
