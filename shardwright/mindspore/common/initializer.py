"""Initializers of parameters."""

from shardwright.initial import initializer

__all__ = ["initializer"]
