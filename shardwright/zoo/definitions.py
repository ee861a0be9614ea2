"""The models of the zoo: functions from sizes to definitions."""

from shardwright import nn, ops
from shardwright.initial import initializer
from shardwright.ir.types import TensorType
from shardwright.tensor import Parameter, Tensor
from shardwright.tracing import Definition, InputSpec, trace


class Mlp(nn.Cell):
    """Dense layers with rectifiers in between, called ``layer1``, ``layer2``, ..."""

    def __init__(self, sizes: tuple[int, ...], dtype: str) -> None:
        self.flatten = nn.Flatten()
        self.depth = len(sizes) - 1
        for i in range(self.depth):
            setattr(self, f"layer{i + 1}", nn.Dense(sizes[i], sizes[i + 1], dtype=dtype))
        self.relu = nn.ReLU()

    def construct(self, x: Tensor) -> Tensor:
        """Return the scores of the classes."""
        x = self.flatten(x)
        for i in range(1, self.depth):
            x = self.relu(getattr(self, f"layer{i}")(x))
        return getattr(self, f"layer{self.depth}")(x)


def mlp(
    batch: int = 32,
    inputs: int = 784,
    hidden: int = 512,
    classes: int = 10,
    layers: int = 3,
    dtype: str = "float32",
) -> Definition:
    """Dense layers for digits: 784-512-512-10 unless other sizes are given."""
    sizes = (inputs, *(hidden,) * (layers - 1), classes)
    specs = (
        InputSpec("image", TensorType(dtype, (batch, inputs))),
        InputSpec("label", TensorType("int32", (batch,)), classes),
    )
    return trace(Mlp(sizes, dtype), specs, loss_fn=nn.CrossEntropyLoss(), name="mlp")


class TwoMatmul(nn.Cell):
    """Two matrix products one after the other, and the mean of the square of what comes out."""

    def __init__(self, inputs: int, hidden: int, outputs: int, dtype: str) -> None:
        self.weight1 = Parameter(initializer("normal(0.02)", (inputs, hidden), dtype))
        self.weight2 = Parameter(initializer("normal(0.02)", (hidden, outputs), dtype))

    def construct(self, x: Tensor) -> Tensor:
        """Return the loss."""
        y = x @ self.weight1 @ self.weight2
        return (y * y).sum() / y.size


def two_matmul(
    batch: int = 64,
    inputs: int = 128,
    hidden: int = 256,
    outputs: int = 128,
    dtype: str = "float32",
) -> Definition:
    """Two matrix products: the smallest model with something to decide."""
    network = TwoMatmul(inputs, hidden, outputs, dtype)
    specs = (InputSpec("x", TensorType(dtype, (batch, inputs))),)
    return trace(network, specs, name="two_matmul")


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
