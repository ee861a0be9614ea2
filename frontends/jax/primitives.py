"""The table of JAX's primitives: for each a function that emits it in operators of our IR.

A function takes the call, which has the operands and the primitive's parameters, and returns a
value, or a list of one for each result.
"""

from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]
CONVERTERS: dict[str, Function] = {}


def converts(*primitives: str) -> Callable[[Function], Function]:
    """Register a function as the converter of primitives."""

    def add(function: Function) -> Function:
        CONVERTERS.update(dict.fromkeys(primitives, function))
        return function

    return add
