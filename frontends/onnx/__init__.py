"""ONNX models, imported into the IR.

`onnx_operators` has a converter for every ONNX operator: a function that emits it in operators of
our IR, in a module per family. An operator without a converter is imported as its function body in
the ONNX standard, if there is one.
"""

from shardwright.frontends.common.imported import Imported
from shardwright.frontends.onnx import onnx_training
from shardwright.frontends.onnx.converters import (
    attention,
    control,
    elementwise,
    indexing,
    linear,
    normalization,
    quantization,
    recurrent,
    reduction,
    resizing,
    sampling,
    scattering,
    shape,
    signal,
    windows,
)
from shardwright.frontends.onnx.onnx_model import import_model, read_model

__all__ = [
    "Imported",
    "attention",
    "control",
    "elementwise",
    "import_model",
    "indexing",
    "linear",
    "normalization",
    "onnx_training",
    "quantization",
    "read_model",
    "recurrent",
    "reduction",
    "resizing",
    "sampling",
    "scattering",
    "shape",
    "signal",
    "windows",
]
