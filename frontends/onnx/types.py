"""Element types and names: ONNX's and ours."""

import re

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from shardwright.frontends.onnx.errors import UnsupportedError
from shardwright.ir.types import numpy_dtype
from shardwright.operators.info import Array

MASKED = -1e4  # a score below this has no weight after a softmax
_DTYPES: dict[int, str] = {
    TensorProto.DOUBLE: "float64",
    TensorProto.FLOAT: "float32",
    TensorProto.FLOAT16: "float16",
    TensorProto.BFLOAT16: "bfloat16",
    TensorProto.INT64: "int64",
    TensorProto.INT32: "int32",
    TensorProto.INT16: "int16",
    TensorProto.INT8: "int8",
    TensorProto.UINT64: "uint64",
    TensorProto.UINT32: "uint32",
    TensorProto.UINT16: "uint16",
    TensorProto.UINT8: "uint8",
    TensorProto.BOOL: "bool",
}
_ENUMS = {dtype: enum for enum, dtype in _DTYPES.items()}


def dtype_of(enum: int) -> str:
    """Return our name for an ONNX element type.

    Raises
    ------
    UnsupportedError
        If our IR lacks it.
    """
    if enum not in _DTYPES:
        raise UnsupportedError(f"the element type {TensorProto.DataType.Name(enum)}")
    return _DTYPES[enum]


def enum_of(dtype: str) -> int:
    """Return the ONNX number of an element type of our IR."""
    return _ENUMS[dtype]


def array_of(tensor: TensorProto, directory: str = "") -> Array:
    """Return the elements of an ONNX tensor, as numpy holds them here."""
    dtype = dtype_of(tensor.data_type)
    return np.asarray(numpy_helper.to_array(tensor, directory)).astype(
        numpy_dtype(dtype), copy=False
    )


def is_mask(numbers: Array) -> bool:
    """Return whether added numbers form a mask: some keep scores, the others exclude them."""
    out = numbers <= MASKED
    return bool(out.any() and ((numbers == 0) | out).all())


def plain_name(name: str) -> str:
    """Return the nearest name that the text form of a graph allows."""
    plain = re.sub(r"[^\w./-]", "_", name, flags=re.ASCII).lstrip("/.-")
    return plain if re.match(r"[A-Za-z_]", plain) else f"_{plain}"


def attribute_value(attribute: onnx.AttributeProto) -> object:
    """Return an attribute as a Python value: text decoded, lists as tuples."""
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, (str, int, float)) or not hasattr(value, "__iter__"):
        return value
    if hasattr(value, "DESCRIPTOR"):
        return value
    return tuple(item.decode() if isinstance(item, bytes) else item for item in value)
