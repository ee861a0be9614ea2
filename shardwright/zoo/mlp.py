"""Dense layers, and the smallest model with something to decide."""

from shardwright import nn
from shardwright.ir.types import TensorType
from shardwright.parameter import Parameter, initializer
from shardwright.tensor import Tensor
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
    """Dense layers for digits: by default 784-512-512-10."""
    sizes = (inputs, *(hidden,) * (layers - 1), classes)
    specs = (
        InputSpec("image", TensorType(dtype, (batch, inputs))),
        InputSpec("label", TensorType("int32", (batch,)), classes),
    )
    return trace(Mlp(sizes, dtype), specs, loss_fn=nn.CrossEntropyLoss(), name="mlp")


class TwoMatmul(nn.Cell):
    """Two matrix products, and the mean of the square of the result."""

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
