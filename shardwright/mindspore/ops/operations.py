"""Operators as primitives."""

from typing import Any

from shardwright import ops as own


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"no operator is called `{name}`")
    return getattr(own, name)
