"""Parallel modes and layouts."""

from shardwright.mindspore.parallel import auto_parallel
from shardwright.mindspore.parallel.algo_parameters import (
    get_algo_parameters,
    reset_algo_parameters,
    set_algo_parameters,
)
from shardwright.mindspore.parallel.auto_parallel import AutoParallel
from shardwright.mindspore.parallel.sharding import shard
from shardwright.parallel import Layout

__all__ = [
    "AutoParallel",
    "Layout",
    "auto_parallel",
    "get_algo_parameters",
    "reset_algo_parameters",
    "set_algo_parameters",
    "shard",
]
