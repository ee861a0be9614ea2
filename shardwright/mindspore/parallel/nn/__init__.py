"""Transformers that are spread by a configuration."""

from shardwright.mindspore.parallel.nn.config import (
    EmbeddingOpParallelConfig,
    MoEConfig,
    OpParallelConfig,
    TransformerOpParallelConfig,
    TransformerRecomputeConfig,
)
from shardwright.mindspore.parallel.nn.layers import (
    CrossEntropyLoss,
    FeedForward,
    FixedSparseAttention,
    MultiHeadAttention,
    VocabEmbedding,
)
from shardwright.mindspore.parallel.nn.transformer import (
    Transformer,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)

__all__ = [
    "CrossEntropyLoss",
    "EmbeddingOpParallelConfig",
    "FeedForward",
    "FixedSparseAttention",
    "MoEConfig",
    "MultiHeadAttention",
    "OpParallelConfig",
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "TransformerOpParallelConfig",
    "TransformerRecomputeConfig",
    "VocabEmbedding",
]
