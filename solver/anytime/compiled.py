"""Functions that numba compiles where it is installed; elsewhere they run as plain Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from shardwright.ir.optional import is_installed, optional

Function = TypeVar("Function", bound=Callable[..., object])

COMPILED = is_installed("numba")
"""Whether the inner loops are fast."""


def compiled(function: Function) -> Function:
    """Compile a function on its first call; later processes reuse the machine code."""
    if not COMPILED:
        return function
    numba = optional("numba", extra="fast", need="the compiled solver")
    fast: Function = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    return fast
