"""Training: models, callbacks, loss scales."""

from shardwright.mindspore.train import callback
from shardwright.train import (
    Callback,
    DynamicLossScaleManager,
    FixedLossScaleManager,
    LossMonitor,
    Model,
    RunContext,
)

__all__ = [
    "Callback",
    "DynamicLossScaleManager",
    "FixedLossScaleManager",
    "LossMonitor",
    "Model",
    "RunContext",
    "callback",
]
