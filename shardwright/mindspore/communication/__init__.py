"""The ranks of a script."""

from shardwright.mindspore.communication import management
from shardwright.mindspore.communication.management import *  # noqa: F403

__all__ = ["management"]
__all__ += management.__all__
