"""The ranks of a script: how many there are, and which one this is."""

from shardwright.communication.processes import Processes, processes
from shardwright.communication.ranks import NumberedRank, Rank, symbol_of
from shardwright.communication.world import WORLD_AXIS, get_group_size, get_rank, init, world

__all__ = [
    "WORLD_AXIS",
    "NumberedRank",
    "Processes",
    "Rank",
    "get_group_size",
    "get_rank",
    "init",
    "processes",
    "symbol_of",
    "world",
]
