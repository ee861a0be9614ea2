"""Operators to build networks of: primitives, functions, and communication.

Every name of `shardwright.ops` is here.
"""

from typing import Any

from shardwright import ops as own
from shardwright.gradients import value_and_grad
from shardwright.mindspore.ops import functional, operations
from shardwright.mindspore.ops.functional import Shape, scalar_to_tensor, shape

__all__ = ["Shape", "functional", "operations", "scalar_to_tensor", "shape", "value_and_grad"]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module `shardwright.mindspore.ops` has no attribute `{name}`")
    return getattr(own, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(own)})
