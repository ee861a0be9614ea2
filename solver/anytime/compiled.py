"""Functions that are compiled where numba is installed, and run as plain Python elsewhere."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import TypeVar

Function = TypeVar("Function", bound=Callable[..., object])

COMPILED = importlib.util.find_spec("numba") is not None
"""Whether the inner loops are fast."""


def compiled(function: Function) -> Function:
    """Compile a function on its first call, and keep the machine code for the next process."""
    if not COMPILED:
        return function
    numba = importlib.import_module("numba")
    fast: Function = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    return fast
