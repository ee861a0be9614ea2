"""Training: models, callbacks, checkpoints, metrics, loss scales."""

from shardwright.mindspore.amp import FixedLossScaleManager
from shardwright.mindspore.train import callback, metrics, serialization
from shardwright.mindspore.train.graceful import OnRequestExit
from shardwright.mindspore.train.metrics import F1, MAE, MSE, Fbeta, Precision, Recall
from shardwright.mindspore.train.model import Model
from shardwright.mindspore.train.serialization import (
    ModelCheckpoint,
    load_checkpoint,
    load_param_into_net,
    restore_group_info_list,
    save_checkpoint,
)
from shardwright.train import (
    Accuracy,
    Callback,
    CheckpointConfig,
    DynamicLossScaleManager,
    Loss,
    LossMonitor,
    Metric,
    RunContext,
    TimeMonitor,
    Top1CategoricalAccuracy,
    Top5CategoricalAccuracy,
    TopKCategoricalAccuracy,
)

__all__ = [
    "F1",
    "MAE",
    "MSE",
    "Accuracy",
    "Callback",
    "CheckpointConfig",
    "DynamicLossScaleManager",
    "Fbeta",
    "FixedLossScaleManager",
    "Loss",
    "LossMonitor",
    "Metric",
    "Model",
    "ModelCheckpoint",
    "OnRequestExit",
    "Precision",
    "Recall",
    "RunContext",
    "TimeMonitor",
    "Top1CategoricalAccuracy",
    "Top5CategoricalAccuracy",
    "TopKCategoricalAccuracy",
    "callback",
    "load_checkpoint",
    "load_param_into_net",
    "metrics",
    "restore_group_info_list",
    "save_checkpoint",
    "serialization",
]
