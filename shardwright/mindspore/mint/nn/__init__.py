"""Functions of networks."""

from shardwright.mindspore.mint.nn import functional

__all__ = ["functional"]
