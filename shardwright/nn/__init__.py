"""Building blocks of networks: cells, layers, losses and optimizers, named as MindSpore's."""

from shardwright.nn.attention import GroupedQueryAttention
from shardwright.nn.cell import Cell, CellList, SequentialCell
from shardwright.nn.convolution import (
    AvgPool2d,
    Conv1d,
    Conv2d,
    Conv2dTranspose,
    Conv3d,
    GlobalAvgPool,
    MaxPool2d,
)
from shardwright.nn.experts import GatedFeedForward, MixtureOfExperts
from shardwright.nn.layers import (
    GELU,
    Dense,
    Dropout,
    Embedding,
    Flatten,
    HashEmbedding,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Tanh,
    get_activation,
)
from shardwright.nn.losses import (
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    MSELoss,
    SoftmaxCrossEntropyWithLogits,
)
from shardwright.nn.normalization import BatchNorm1d, BatchNorm2d, LayerNorm, RMSNorm
from shardwright.nn.optimizers import SGD, Adam, AdamWeightDecay, Momentum, Optimizer
from shardwright.nn.transformer import FeedForward, MultiheadAttention, TransformerLayer

__all__ = [
    "GELU",
    "SGD",
    "Adam",
    "AdamWeightDecay",
    "AvgPool2d",
    "BCEWithLogitsLoss",
    "BatchNorm1d",
    "BatchNorm2d",
    "Cell",
    "CellList",
    "Conv1d",
    "Conv2d",
    "Conv2dTranspose",
    "Conv3d",
    "CrossEntropyLoss",
    "Dense",
    "Dropout",
    "Embedding",
    "FeedForward",
    "Flatten",
    "GatedFeedForward",
    "GlobalAvgPool",
    "GroupedQueryAttention",
    "HashEmbedding",
    "LayerNorm",
    "MSELoss",
    "MaxPool2d",
    "MixtureOfExperts",
    "Momentum",
    "MultiheadAttention",
    "Optimizer",
    "RMSNorm",
    "ReLU",
    "SequentialCell",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "SoftmaxCrossEntropyWithLogits",
    "Tanh",
    "TransformerLayer",
    "get_activation",
]
