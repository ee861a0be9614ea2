"""BERT: an encoder of text."""

from shardwright import nn, ops
from shardwright.ir.types import TensorType
from shardwright.parameter import Parameter, initializer
from shardwright.tensor import Tensor
from shardwright.tracing import Definition, InputSpec, trace


class Bert(nn.Cell):
    """BERT's encoder (Devlin et al., 2019) with its head that restores masked tokens."""

    def __init__(
        self,
        layers: int,
        hidden: int,
        heads: int,
        sequence: int,
        vocabulary: int,
        dropout: float,
        dtype: str,
    ) -> None:
        init = "normal(0.02)"
        self.embedding = nn.Embedding(vocabulary, hidden, init, dtype)
        self.segment_embedding = nn.Embedding(2, hidden, init, dtype)
        self.position_table = Parameter(initializer(init, (sequence, hidden), dtype))
        self.layernorm = nn.LayerNorm(hidden, dtype=dtype)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.SequentialCell(
            [
                nn.TransformerLayer(
                    hidden,
                    heads,
                    post_layernorm=True,
                    dropout=dropout,
                    weight_init=init,
                    dtype=dtype,
                )
                for _ in range(layers)
            ]
        )
        self.transform = nn.Dense(hidden, hidden, init, "zeros", activation="gelu", dtype=dtype)
        self.transform_layernorm = nn.LayerNorm(hidden, dtype=dtype)
        self.matmul = ops.MatMul(transpose_b=True)
        self.bias = Parameter(initializer("zeros", vocabulary, dtype))

    def construct(self, tokens: Tensor, segments: Tensor) -> Tensor:
        """Return the scores of the token at every position."""
        x = self.embedding(tokens) + self.position_table + self.segment_embedding(segments)
        x = self.blocks(self.dropout(self.layernorm(x)))
        x = self.transform_layernorm(self.transform(x))
        return self.matmul(x, self.embedding.embedding_table) + self.bias


def bert(
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    batch: int = 8,
    sequence: int = 512,
    vocabulary: int = 30528,
    dropout: float = 0.0,
    dtype: str = "float32",
) -> Definition:
    """BERT with cross entropy averaged over tokens; 30,528 is its vocabulary filled up to 64s."""
    network = Bert(layers, hidden, heads, sequence, vocabulary, dropout, dtype)
    tokens = TensorType("int32", (batch, sequence))
    specs = (
        InputSpec("tokens", tokens, vocabulary),
        InputSpec("segments", tokens, 2),
        InputSpec("labels", tokens, vocabulary),
    )
    return trace(network, specs, loss_fn=nn.CrossEntropyLoss(), name="bert")
