"""The ranks of a script."""

from shardwright.communication import (
    GlobalComm,
    create_group,
    destroy_group,
    get_group_rank_from_world_rank,
    get_group_size,
    get_rank,
    get_world_rank_from_group_rank,
    init,
)
from shardwright.mindspore.communication import management

__all__ = [
    "GlobalComm",
    "create_group",
    "destroy_group",
    "get_group_rank_from_world_rank",
    "get_group_size",
    "get_rank",
    "get_world_rank_from_group_rank",
    "init",
    "management",
]
