"""Element types and names: ONNX's and ours."""

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.ir.types import numpy_dtype
from shardwright.operators.info import Array

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
