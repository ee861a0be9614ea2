"""Transformers that are spread by a configuration; networks in micro-batches."""

from shardwright.mindspore.nn.wrap import MicroBatchInterleaved
from shardwright.mindspore.parallel.nn.config import (
    EmbeddingOpParallelConfig,
    MoEConfig,
    MoEParallelConfig,
    OpParallelConfig,
    TransformerOpParallelConfig,
    TransformerRecomputeConfig,
)
from shardwright.mindspore.parallel.nn.experts import MoE
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
from shardwright.mindspore.pipelines import Pipeline, PipelineGradReducer
from shardwright.nn import GradAccumulation

__all__ = [
    "CrossEntropyLoss",
    "EmbeddingOpParallelConfig",
    "FeedForward",
    "FixedSparseAttention",
    "GradAccumulation",
    "MicroBatchInterleaved",
    "MoE",
    "MoEConfig",
    "MoEParallelConfig",
    "MultiHeadAttention",
    "OpParallelConfig",
    "Pipeline",
    "PipelineGradReducer",
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "TransformerOpParallelConfig",
    "TransformerRecomputeConfig",
    "VocabEmbedding",
]
