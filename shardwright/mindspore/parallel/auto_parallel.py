"""The parallel options of a network."""

from shardwright.parallel import AutoParallel

__all__ = ["AutoParallel"]
