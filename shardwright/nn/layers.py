"""Layers: cells with parameters, and activations.

Each keeps its operators as attributes under MindSpore's names, so that they can be given
strategies: ``dense.matmul.shard(((4, 1), (2, 1)))``.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod, sqrt

import numpy as np

from shardwright import ops
from shardwright.ir.errors import ModelError
from shardwright.ir.values import POSITIVE_INTEGER, SHARE
from shardwright.nn.cell import Cell
from shardwright.operators.dynamic_tree import SHARING, values_of
from shardwright.operators.linear.nf4 import BLOCK
from shardwright.parameter import Parameter, Start
from shardwright.tensor import Tensor, TracedTensor, apply
from shardwright.tracer import current_tracer

# A weight of 4 bits begins with one scale of all blocks, near that of weights of `normal(0.02)`.
_NO_SCALE = int(np.flatnonzero(values_of(True) == 0)[0])
_FIRST_SCALE = int(np.float32(0.05).view(np.int32))


class Dense(Cell):
    """``activation(x @ weight.T + bias)`` over the last dimension.

    Parameters
    ----------
    in_channels, out_channels : int
        Sizes of the last dimension before and after; the weight is ``[out, in]``.
    weight_init, bias_init : str, float or Tensor, optional
        Initializers; by default uniform within ``1 / sqrt(in_channels)``.
    has_bias : bool
        Whether a bias is added.
    activation : str or Cell, optional
        Activation after it: ``relu``, ``gelu``, ...
    dtype : str
        Element type of the parameters.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        weight_init: Start | None = None,
        bias_init: Start | None = None,
        has_bias: bool = True,
        activation: str | Cell | None = None,
        dtype: str = "float32",
    ) -> None:
        POSITIVE_INTEGER.check("in_channels", in_channels)
        POSITIVE_INTEGER.check("out_channels", out_channels)
        even = f"uniform({1 / sqrt(in_channels):.6g})"
        weight = even if weight_init is None else weight_init
        bias = even if bias_init is None else bias_init
        self.matmul = ops.MatMul(transpose_b=True)
        self.bias_add = ops.Add()
        self.weight = Parameter(weight, shape=(out_channels, in_channels), dtype=dtype)
        self.bias = Parameter(bias, shape=out_channels, dtype=dtype) if has_bias else None
        self.activation = get_activation(activation) if isinstance(activation, str) else activation
        self.lora_a: Dense | None = None
        self.lora_b: Dense | None = None
        self.lora_scale = 1.0
        self.packed: PackedWeight | None = None

    def pack(self) -> None:
        """Hold the weight in 4 bits, frozen: see `PackedWeight`.

        Raises
        ------
        ModelError
            If 64 does not divide the inputs.
        """
        outputs, inputs = self.weight.shape
        if inputs % BLOCK:
            raise ModelError(
                f"a weight of 4 bits has blocks of {BLOCK} inputs, and this one has {inputs} inputs"
            )
        self.packed = PackedWeight(outputs, inputs)
        del self.weight

    def adapt(self, rank: int, scale: float) -> None:
        """Freeze the parameters, and train ``scale * (x @ a.T @ b.T)`` beside the product instead.

        Parameters
        ----------
        rank : int
            Features between the products by `a`, which begins as any weight does, and by `b`, which
            begins with zeros.
        scale : float
            Factor on what is added.
        """
        (outputs, inputs), dtype = self.weight.shape, self.weight.dtype
        for parameter in self.get_parameters():
            parameter.requires_grad = False
        self.lora_a = Dense(inputs, rank, has_bias=False, dtype=dtype)
        self.lora_b = Dense(rank, outputs, "zeros", has_bias=False, dtype=dtype)
        self.lora_scale = scale

    def construct(self, x: Tensor) -> Tensor:
        """Multiply, add, activate."""
        made = self.matmul(x, self.weight) if self.packed is None else self.packed(x)
        if self.bias is not None:
            made = self.bias_add(made, self.bias)
        if self.lora_a is not None and self.lora_b is not None:
            added = self.lora_b(self.lora_a(x))
            made = made + (added if self.lora_scale == 1 else added * self.lora_scale)
        return made if self.activation is None else self.activation(made)


class PackedWeight(Cell):
    """A frozen weight of 4 bits, as QLoRA has it (Dettmers et al., 2023): 0.52 bytes of an element.

    It begins as any codes, with which numbers are distributed normally.

    Parameters
    ----------
    outputs, inputs : int
        Sizes of the weight; 64 divides the inputs.
    """

    def __init__(self, outputs: int, inputs: int) -> None:
        blocks = inputs // BLOCK
        nested = -(-outputs * blocks // SHARING)
        self.codes = Parameter("whole(256)", shape=(outputs, blocks, BLOCK // 2), dtype="uint8")
        self.scales = Parameter(f"constant({_NO_SCALE})", shape=(outputs, blocks), dtype="uint8")
        self.nested = Parameter("zeros", shape=nested, dtype="int32")
        self.offset = Parameter(f"constant({_FIRST_SCALE})", shape=(), dtype="int32")

    def construct(self, x: Tensor) -> Tensor:
        """Multiply by the transposed weight."""
        return apply("nf4_matmul", x, self.codes, self.scales, self.nested, self.offset)


class Embedding(Cell):
    """Rows of a table, looked up by number.

    Parameters
    ----------
    vocab_size, embedding_size : int
        Shape of the table.
    embedding_table : str, float or Tensor
        Initializer of the table.
    dtype : str
        Element type of the table.
    """

    def __init__(
        self,
        vocab_size: int,
        embedding_size: int,
        embedding_table: Start = "normal",
        dtype: str = "float32",
    ) -> None:
        shape = (vocab_size, embedding_size)
        self.embedding_table = Parameter(embedding_table, shape=shape, dtype=dtype)
        self.gather = ops.Gather()

    def construct(self, indices: Tensor) -> Tensor:
        """Look up."""
        return self.gather(self.embedding_table, indices, 0)


class HashEmbedding(Cell):
    """Rows of tables, looked up by hashed features.

    A feature maps to its remainder modulo the number of rows. The tables are concatenated, so
    that it may be split anywhere.

    Parameters
    ----------
    rows : int or sequence of int
        Rows of the one table, or of the table of each feature ``[..., feature]``.
    embedding_size : int
        Size of a row.
    embedding_table : str, float or Tensor
        Initializer of the tables.
    dtype : str
        Element type of the tables.
    """

    def __init__(
        self,
        rows: int | Sequence[int],
        embedding_size: int,
        embedding_table: Start = "normal",
        dtype: str = "float32",
    ) -> None:
        sizes = np.asarray(rows, np.int32)
        total = int(sizes.sum())
        self.sizes = Tensor(sizes)
        self.offsets = Tensor(sizes.cumsum().astype(np.int32) - sizes) if sizes.ndim else None
        self.embedding = Embedding(total, embedding_size, embedding_table, dtype)

    def construct(self, features: Tensor) -> Tensor:
        """Hash, then look up."""
        indices = apply("mod", features, self.sizes)
        return self.embedding(indices if self.offsets is None else indices + self.offsets)


class Dropout(Cell):
    """Set random elements to zero, and scale the rest to keep the mean.

    Parameters
    ----------
    p : float
        Probability of a zero.
    """

    def __init__(self, p: float = 0.5) -> None:
        SHARE.check("p", p)
        self.p = p

    def construct(self, x: Tensor) -> Tensor:
        """Drop; the key gives each cell its own random numbers."""
        if not self.p or not self.trains:
            return x
        tracer = current_tracer()
        key = tracer.scope or "dropout"
        return apply("dropout", x, TracedTensor(tracer.step()), rate=self.p, key=key)


class Flatten(Cell):
    """All dimensions from `start_dim` on as one."""

    def __init__(self, start_dim: int = 1) -> None:
        self.start_dim = start_dim

    def construct(self, x: Tensor) -> Tensor:
        """Reshape."""
        if x.ndim == self.start_dim + 1:
            return x
        return x.reshape((*x.shape[: self.start_dim], prod(x.shape[self.start_dim :])))


# Activations


class Activation(Cell):
    """A function of one tensor, point by point or along a dimension."""

    def __init__(self, primitive: ops.Primitive) -> None:
        self.primitive = primitive
        setattr(self, primitive.operator, primitive)  # as MindSpore calls it: ``ReLU().relu``

    def construct(self, x: Tensor) -> Tensor:
        """Apply the function."""
        return self.primitive(x)


class ReLU(Activation):
    """The positive part."""

    def __init__(self) -> None:
        super().__init__(ops.ReLU())


class GELU(Activation):
    """``x`` times the normal distribution function of ``x``.

    Parameters
    ----------
    approximate : bool
        Whether the function is approximated by tanh.
    """

    def __init__(self, approximate: bool = True) -> None:
        super().__init__(ops.GeLU() if approximate else ops.GeLU(approximate=False))


class SquaredReLU(Cell):
    """The square of the positive part (So et al., 2021)."""

    def __init__(self) -> None:
        self.relu = ops.ReLU()

    def construct(self, x: Tensor) -> Tensor:
        """Apply the function."""
        positive = self.relu(x)
        return positive * positive


class SiLU(Activation):
    """``x`` times its sigmoid."""

    def __init__(self) -> None:
        super().__init__(ops.SiLU())


class Tanh(Activation):
    """The hyperbolic tangent."""

    def __init__(self) -> None:
        super().__init__(ops.Tanh())


class Sigmoid(Activation):
    """``1 / (1 + exp(-x))``."""

    def __init__(self) -> None:
        super().__init__(ops.Sigmoid())


class Softmax(Activation):
    """Exponentials over their sum along `axis`."""

    def __init__(self, axis: int = -1) -> None:
        super().__init__(ops.Softmax(axis=axis))


class LogSoftmax(Activation):
    """The logarithm of the softmax along `axis`."""

    def __init__(self, axis: int = -1) -> None:
        super().__init__(ops.LogSoftmax(axis=axis))


class ReLU6(Activation):
    """The positive part, at most six."""

    def __init__(self) -> None:
        super().__init__(ops.ReLU6())


class LeakyReLU(Activation):
    """The operand, times `alpha` where negative."""

    def __init__(self, alpha: float = 0.2) -> None:
        super().__init__(ops.LeakyReLU(slope=alpha))


class ELU(Activation):
    """The operand, ``alpha (exp(x) - 1)`` where negative."""

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__(ops.Elu(alpha=alpha))


class HSwish(Activation):
    """The operand times its hard sigmoid."""

    def __init__(self) -> None:
        super().__init__(ops.HardSwish())


class HSigmoid(Activation):
    """A line through one half at zero, from zero at -3 to one at 3."""

    def __init__(self) -> None:
        super().__init__(ops.HardSigmoid())


class Softplus(Activation):
    """``log(1 + exp(x))``."""

    def __init__(self) -> None:
        super().__init__(ops.Softplus())


class Mish(Activation):
    """The operand times the tanh of its softplus."""

    def __init__(self) -> None:
        super().__init__(ops.Mish())


class PReLU(Cell):
    """The operand, times a weight where negative; a weight for each channel, the second dimension.

    Parameters
    ----------
    channel : int
        Number of channels.
    w : float
        Initial value of the weights.
    """

    def __init__(self, channel: int = 1, w: float = 0.25, dtype: str = "float32") -> None:
        self.w = Parameter(w, shape=channel, dtype=dtype)
        self.prelu = ops.PReLU()

    def construct(self, x: Tensor) -> Tensor:
        """Apply the function."""
        return self.prelu(x, self.w)


_ACTIVATIONS: dict[str, Callable[[], Cell]] = {
    "relu": ReLU,
    "gelu": GELU,
    "gelu_exact": partial(GELU, approximate=False),
    "relu2": SquaredReLU,
    "silu": SiLU,
    "tanh": Tanh,
    "sigmoid": Sigmoid,
    "softmax": Softmax,
    "logsoftmax": LogSoftmax,
    "relu6": ReLU6,
    "leakyrelu": LeakyReLU,
    "elu": ELU,
    "hswish": HSwish,
    "hsigmoid": HSigmoid,
    "softplus": Softplus,
    "mish": Mish,
    "prelu": PReLU,
    "fast_gelu": lambda: Activation(ops.FastGelu()),
    "softsign": lambda: Activation(ops.Softsign()),
    "softshrink": lambda: Activation(ops.SoftShrink()),
    "hshrink": lambda: Activation(ops.HardShrink()),
    "selu": lambda: Activation(ops.Selu()),
}


def get_activation(name: str) -> Cell:
    """Return a new cell for the activation called `name`.

    Raises
    ------
    ModelError
        If there is none.
    """
    if name not in _ACTIVATIONS:
        raise ModelError(
            f"no activation is called `{name}`", hint=f"use one of {tuple(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[name]()
