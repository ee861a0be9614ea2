"""Primitives of MindSpore that are made of ours: rows, masks, random numbers, sizes of images."""

import warnings
from collections.abc import Sequence
from copy import copy
from typing import Any, Self

import numpy as np

from shardwright import ops as own
from shardwright.ir.errors import ModelError, ShardwrightWarning
from shardwright.ir.graph import Value
from shardwright.ir.values import (
    POSITIVE_INTEGER,
    check_type,
    wrong_value,
)
from shardwright.mindspore.context import (
    ParallelMode,
    get_auto_parallel_context,
    splits_operators,
)
from shardwright.mindspore.simulation import whole_inputs
from shardwright.ops.composite import Composition
from shardwright.ops.primitive import OnAnyDevice, Primitive, counts_of
from shardwright.tensor import Tensor, TracedTensor, apply
from shardwright.tracer import current_tracer


class Cast(own.Cast):  # type: ignore[misc]
    """A tensor of another type, split as it is.

    MindSpore does not read the strategy of a cast in `semi_auto_parallel`: one for another number
    of dimensions than the tensor has is left out there, with a warning.
    """

    def __call__(self, input_x: Any, dtype: Any) -> Tensor:
        """Cast."""
        counts = self.in_strategy
        semi = get_auto_parallel_context("parallel_mode") == ParallelMode.SEMI_AUTO_PARALLEL
        if not semi or counts is None or [*map(len, counts)] == [len(input_x.shape)]:
            made: Tensor = super().__call__(input_x, dtype)
            return made
        warnings.warn(
            f"the strategy {counts} of `Cast` has no effect: the tensor has the shape "
            f"{input_x.shape}, and `semi_auto_parallel` splits a cast as what it reads",
            ShardwrightWarning,
            stacklevel=2,
        )
        unpinned = copy(self)
        unpinned.in_strategy = unpinned.out_strategy = None
        return unpinned(input_x, dtype)


class Fill:
    """A tensor of a type and a shape that holds one number."""

    def __call__(self, type: str, shape: Sequence[int], value: float) -> Tensor:
        """Fill."""
        return apply("fill", shape=tuple(shape), value=float(value), dtype=type)


class GetNext:
    """The next batch of a data set, in a network that is compiled alone: inputs of the program.

    Parameters
    ----------
    types : sequence of str
        Their element types.
    shapes : sequence of sequence of int
        Their shapes: those of whole inputs in modes that split operators, else those of a rank.
    output_num : int
        How many they are.
    shared_name : str
        The name of the queue, which is not there.
    """

    def __init__(
        self,
        types: Sequence[str],
        shapes: Sequence[Sequence[int]],
        output_num: int,
        shared_name: str,
    ) -> None:
        POSITIVE_INTEGER.check("output_num", output_num)
        for name, items in (("types", types), ("shapes", shapes)):
            if len(items) != output_num:
                raise wrong_value(name, tuple(items), f"{output_num} of them")
        check_type("shared_name", shared_name, str)
        self._types, self._shapes = tuple(types), [tuple(shape) for shape in shapes]

    def __call__(self) -> tuple[Tensor, ...]:
        """Return the inputs.

        Raises
        ------
        ModelError
            If the network is not compiled alone: a step is given its batch.
        """
        tracer = current_tracer()
        if tracer.only_rank is None:
            raise ModelError(
                "`GetNext` reads a queue, which is not there: a step is given its batch",
                hint="let `construct` take the batch, and give the data set to `Model.train`",
            )
        pairs = zip(self._types, self._shapes, strict=True)
        own = [Tensor(np.zeros(shape), dtype) for dtype, shape in pairs]
        if not splits_operators():
            own = whole_inputs(own)
        kinds = [tensor.type for tensor in own]
        names = [tracer.unique_name("next", numbered=True) for _ in kinds]
        values = [Value(name, kind) for name, kind in zip(names, kinds, strict=True)]
        return tuple(TracedTensor(tracer.input(value)) for value in values)


class DType:
    """The element type of a tensor, as a primitive."""

    def __call__(self, input_x: Tensor) -> str:
        """Return the type."""
        return input_x.dtype


class SplitV(own.SplitWithSize):
    """A dimension split into parts of sizes that are given with the primitive.

    Parameters
    ----------
    size_splits : sequence of int
        The sizes; -1 for what is left.
    split_dim : int
        The dimension.
    num_split : int
        Number of parts.
    """

    def __init__(self, size_splits: Sequence[int], split_dim: int, num_split: int) -> None:
        POSITIVE_INTEGER.check("num_split", num_split)
        if len(size_splits) != num_split or list(size_splits).count(-1) > 1:
            expected = f"{num_split} sizes, at most one of them -1"
            raise wrong_value("size_splits", tuple(size_splits), expected)
        self.size_splits, self.split_dim = tuple(size_splits), split_dim

    def compose(self, input_x: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        """Split."""
        known = sum(size for size in self.size_splits if size >= 0)
        rest = input_x.shape[self.split_dim] - known
        sizes = [rest if size == -1 else size for size in self.size_splits]
        return super().compose(input_x, sizes, self.split_dim)


class ReLUV2(Primitive):
    """The positive part, and where it is."""

    operator = "relu"

    def __init__(self) -> None:
        super().__init__()

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the positive part, and a mask."""
        return super().__call__(x), apply("greater", x, 0.0)


class TopK(Primitive):
    """The greatest elements along the last dimension in descending order, and where they stand.

    Parameters
    ----------
    sorted : bool
        Must be True.
    """

    operator = "top_k"

    def __init__(self, sorted: bool = True) -> None:
        if sorted is not True:
            raise wrong_value("sorted", sorted, "True")
        super().__init__()

    def __call__(self, input_x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return the elements and their positions."""
        self.attributes["k"] = k
        values, positions = super().__call__(input_x)
        return values, positions.astype("int32")


class Tile(OnAnyDevice):
    """A tensor put beside itself along its dimensions, before which there may be further ones.

    The strategy says the slices of the result for each number of copies. A dimension with several
    copies is split between copies, which the tensor is whole for.
    """

    _counts: tuple[int, ...] | None = None

    def shard(self, in_strategy: Any = None, out_strategy: None = None) -> Self:
        """Pin the slices of the result.

        Raises
        ------
        OptionError
            If there is not one tuple of numbers, or slices of the result are given apart.
        """
        counts = counts_of(in_strategy)
        if out_strategy is not None:
            raise wrong_value("out_strategy", out_strategy, "none")
        if counts is not None and len(counts) != 1:
            raise wrong_value("in_strategy", counts, "one tuple: the slices of the result")
        self._counts = counts and counts[0]
        return self

    def __call__(self, input_x: Tensor, multiples: Sequence[int]) -> Tensor:
        """Repeat.

        Raises
        ------
        ModelError
            If there are fewer numbers of copies than dimensions, a strategy has not one number for
            each, or does not divide the copies.
        """
        copies = tuple(multiples)
        added = len(copies) - input_x.ndim
        if added < 0 or any(count < 1 for count in copies):
            raise ModelError(
                f"`Tile` makes {copies} copies of a tensor of the shape {input_x.shape}, expected "
                f"a positive number for each dimension"
            )
        sizes = (1,) * added + input_x.shape
        whole = tuple(count * size for count, size in zip(copies, sizes, strict=True))
        x = input_x.reshape(sizes) if added else input_x
        if self._counts is None:
            return apply("tile", x, multiples=copies)
        if len(self._counts) != len(copies):
            raise ModelError(
                f"the strategy {self._counts} of `Tile` has {len(self._counts)} numbers, expected "
                f"one for each of the copies {copies}"
            )
        for n, size, parts in zip(copies, sizes, self._counts, strict=True):
            if (n if n > 1 else size) % parts:
                raise ModelError(
                    f"the strategy {self._counts} of `Tile` does not divide the copies {copies} of "
                    f"the shape {sizes}"
                )
        apart = [s for size in sizes for s in (1, size)]
        wide = [s for pair in zip(copies, sizes, strict=True) for s in pair]
        spread = own.BroadcastTo()
        slices = [
            part
            for n, count in zip(copies, self._counts, strict=True)
            for part in ((count, 1) if n > 1 else (1, count))
        ]
        spread.shard(None, (tuple(slices),))
        made: Tensor = spread(x.reshape(tuple(apart)), tuple(wide))
        return made.reshape(whole)


class Diag(Composition):
    """A square matrix with a vector on its diagonal; any tensor has each dimension twice."""

    def compose(self, input_x: Tensor) -> Tensor:
        """Put on the diagonal."""
        diagonal = Tensor(np.eye(input_x.size, dtype=bool))
        zero = apply("fill", shape=(), value=0.0, dtype=input_x.dtype)
        made = apply("where", diagonal, input_x.reshape((1, input_x.size)), zero)
        return made if input_x.ndim == 1 else made.reshape(input_x.shape * 2)


class UnsortedSegmentProd(Composition):
    """The product of the rows that the second operand assigns to each segment."""

    def compose(self, x: Tensor, segment_ids: Tensor, num_segments: int) -> Tensor:
        """Multiply; a segment without rows is one."""
        shape = (num_segments, *x.shape[segment_ids.ndim :])
        ones = apply("fill", shape=shape, value=1.0, dtype=x.dtype)
        return apply("scatter_nd_mul", ones, apply("expand_dims", segment_ids, axis=-1), x)


__all__ = [
    "Cast",
    "DType",
    "Diag",
    "Fill",
    "GetNext",
    "ReLUV2",
    "SplitV",
    "Tile",
    "TopK",
    "UnsortedSegmentProd",
]
