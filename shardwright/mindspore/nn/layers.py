"""Layers with MindSpore's arguments, in its order."""

from shardwright import nn as own
from shardwright.ir.values import SHARE, check_flag, wrong_value
from shardwright.mindspore.ops import functions, primitives
from shardwright.nn.cell import Cell
from shardwright.ops.primitive import record_strategy
from shardwright.parameter import Start
from shardwright.tensor import Tensor, TracedTensor, apply
from shardwright.tracer import current_tracer


class Dense(own.Dense):
    """``activation(x @ weight.T + bias)`` over the last dimension; see `shardwright.nn.Dense`."""

    def construct(self, x: Tensor) -> Tensor:
        """Multiply, add, activate; a vector is a row."""
        if x.ndim != 1:
            return super().construct(x)
        return super().construct(x.reshape((1, -1))).reshape((-1,))


class Flatten(Cell):
    """Some dimensions in a row as one.

    Parameters
    ----------
    start_dim, end_dim : int
        The first and the last of them.
    """

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        self.start_dim, self.end_dim = start_dim, end_dim

    def construct(self, x: Tensor) -> Tensor:
        """Reshape."""
        return functions.flatten(x, start_dim=self.start_dim, end_dim=self.end_dim)


class Dropout(own.Dropout):
    """Set random elements to zero, and scale the rest to keep the mean.

    Parameters
    ----------
    keep_prob : float
        Probability that an element stays.
    p : float, optional
        Probability of a zero; it comes before `keep_prob`.
    dtype : str
        Has no effect: the type is that of the operand.
    """

    def __init__(
        self, keep_prob: float = 0.5, p: float | None = None, dtype: str = "float32"
    ) -> None:
        if p is None:
            rest = 1 - keep_prob if isinstance(keep_prob, int | float) else keep_prob
            if rest not in SHARE:
                raise wrong_value("keep_prob", keep_prob, "a number above 0, up to 1")
            p = rest
        super().__init__(p)
        self.dropout = primitives.Dropout(1 - p)  # whose `shard` says how elements are split

    def construct(self, x: Tensor) -> Tensor:
        """Drop."""
        made, pins = super().construct(x), self.dropout.in_strategy
        if pins is not None and made is not x:
            operands = [x, TracedTensor(current_tracer().step())]
            record_strategy((made,), operands, pins, self.dropout.out_strategy)
        return made


class Embedding(own.Embedding):
    """Rows of a table, looked up by number.

    Parameters
    ----------
    vocab_size, embedding_size : int
        Shape of the table.
    use_one_hot : bool
        Has no effect: the rows are the same.
    embedding_table : str, float or Tensor
        Initializer of the table.
    dtype : str
        Element type of the table.
    padding_idx : int, optional
        A row that begins with zeros. It is trained, as in MindSpore.
    """

    def __init__(
        self,
        vocab_size: int,
        embedding_size: int,
        use_one_hot: bool = False,
        embedding_table: Start = "normal",
        dtype: str = "float32",
        padding_idx: int | None = None,
    ) -> None:
        check_flag("use_one_hot", use_one_hot)
        super().__init__(vocab_size, embedding_size, embedding_table, dtype)
        self.padding_idx = padding_idx
        if padding_idx is None:
            return
        if padding_idx not in range(vocab_size):
            raise wrong_value("padding_idx", padding_idx, f"a row, from 0 to {vocab_size - 1}")
        table = self.embedding_table
        if table.array is not None:
            table.array[padding_idx] = 0
        else:
            table.initializer = f"{table.initializer} without row {padding_idx}"


class PReLU(own.PReLU):
    """The operand, times a weight where negative: one for all channels, or one for each.

    Parameters
    ----------
    channel : int
        1, or the number of channels, the second dimension.
    w : float or Tensor
        Initial value of the weights.
    """

    def construct(self, x: Tensor) -> Tensor:
        """Apply the function."""
        if self.w.shape == (1,) and (x.ndim < 2 or x.shape[1] != 1):
            return apply("where", x < 0, x * self.w, x)
        return super().construct(x)
