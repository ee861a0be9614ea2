"""Training of networks on data sets, under MindSpore's names."""

from shardwright.train.callbacks import Callback, LossMonitor, RunContext
from shardwright.train.loss_scale import DynamicLossScaleManager, FixedLossScaleManager
from shardwright.train.model import Model

__all__ = [
    "Callback",
    "DynamicLossScaleManager",
    "FixedLossScaleManager",
    "LossMonitor",
    "Model",
    "RunContext",
]
