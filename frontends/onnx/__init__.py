"""ONNX models, imported into the IR.

`table` holds a converter for every ONNX operator: a small function that emits it in operators of
ours, in a module per family. An operator without one is imported as the composition that ONNX
itself gives for it, where it gives one.
"""

from shardwright.frontends.onnx import (
    elementwise,
    indexing,
    linear,
    normalization,
    reduction,
    shape,
)
from shardwright.frontends.onnx.model import Imported, import_model, read_model

__all__ = [
    "Imported",
    "elementwise",
    "import_model",
    "indexing",
    "linear",
    "normalization",
    "read_model",
    "reduction",
    "shape",
]
