"""Element types: PyTorch's and ours."""

import numpy as np
import torch

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.ir.types import TensorType, numpy_dtype
from shardwright.operators.info import Array

_DTYPES = {
    torch.float64: "float64",
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int64: "int64",
    torch.int32: "int32",
    torch.int16: "int16",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.bool: "bool",
}


# Complex tensors are pairs of real ones, in a last dimension.
_PAIRS = {torch.complex64: "float32", torch.complex128: "float64"}


def dtype_of(dtype: torch.dtype) -> str:
    """Return our name for an element type of PyTorch.

    Raises
    ------
    UnsupportedError
        If our IR lacks it.
    """
    if dtype not in _DTYPES:
        raise UnsupportedError(f"the element type {str(dtype).removeprefix('torch.')}")
    return _DTYPES[dtype]


def constant_dtype_of(dtype: torch.dtype) -> str:
    """Return our name for an element type of constants, which may be complex."""
    return str(dtype).removeprefix("torch.") if dtype in _PAIRS else dtype_of(dtype)


def type_of(tensor: torch.Tensor) -> TensorType:
    """Return the type of a tensor.

    Raises
    ------
    UnsupportedError
        If a size depends on data, or our IR lacks the element type.
    """
    if not all(isinstance(n, int) for n in tensor.shape):
        raise UnsupportedError(f"a tensor of shape {tuple(tensor.shape)}, which depends on data,")
    return TensorType(dtype_of(tensor.dtype), tuple(tensor.shape))


def pair_type_of(tensor: torch.Tensor) -> TensorType:
    """Return the type of a tensor; of a complex one that of its real and imaginary parts.

    Raises
    ------
    UnsupportedError
        If a size depends on data, or our IR lacks the element type.
    """
    if tensor.dtype not in _PAIRS:
        return type_of(tensor)
    return TensorType(_PAIRS[tensor.dtype], (*tensor.shape, 2))


def array_of(tensor: torch.Tensor) -> Array:
    """Return the elements of a tensor."""
    plain = tensor.detach().cpu()
    if plain.dtype == torch.bfloat16:
        return plain.contiguous().view(torch.int16).numpy().view(numpy_dtype("bfloat16"))
    array: Array = np.asarray(plain.numpy())
    return array
