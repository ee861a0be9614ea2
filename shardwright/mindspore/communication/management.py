"""The ranks of a script, under the older module path."""

from shardwright.communication import get_group_size, get_rank, init

__all__ = ["get_group_size", "get_rank", "init"]
