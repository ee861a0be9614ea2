"""U-Net: classes of every point of an image."""

from shardwright import nn, ops
from shardwright.ir.types import TensorType
from shardwright.tensor import Tensor
from shardwright.tracing import Definition, InputSpec, trace


def _double(before: int, after: int, dtype: str) -> nn.Cell:
    """Return two normalized convolutions, which keep the space."""
    return nn.SequentialCell(
        nn.Conv2d(before, after, 3, weight_init="he_normal", dtype=dtype),
        nn.BatchNorm2d(after, dtype=dtype),
        nn.ReLU(),
        nn.Conv2d(after, after, 3, weight_init="he_normal", dtype=dtype),
        nn.BatchNorm2d(after, dtype=dtype),
        nn.ReLU(),
    )


class Unet(nn.Cell):
    """U-Net (Ronneberger et al., 2015), padded and normalized as is usual since."""

    def __init__(self, channels: int, classes: int, width: int, depth: int, dtype: str) -> None:
        widths = [width << i for i in range(depth + 1)]
        self.begin = _double(channels, width, dtype)
        self.downs = nn.CellList([_double(w, 2 * w, dtype) for w in widths[:-1]])
        self.pool = nn.MaxPool2d(2, 2)
        self.raises = nn.CellList(
            [nn.Conv2dTranspose(2 * w, w, 2, 2, has_bias=True, dtype=dtype) for w in widths[-2::-1]]
        )
        self.ups = nn.CellList([_double(2 * w, w, dtype) for w in widths[-2::-1]])
        self.end = nn.Conv2d(width, classes, 1, has_bias=True, dtype=dtype)
        self.concat = ops.Concat(axis=1)
        self.to_last = ops.Transpose()

    def construct(self, x: Tensor) -> Tensor:
        """Return the scores of the classes at every point, classes last."""
        x = self.begin(x)
        kept = []
        for down in self.downs:
            kept.append(x)
            x = down(self.pool(x))
        for widen, up in zip(self.raises, self.ups, strict=True):
            x = up(self.concat(kept.pop(), widen(x)))
        return self.to_last(self.end(x), (0, 2, 3, 1))


def unet(
    batch: int = 8,
    side: int = 256,
    channels: int = 3,
    classes: int = 2,
    width: int = 64,
    depth: int = 4,
    dtype: str = "float32",
) -> Definition:
    """U-Net with cross entropy averaged over points."""
    specs = (
        InputSpec("image", TensorType(dtype, (batch, channels, side, side))),
        InputSpec("labels", TensorType("int32", (batch, side, side)), classes),
    )
    network = Unet(channels, classes, width, depth, dtype)
    return trace(network, specs, loss_fn=nn.CrossEntropyLoss(), name="unet")
