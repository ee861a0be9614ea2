"""PyTorch modules, imported into the IR.

`aten` has a converter for every ATen operator: a function that emits it in operators of our IR, in
a module per family.
"""

from shardwright.frontends.common.imported import Imported
from shardwright.frontends.torch.converters import (
    attention,
    complex_functions,
    complex_numbers,
    elementwise,
    embedding,
    extrema,
    indexing,
    linear,
    loss,
    matrices,
    normalization,
    own,
    quantization,
    random,
    recurrent,
    reduction,
    scatter,
    shape,
    special,
    windows,
)
from shardwright.frontends.torch.torch_model import import_module

__all__ = [
    "Imported",
    "attention",
    "complex_functions",
    "complex_numbers",
    "elementwise",
    "embedding",
    "extrema",
    "import_module",
    "indexing",
    "linear",
    "loss",
    "matrices",
    "normalization",
    "own",
    "quantization",
    "random",
    "recurrent",
    "reduction",
    "scatter",
    "shape",
    "special",
    "windows",
]
