"""GPT-2 and GPT-3: decoders of text."""

from shardwright import nn, ops
from shardwright.ir.types import TensorType
from shardwright.parameter import Parameter, initializer
from shardwright.tensor import Tensor
from shardwright.tracing import Definition, InputSpec, trace


class Gpt(nn.Cell):
    """GPT-2 (Radford et al., 2019): normalization before each part, and one more at the end.

    Weights begin as ``normal(0.02)``; those that write the residual sum are divided by the square
    root of the number of sums.
    """

    def __init__(
        self,
        layers: int,
        hidden: int,
        heads: int,
        sequence: int,
        vocabulary: int,
        tied: bool,
        dropout: float,
        dtype: str,
    ) -> None:
        out_init = f"normal({0.02 / (2 * layers) ** 0.5:.6g})"
        self.embedding = nn.Embedding(vocabulary, hidden, "normal(0.02)", dtype)
        self.position_table = Parameter(initializer("normal(0.01)", (sequence, hidden), dtype))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.SequentialCell(
            [
                nn.TransformerLayer(
                    hidden,
                    heads,
                    causal=True,
                    dropout=dropout,
                    weight_init="normal(0.02)",
                    out_init=out_init,
                    dtype=dtype,
                )
                for _ in range(layers)
            ]
        )
        self.layernorm = nn.LayerNorm(hidden, dtype=dtype)
        shape = (vocabulary, hidden)
        self.head = None if tied else Parameter(initializer("normal(0.02)", shape, dtype))
        self.matmul = ops.MatMul(transpose_b=True)

    def construct(self, tokens: Tensor) -> Tensor:
        """Return the scores of the next token at every position."""
        x = self.dropout(self.embedding(tokens) + self.position_table)
        x = self.layernorm(self.blocks(x))
        table = self.embedding.embedding_table if self.head is None else self.head
        return self.matmul(x, table)


def gpt(
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    batch: int = 8,
    sequence: int = 1024,
    vocabulary: int = 50304,
    tied: bool = True,
    dropout: float = 0.0,
    dtype: str = "float32",
) -> Definition:
    """GPT-2 with cross entropy averaged over tokens; 50,304 is its vocabulary filled up to 64s."""
    network = Gpt(layers, hidden, heads, sequence, vocabulary, tied, dropout, dtype)
    tokens = TensorType("int32", (batch, sequence))
    specs = (InputSpec("tokens", tokens, vocabulary), InputSpec("labels", tokens, vocabulary))
    return trace(network, specs, loss_fn=nn.CrossEntropyLoss(), name="gpt")
