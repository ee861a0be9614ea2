"""Element types: JAX's and ours."""

from typing import Any

import numpy as np

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.ir.types import DTYPES, TensorType
from shardwright.operators.info import Array


def dtype_of(dtype: Any) -> str:
    """Return our name for an element type of JAX.

    Raises
    ------
    UnsupportedError
        If our IR lacks it: complex numbers, keys of random numbers, small floating-point types.
    """
    name = str(getattr(dtype, "name", dtype))
    if name not in DTYPES:
        raise UnsupportedError(f"the element type {name}")
    return name


def type_of(aval: Any) -> TensorType:
    """Return the type of an abstract value.

    Raises
    ------
    UnsupportedError
        If a size depends on data, or our IR lacks the element type.
    """
    if not all(isinstance(n, int) for n in aval.shape):
        raise UnsupportedError(f"a tensor of shape {tuple(aval.shape)}, which is not static,")
    if 0 in aval.shape:
        raise UnsupportedError(f"a tensor of shape {tuple(aval.shape)}, which has no elements,")
    return TensorType(dtype_of(aval.dtype), tuple(aval.shape))


def narrowed(array: Array) -> Array:
    """Return one slice along each dimension that is repeated without memory of its own."""
    repeated = zip(array.shape, array.strides, strict=True)
    return array[tuple(slice(0, 1) if n > 1 and not s else slice(None) for n, s in repeated)]


def compressed(array: Array) -> Array:
    """Return a view of one slice, repeated, along each dimension whose slices are all equal.

    Masks and positions of a batch then take the memory of one sample.
    """
    shape, small = array.shape, narrowed(array)
    for d, size in enumerate(small.shape):
        first = small[(slice(None),) * d + (slice(0, 1),)]
        if size > 1 and np.array_equal(np.broadcast_to(first, small.shape), small):
            small = first
    return np.broadcast_to(small, shape)
