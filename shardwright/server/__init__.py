"""Parameter servers: processes that hold the parameters and update them, for workers that train.

A scheduler lets servers and workers find each other. Workers pull parameters, compute gradients and
push them; see docs/parameter-server.md. The sessions of workers are in `session`.
"""

from shardwright.server.roles import (
    get_ps_context,
    reset_ps_context,
    set_ps_context,
    take_part,
)

__all__ = [
    "get_ps_context",
    "reset_ps_context",
    "set_ps_context",
    "take_part",
]
