"""Vision transformer."""

from shardwright import nn, ops
from shardwright.parameter import Parameter, initializer
from shardwright.tensor import Tensor
from shardwright.tracing import Definition
from shardwright.zoo.images import classifier


class VisionTransformer(nn.Cell):
    """Vision transformer (Dosovitskiy et al., 2021): patches of an image as words of a text."""

    def __init__(
        self,
        layers: int,
        hidden: int,
        heads: int,
        side: int,
        patch: int,
        classes: int,
        dropout: float,
        dtype: str,
    ) -> None:
        init = "truncated_normal(0.02)"
        self.patches = nn.Conv2d(
            3, hidden, patch, patch, pad_mode="valid", has_bias=True, dtype=dtype
        )
        self.class_token = Parameter(initializer("zeros", (1, 1, hidden), dtype))
        length = 1 + (side // patch) ** 2
        self.position_table = Parameter(initializer(init, (length, hidden), dtype))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.SequentialCell(
            [
                nn.TransformerLayer(hidden, heads, dropout=dropout, weight_init=init, dtype=dtype)
                for _ in range(layers)
            ]
        )
        self.layernorm = nn.LayerNorm(hidden, dtype=dtype)
        self.head = nn.Dense(hidden, classes, "zeros", "zeros", dtype=dtype)

    def construct(self, x: Tensor) -> Tensor:
        """Return the scores of the classes."""
        x = self.patches(x)
        batch, hidden = x.shape[:2]
        x = x.reshape((batch, hidden, -1)).transpose((0, 2, 1))
        token = ops.broadcast_to(self.class_token, (batch, 1, hidden))
        x = ops.concat((token, x), axis=1)
        x = self.blocks(self.dropout(x + self.position_table))
        return self.head(self.layernorm(x[:, 0]))


def vit(
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    batch: int = 32,
    side: int = 224,
    patch: int = 16,
    classes: int = 1000,
    dropout: float = 0.0,
    dtype: str = "float32",
) -> Definition:
    """Vision transformer; by default ViT-B/16."""
    network = VisionTransformer(layers, hidden, heads, side, patch, classes, dropout, dtype)
    return classifier(network, "vit", batch, (3, side, side), classes, dtype)
