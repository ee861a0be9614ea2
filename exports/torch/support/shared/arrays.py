"""Tensors and their functions, by the names that the modules of every system use.

`xp` has the functions that PyTorch and JAX call the same; what they call otherwise is here. A
package for another system has a module of its own in place of this one, and the same modules on top
of it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch as xp
from torch import Tensor as Array

__all__ = ["Array", "xp"]  # beside what is defined here

log_softmax, softmax, sigmoid, relu = xp.log_softmax, xp.softmax, xp.sigmoid, xp.relu
repeated, special = xp.repeat_interleave, xp.special


def along(x: Array, places: Array, axis: int) -> Array:
    """Return the elements at places along a dimension."""
    return x.gather(axis, places)


def as_type(x: Array, dtype: Any) -> Array:
    """Return a tensor in another type."""
    return x.to(dtype)


def at_least(x: Array, low: float) -> Array:
    """Return the greater ones of the elements and a number."""
    return x.clamp(min=low)


def at_most(x: Array, high: float) -> Array:
    """Return the smaller ones of the elements and a number."""
    return x.clamp(max=high)


def broadcast(x: Array, shape: Sequence[int]) -> Array:
    """Return a tensor that is repeated to a shape."""
    return x.expand(tuple(shape))


def choose(condition: Any, yes: Array, no: Array) -> Array:
    """Return one of two tensors by a condition on a number, which is known here."""
    return yes if condition else no


def constant(values: np.ndarray, like: Array) -> Array:
    """Return known numbers in the type of a tensor, where the tensor is."""
    return xp.from_numpy(values).to(like.device, like.dtype)


def counted(first: int, count: int, like: Array) -> Array:
    """Return whole numbers from a first one, where a tensor is."""
    return xp.arange(first, first + count, device=like.device)


def dtype_of(name: str) -> Any:
    """Return the element type of a name: `float32`."""
    return getattr(xp, name)


def number(value: float, like: Array) -> Array:
    """Return a number of the type of a tensor; on the CPU, since a GPU would be waited for."""
    return xp.tensor(value, dtype=like.dtype, device="cpu")


def permuted(x: Array, order: Sequence[int]) -> Array:
    """Return a tensor with its dimensions in another order."""
    return x.permute(tuple(order))


def positions(edges: Array, x: Array) -> Array:
    """Return how many of the edges, which rise, are less than each element."""
    return xp.searchsorted(edges, x.contiguous())


def power_left(base: float, exponent: Any) -> Any:
    """Return what a power leaves of 1."""
    return 1 - base**exponent


def zeros(shape: Sequence[int], like: Array) -> Array:
    """Return zeros of the type of a tensor."""
    return like.new_zeros(tuple(shape))


def scalar(value: float, like: Array) -> Array:
    """Return a number of the type of a tensor, where the tensor is."""
    return like.new_full((), value)


def parts(x: Array, count: int, axis: int = 0) -> Sequence[Array]:
    """Return equal parts of a tensor along a dimension."""
    return x.chunk(count, axis)
