"""Tensors of constants: zeros, ones, numbers in a row, the identity."""

import numpy as np

from shardwright.tensor import Tensor

Size = int | tuple[int, ...] | list[int]


def zeros(size: Size, dtype: str = "float32") -> Tensor:
    """Return a tensor of zeros."""
    return full(size, 0, dtype)


def ones(size: Size, dtype: str = "float32") -> Tensor:
    """Return a tensor of ones."""
    return full(size, 1, dtype)


def full(size: Size, fill_value: float | bool, dtype: str | None = None) -> Tensor:
    """Return a tensor of one number; of the number's type unless one is given."""
    shape = (size,) if isinstance(size, int) else tuple(size)
    if dtype is None:
        dtype = _dtype(fill_value)
    return Tensor(np.full(shape, fill_value), dtype)


def arange(
    start: float = 0, end: float | None = None, step: float = 1, dtype: str | None = None
) -> Tensor:
    """Return the numbers from `start` up to `end`, which is left out, in steps."""
    begin, stop = (0, start) if end is None else (start, end)
    whole = all(isinstance(number, int) for number in (begin, stop, step))
    return Tensor(np.arange(begin, stop, step), dtype or ("int64" if whole else "float32"))


def linspace(start: float, end: float, steps: int) -> Tensor:
    """Return numbers at equal distances, both ends included, in float32."""
    return Tensor(np.linspace(start, end, steps), "float32")


def eye(n: int, m: int | None = None, dtype: str = "float32") -> Tensor:
    """Return a matrix with ones on its diagonal."""
    return Tensor(np.eye(n, m), dtype)


def _dtype(number: float | bool) -> str:
    if isinstance(number, bool):
        return "bool"
    return "int64" if isinstance(number, int) else "float32"
