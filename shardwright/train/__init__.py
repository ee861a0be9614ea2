"""Training of networks on data sets, under MindSpore's names."""

from shardwright.train.callbacks import Callback, LossMonitor, RunContext, TimeMonitor
from shardwright.train.checkpoints import (
    CheckpointConfig,
    ModelCheckpoint,
    load_checkpoint,
    load_param_into_net,
    save_checkpoint,
)
from shardwright.train.loss_scale import DynamicLossScaleManager, FixedLossScaleManager
from shardwright.train.metrics import (
    MAE,
    MSE,
    Accuracy,
    Loss,
    Metric,
    Top1CategoricalAccuracy,
    Top5CategoricalAccuracy,
    TopKCategoricalAccuracy,
)
from shardwright.train.model import Model
from shardwright.train.runs import Checkpoints
from shardwright.train.timelines import TimelineMonitor

__all__ = [
    "MAE",
    "MSE",
    "Accuracy",
    "Callback",
    "CheckpointConfig",
    "Checkpoints",
    "DynamicLossScaleManager",
    "FixedLossScaleManager",
    "Loss",
    "LossMonitor",
    "Metric",
    "Model",
    "ModelCheckpoint",
    "RunContext",
    "TimeMonitor",
    "TimelineMonitor",
    "Top1CategoricalAccuracy",
    "Top5CategoricalAccuracy",
    "TopKCategoricalAccuracy",
    "load_checkpoint",
    "load_param_into_net",
    "save_checkpoint",
]
