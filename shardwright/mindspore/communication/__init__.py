"""The ranks of a script."""

from shardwright.communication import get_group_size, get_rank, init
from shardwright.mindspore.communication import management

__all__ = ["get_group_size", "get_rank", "init", "management"]
