"""Rows of tensors and parameters that are changed at positions."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from shardwright import ops as own
from shardwright.ir.errors import ModelError, StrategyError
from shardwright.ir.values import (
    NOT_NEGATIVE_INTEGER,
    wrong_value,
)
from shardwright.operators.info import SplitCounts
from shardwright.ops.composite import Assign, Composition
from shardwright.ops.primitive import OnAnyDevice, counts_of
from shardwright.ops.written import Written
from shardwright.parameter import Parameter
from shardwright.tensor import Tensor, apply


class _Inplace(OnAnyDevice):
    """A tensor whose rows at some positions are changed by those of another."""

    change: Callable[[], Any]
    _counts: SplitCounts | None = None

    def __init__(self, indices: int | Sequence[int]) -> None:
        self.indices = (indices,) if isinstance(indices, int) else tuple(indices)
        for index in self.indices:
            NOT_NEGATIVE_INTEGER.check("indices", index)
        self.changed = self.change()

    def shard(self, in_strategy: Any = None, out_strategy: None = None) -> Self:
        """Pin the slices of the tensor and the rows; see `Composition.shard`."""
        counts = counts_of(in_strategy)
        if counts is not None and len(counts) != 2:
            raise wrong_value("in_strategy", counts, "the slices of the tensor and of the rows")
        self._counts = counts
        self.changed.shard(counts and (counts[0], (1, 1), counts[1]), out_strategy)
        return self

    def __call__(self, x: Tensor, input_v: Tensor) -> Tensor:
        """Return the changed tensor.

        Raises
        ------
        ModelError
            If there are not as many rows as positions, or a position is none of the tensor.
        """
        if self._counts is not None:
            of_tensor, of_rows = self._counts
            if of_tensor != of_rows or of_tensor[:1] != (1,):
                raise StrategyError(
                    f"the strategy {self._counts} of `{type(self).__name__}` splits the tensor and "
                    f"its rows in different ways, or between rows",
                    hint="write 1 for the first dimension of both, and the same numbers after it",
                )
        rows = (len(self.indices), *x.shape[1:])
        if input_v.shape != rows or max(self.indices, default=-1) >= x.shape[0]:
            raise ModelError(
                f"`{type(self).__name__}` puts rows of the shape {input_v.shape} at {self.indices} "
                f"of the shape {x.shape}, expected {rows} and positions below {x.shape[0]}"
            )
        positions = Tensor(np.array(self.indices, np.int32)[:, None])
        made: Tensor = self.changed(x, positions, input_v)
        return made


class InplaceAdd(_Inplace):
    """A tensor plus rows at some positions."""

    change = own.TensorScatterAdd


class InplaceSub(_Inplace):
    """A tensor less rows at some positions."""

    change = own.TensorScatterSub


class InplaceUpdate(_Inplace):
    """A tensor with other rows at some positions."""

    change = own.ScatterNdUpdate


class _ScatterRows(Written):
    """Changes rows of a parameter that is not trained by a product or quotient."""

    rows = True

    def compose(self, input_x: Parameter, indices: Tensor, updates: Tensor) -> Tensor:
        """Return the new value."""
        return Assign()(
            input_x, self.changed(input_x, apply("expand_dims", indices, axis=-1), updates)
        )

    def changed(self, x: Tensor, positions: Tensor, updates: Tensor) -> Tensor:
        """Return the changed tensor."""
        raise NotImplementedError


class TensorScatterMul(Written):
    """A tensor times slices at tuples of positions; slices at one position multiply up."""

    def compose(self, input_x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
        """Multiply."""
        return apply("scatter_nd_mul", input_x, indices, updates)


class TensorScatterDiv(Written):
    """A tensor divided by slices at tuples of positions."""

    def compose(self, input_x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
        """Divide."""
        return apply("scatter_nd_mul", input_x, indices, apply("reciprocal", updates))


class ScatterMul(_ScatterRows):
    """Multiply rows of a parameter that is not trained, at the end of the step."""

    def changed(self, x: Tensor, positions: Tensor, updates: Tensor) -> Tensor:
        """Multiply."""
        return TensorScatterMul()(x, positions, updates)


class ScatterDiv(_ScatterRows):
    """Divide rows of a parameter that is not trained, at the end of the step."""

    def changed(self, x: Tensor, positions: Tensor, updates: Tensor) -> Tensor:
        """Divide."""
        return TensorScatterDiv()(x, positions, updates)


class ScatterNdAdd(Written):
    """Add slices to a parameter that is not trained, at the end of the step."""

    change: ClassVar[type[Composition]] = own.TensorScatterAdd

    def compose(self, input_x: Parameter, indices: Tensor, updates: Tensor) -> Tensor:
        """Return the new value."""
        return Assign()(input_x, self.change()(input_x, indices, updates))


class ScatterNdSub(ScatterNdAdd):
    """Subtract slices from a parameter that is not trained, at the end of the step."""

    change = own.TensorScatterSub


__all__ = [
    "InplaceAdd",
    "InplaceSub",
    "InplaceUpdate",
    "ScatterDiv",
    "ScatterMul",
    "ScatterNdAdd",
    "ScatterNdSub",
    "TensorScatterDiv",
    "TensorScatterMul",
]
