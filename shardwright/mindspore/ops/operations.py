"""Operators as primitives, with MindSpore's arguments."""

from typing import Any

from shardwright import ops as own
from shardwright.mindspore.ops import primitives


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"no operator is called `{name}`")
    return getattr(primitives if hasattr(primitives, name) else own, name)
