"""Parameter servers: processes that hold the parameters and update them, for workers that train.

A scheduler lets servers and workers find each other. Workers pull parameters, compute gradients and
push them; see docs/parameter-server.md.
"""

from shardwright.server.roles import (
    get_ps_context,
    reset_ps_context,
    set_ps_context,
    take_part,
)
from shardwright.server.session import WorkerSession, begin, is_on

__all__ = [
    "WorkerSession",
    "begin",
    "get_ps_context",
    "is_on",
    "reset_ps_context",
    "set_ps_context",
    "take_part",
]
