"""Building blocks of networks: cells, layers, losses and optimizers.

Every name of `shardwright.nn` is here.
"""

from shardwright import nn as own
from shardwright.gradients import DistributedGradReducer
from shardwright.mindspore.nn import utils
from shardwright.mindspore.nn.attention import MultiheadAttention
from shardwright.mindspore.nn.convolutions import Conv1d, Conv2d, Conv2dTranspose, Conv3d
from shardwright.mindspore.nn.embeddings import EmbeddingLookup, MultiFieldEmbeddingLookup
from shardwright.mindspore.nn.functions import CELLS
from shardwright.mindspore.nn.layers import Dense, Dropout, Embedding, Flatten, PReLU
from shardwright.mindspore.nn.losses import BCEWithLogitsLoss, CrossEntropyLoss
from shardwright.mindspore.nn.normalization import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LayerNorm,
    SyncBatchNorm,
)
from shardwright.mindspore.nn.optimizers import (
    FTRL,
    LARS,
    SGD,
    AdaFactor,
    Adagrad,
    Adam,
    AdamWeightDecay,
    Lamb,
    LazyAdam,
    Momentum,
    RMSProp,
)
from shardwright.mindspore.nn.steps import (
    DynamicLossScaleUpdateCell,
    FixedLossScaleUpdateCell,
    TrainOneStepCell,
    TrainOneStepWithLossScaleCell,
    WithEvalCell,
    WithLossCell,
)
from shardwright.mindspore.nn.steps import (
    _TrainPipelineWithLossScaleCell as _TrainPipelineWithLossScaleCell,
)
from shardwright.mindspore.nn.wrap import LossBase, MicroBatchInterleaved, VirtualDatasetCellTriple
from shardwright.mindspore.nn.wrap import _BroadCastCell as _BroadCastCell
from shardwright.mindspore.nn.wrap import _Loss as _Loss
from shardwright.mindspore.nn.wrap import _MicroBatch as _MicroBatch
from shardwright.mindspore.nn.wrap import _VirtualDatasetCell as _VirtualDatasetCell
from shardwright.mindspore.pipelines import PipelineGradReducer
from shardwright.mindspore.train.metrics import (
    F1,
    MAE,
    MSE,
    Accuracy,
    Fbeta,
    Loss,
    Metric,
    Precision,
    Recall,
    Top1CategoricalAccuracy,
    Top5CategoricalAccuracy,
    TopKCategoricalAccuracy,
)
from shardwright.nn import (
    ELU,
    GELU,
    AdamW,
    AdamW8bit,
    AdaptiveAvgPool2d,
    AvgPool2d,
    Cell,
    CellList,
    FeedForward,
    GatedDeltaNet,
    GatedFeedForward,
    GlobalAvgPool,
    GradAccumulation,
    GroupedQueryAttention,
    HashEmbedding,
    HSigmoid,
    HSwish,
    L1Loss,
    LatentAttention,
    LeakyReLU,
    LogSoftmax,
    Mamba2,
    MaxPool2d,
    Mish,
    MSELoss,
    Muon,
    Optimizer,
    PipelineCell,
    Reach,
    ReLU,
    ReLU6,
    RMSNorm,
    Rotation,
    RoutedExperts,
    SequentialCell,
    Sigmoid,
    SiLU,
    Softmax,
    SoftmaxCrossEntropyWithLogits,
    Softplus,
    SquaredReLU,
    Tanh,
    TransformerLayer,
    get_activation,
)
from shardwright.nn.rates import *  # noqa: F403
from shardwright.nn.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell

MAELoss = L1Loss
globals().update(CELLS)

__all__ = [
    "F1",
    "MAE",
    "MSE",
    "Accuracy",
    "AdaFactor",
    "DynamicLossScaleUpdateCell",
    "EmbeddingLookup",
    "Fbeta",
    "FixedLossScaleUpdateCell",
    "Loss",
    "LossBase",
    "MAELoss",
    "Metric",
    "MicroBatchInterleaved",
    "MultiFieldEmbeddingLookup",
    "PipelineGradReducer",
    "Precision",
    "Recall",
    "SyncBatchNorm",
    "Top1CategoricalAccuracy",
    "Top5CategoricalAccuracy",
    "TopKCategoricalAccuracy",
    "TrainOneStepCell",
    "TrainOneStepWithLossScaleCell",
    "VirtualDatasetCellTriple",
    "WithEvalCell",
    "WithLossCell",
    "utils",
]
__all__ += own.__all__
__all__ += sorted(CELLS)
