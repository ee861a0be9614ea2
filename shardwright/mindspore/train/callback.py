"""Observers of a training run."""

from shardwright.train import (
    Callback,
    CheckpointConfig,
    LossMonitor,
    ModelCheckpoint,
    RunContext,
    TimeMonitor,
)

__all__ = [
    "Callback",
    "CheckpointConfig",
    "LossMonitor",
    "ModelCheckpoint",
    "RunContext",
    "TimeMonitor",
]
