"""Observers of a training run."""

from shardwright.mindspore.train.graceful import OnRequestExit
from shardwright.mindspore.train.serialization import ModelCheckpoint
from shardwright.train import (
    Callback,
    CheckpointConfig,
    LossMonitor,
    RunContext,
    TimeMonitor,
)

__all__ = [
    "Callback",
    "CheckpointConfig",
    "LossMonitor",
    "ModelCheckpoint",
    "OnRequestExit",
    "RunContext",
    "TimeMonitor",
]
