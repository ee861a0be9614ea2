"""Arrays and their functions, by the names that the modules of every system use.

`xp` has the functions that PyTorch and JAX call the same; what they call otherwise is here. A
package for another system has a module of its own in place of this one, and the same modules on top
of it.
"""

from collections.abc import Sequence
from math import log
from typing import Any

import jax
import jax.numpy as xp
import numpy as np
from jax import Array

__all__ = ["Array", "xp"]  # beside what is defined here

along, at_least, at_most, choose = xp.take_along_axis, xp.maximum, xp.minimum, xp.where
parts, permuted, positions, repeated = xp.split, xp.transpose, xp.searchsorted, xp.repeat
log_softmax, softmax, sigmoid = jax.nn.log_softmax, jax.nn.softmax, jax.nn.sigmoid
relu, special = jax.nn.relu, jax.scipy.special


def as_type(x: Array, dtype: Any) -> Array:
    """Return an array in another type."""
    return x.astype(dtype)


def broadcast(x: Array, shape: Sequence[int]) -> Array:
    """Return an array that is repeated to a shape."""
    return xp.broadcast_to(x, tuple(shape))


def constant(values: np.ndarray, like: Array) -> Array:
    """Return known numbers in the type of an array."""
    return xp.asarray(values, like.dtype)


def counted(first: Any, count: int, like: Array) -> Array:
    """Return whole numbers from a first one, which may be known on the device alone."""
    return first + xp.arange(count)


def dtype_of(name: str) -> Any:
    """Return the element type of a name, `float32`; 64 bits are 32 where JAX has no wider types."""
    return jax.dtypes.canonicalize_dtype(name)


def number(value: float, like: Array) -> Array:
    """Return a number of the type of an array."""
    return xp.asarray(value, like.dtype)


scalar = number


def power_left(base: float, exponent: Array) -> Array:
    """Return what a power leaves of 1, exact in narrow types, too."""
    return -xp.expm1(exponent * log(base)) if base else xp.ones_like(exponent)


def zeros(shape: Sequence[int], like: Array) -> Array:
    """Return zeros of the type of an array."""
    return xp.zeros(tuple(shape), like.dtype)
