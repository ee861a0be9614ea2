"""Arrays and their functions, by the names that the modules of every system use.

`xp` has the functions that PyTorch and JAX call the same; what they call otherwise is here. A
package for another system has a module of its own in place of this one, and the same modules on top
of it.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as xp
from jax import Array

__all__ = ["Array", "xp"]  # beside what is defined here

at_least, at_most, choose, parts = xp.maximum, xp.minimum, xp.where, xp.split
permuted, sigmoid, special = xp.transpose, jax.nn.sigmoid, jax.scipy.special


def as_type(x: Array, dtype: Any) -> Array:
    """Return an array in another type."""
    return x.astype(dtype)


def broadcast(x: Array, shape: Sequence[int]) -> Array:
    """Return an array that is repeated to a shape."""
    return xp.broadcast_to(x, tuple(shape))


def number(value: float, like: Array) -> Array:
    """Return a number of the type of an array."""
    return xp.asarray(value, like.dtype)


scalar = number


def zeros(shape: Sequence[int], like: Array) -> Array:
    """Return zeros of the type of an array."""
    return xp.zeros(tuple(shape), like.dtype)
