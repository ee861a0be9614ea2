"""Operators to build networks of: primitives, functions, and communication.

Every name of `shardwright.ops` is here.
"""

from typing import Any

from shardwright import ops as own
from shardwright.mindspore.gradients import GradOperation, grad, value_and_grad
from shardwright.mindspore.ops import composite, functional, operations
from shardwright.mindspore.ops.composite import (
    HyperMap,
    Map,
    MultitypeFuncGraph,
    clip_by_global_norm,
    clip_by_norm,
    partial,
)
from shardwright.mindspore.ops.creation import arange, eye, full, linspace, ones, zeros
from shardwright.mindspore.ops.functional import Shape, scalar_to_tensor, shape
from shardwright.mindspore.parallel.sharding import vmap

__all__ = [
    "GradOperation",
    "HyperMap",
    "Map",
    "MultitypeFuncGraph",
    "Shape",
    "arange",
    "clip_by_global_norm",
    "clip_by_norm",
    "composite",
    "eye",
    "full",
    "functional",
    "grad",
    "linspace",
    "ones",
    "operations",
    "partial",
    "scalar_to_tensor",
    "shape",
    "value_and_grad",
    "vmap",
    "zeros",
]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module `shardwright.mindspore.ops` has no attribute `{name}`")
    return getattr(operations, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(own)})
