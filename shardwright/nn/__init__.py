"""Building blocks of networks: cells, layers, losses and optimizers, named as MindSpore's."""

from shardwright.nn.attention import GroupedQueryAttention
from shardwright.nn.cell import Cell, CellList, SequentialCell
from shardwright.nn.experts import GatedFeedForward, MixtureOfExperts
from shardwright.nn.layers import (
    GELU,
    Dense,
    Dropout,
    Embedding,
    Flatten,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Tanh,
    get_activation,
)
from shardwright.nn.losses import CrossEntropyLoss, MSELoss, SoftmaxCrossEntropyWithLogits
from shardwright.nn.normalization import BatchNorm1d, BatchNorm2d, LayerNorm, RMSNorm
from shardwright.nn.optimizers import SGD, Adam, AdamWeightDecay, Momentum, Optimizer
from shardwright.nn.transformer import FeedForward, MultiheadAttention, TransformerLayer

__all__ = [
    "GELU",
    "SGD",
    "Adam",
    "AdamWeightDecay",
    "BatchNorm1d",
    "BatchNorm2d",
    "Cell",
    "CellList",
    "CrossEntropyLoss",
    "Dense",
    "Dropout",
    "Embedding",
    "FeedForward",
    "Flatten",
    "GatedFeedForward",
    "GroupedQueryAttention",
    "LayerNorm",
    "MSELoss",
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
