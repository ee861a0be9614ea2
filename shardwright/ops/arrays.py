"""Operators of MindSpore that look up, split, repeat and fill tensors, as compositions."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwright.ir.errors import ModelError, StrategyError
from shardwright.ir.values import NOT_NEGATIVE_INTEGER, wrong_value
from shardwright.ops.composite import Assign, Composition
from shardwright.ops.primitive import record_strategy
from shardwright.ops.written import TensorScatterAdd, TensorScatterSub, Written
from shardwright.parameter import Parameter
from shardwright.tensor import Tensor, apply, apply_all
from shardwright.tracer import is_tracing


class SplitWithSize(Composition):
    """A dimension split into parts of given sizes."""

    def compose(self, x: Tensor, sizes: Sequence[int], axis: int = 0) -> tuple[Tensor, ...]:
        """Split; the sizes add up to the size of the dimension."""
        if sum(sizes) != x.shape[axis]:
            raise ModelError(f"parts of {tuple(sizes)} do not make up {x.shape[axis]} elements")
        axis, begin, parts = axis % x.ndim, 0, []
        for size in sizes:
            start = tuple(begin if d == axis else 0 for d in range(x.ndim))
            shape = tuple(size if d == axis else n for d, n in enumerate(x.shape))
            parts.append(apply("slice", x, begin=start, size=shape))
            begin += size
        return tuple(parts)


class EmbeddingLookup(Composition):
    """Rows of a table whose first row is `offset`; rows outside of it are zero."""

    def compose(self, input_params: Tensor, input_indices: Tensor, offset: int = 0) -> Tensor:
        """Look up."""
        indices = apply("add_scalar", input_indices, value=-offset) if offset else input_indices
        return apply("gather", input_params, indices)


class StridedSlice(Composition):
    """The elements from `begin` to before `end` of each dimension, by `strides`.

    Parameters
    ----------
    begin_mask, end_mask : int
        Bits of the entries whose bound is not read: they begin or end where the tensor does.
    ellipsis_mask : int
        The bit of the entry that stands for all dimensions between those of other entries.
    new_axis_mask : int
        Bits of the entries that stand for a new dimension of size one, and read no bounds.
    shrink_axis_mask : int
        Bits of the other entries of which the element at `begin` alone is taken.
    """

    def __init__(
        self,
        begin_mask: int = 0,
        end_mask: int = 0,
        ellipsis_mask: int = 0,
        new_axis_mask: int = 0,
        shrink_axis_mask: int = 0,
    ) -> None:
        self.ellipsis_mask = ellipsis_mask
        self.begin_mask, self.end_mask = begin_mask, end_mask
        self.new_axis_mask, self.shrink_axis_mask = new_axis_mask, shrink_axis_mask
        for name, mask in vars(self).items():
            NOT_NEGATIVE_INTEGER.check(name, mask)
        if ellipsis_mask.bit_count() > 1:
            raise wrong_value("ellipsis_mask", ellipsis_mask, "one bit: there is one such entry")

    def compose(
        self,
        input_x: Tensor,
        begin: tuple[int, ...],
        end: tuple[int, ...],
        strides: tuple[int, ...] | None = None,
    ) -> Tensor:
        """Slice; a negative bound counts from the end. Other dimensions stay whole."""
        steps = strides or (1,) * len(begin)

        def index(d: int, first: int, last: int, step: int) -> Any:
            if self.ellipsis_mask >> d & 1:
                return ...
            if self.new_axis_mask >> d & 1:
                return None
            if self.shrink_axis_mask >> d & 1:
                return first
            start = None if self.begin_mask >> d & 1 else first
            return slice(start, None if self.end_mask >> d & 1 else last, step)

        bounds = zip(begin, end, steps, strict=True)
        return input_x[tuple(index(d, *bound) for d, bound in enumerate(bounds))]


class SplitTensor(Composition):
    """A dimension split into parts of one size, the last of which may be smaller."""

    def compose(self, x: Tensor, split_size: int, axis: int = 0) -> tuple[Tensor, ...]:
        """Split."""
        whole, rest = divmod(x.shape[axis], split_size)
        return SplitWithSize()(x, [split_size] * whole + [rest] * bool(rest), axis)


class RepeatElements(Composition):
    """Every element of a dimension `rep` times, one behind the other."""

    def __init__(self, rep: int, axis: int = 0) -> None:
        self.rep, self.axis = rep, axis

    def compose(self, x: Tensor) -> Tensor:
        """Repeat."""
        axis = self.axis % x.ndim
        wider = apply("expand_dims", x, axis=axis + 1)
        shape = (*x.shape[: axis + 1], self.rep, *x.shape[axis + 1 :])
        copies = apply("broadcast_to", wider, shape=shape)
        return copies.reshape((*x.shape[:axis], x.shape[axis] * self.rep, *x.shape[axis + 1 :]))


class Made(Composition):
    """The base of operators that make a tensor of numbers: its slices are the strategy."""

    def __call__(self, *arguments: Any) -> Any:
        """Make the tensor."""
        made = self.compose(*arguments)  # type: ignore[attr-defined]
        if self.in_strategy is None or not is_tracing():
            return made
        (counts,) = self.in_strategy
        divides = zip(made.shape, counts, strict=False)
        if len(counts) != made.ndim or any(size % count for size, count in divides):
            raise StrategyError(
                f"the strategy {self.in_strategy} of `{type(self).__name__}` does not divide the "
                f"{made.size} numbers that it makes"
            )
        same = apply_all("identity", made)
        record_strategy(same, [made], self.in_strategy, None)
        return same[0]


class Range(Made):
    """The numbers from `start` to before `limit` by `delta`, as a constant."""

    def compose(
        self, start: float | Tensor, limit: float | Tensor, delta: float | Tensor = 1
    ) -> Tensor:
        """Count; whole numbers where all three are."""
        numbers = np.arange(_number(start), _number(limit), _number(delta))
        return Tensor(numbers.astype(np.int64 if numbers.dtype.kind == "i" else np.float32))


class LinSpace(Made):
    """`num` evenly spaced numbers from `start` to `stop`."""

    def compose(self, start: float | Tensor, stop: float | Tensor, num: int) -> Tensor:
        """Divide the way."""
        if any(isinstance(end, Tensor) and end.array is None for end in (start, stop)):
            shares = Tensor(np.linspace(0, 1, num).astype(np.float32))
            return start + shares * (stop - start)
        return Tensor(np.linspace(_number(start), _number(stop), num).astype(np.float32))


def _number(item: float | Tensor) -> Any:
    """Return a number that is known while the program is traced."""
    return item.asnumpy().item() if isinstance(item, Tensor) else item


class NanToNum(Composition):
    """A tensor with numbers where there are none, or infinite ones."""

    def __init__(self, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None):
        self.nan, self.posinf, self.neginf = nan, posinf, neginf

    def compose(self, x: Tensor) -> Tensor:
        """Replace."""
        largest = float(np.finfo("float32" if x.dtype == "bfloat16" else x.dtype).max)
        high = largest if self.posinf is None else self.posinf
        low = -largest if self.neginf is None else self.neginf
        infinite = apply("where", apply("greater", x, 0.0), _filled(high, x), _filled(low, x))
        finite = apply("where", apply("is_inf", x), infinite, x)
        return apply("where", apply("is_nan", x), _filled(self.nan, x), finite)


def _filled(value: float, like: Tensor) -> Tensor:
    return apply("fill", shape=(), value=float(value), dtype=like.dtype)


class TruncateMod(Composition):
    """The remainder of a division rounded towards zero, with the sign of the dividend."""

    is_pointwise = True

    def compose(self, x: Tensor, y: Tensor) -> Tensor:
        """Divide, and take away."""
        return x - TruncateDiv().compose(x, y) * y


class TruncateDiv(Composition):
    """A quotient rounded towards zero."""

    is_pointwise = True

    def compose(self, x: Tensor, y: Tensor) -> Tensor:
        """Divide and round; whole numbers as such."""
        if x.type.is_float or y.type.is_float:
            return apply("trunc", x / y)
        floored = apply("floor_div", x, y)
        rest = apply("not_equal", x - floored * y, 0)
        apart = apply("logical_and", rest, apply("less", x, 0) != apply("less", y, 0))
        return floored + apart.astype(floored.dtype)


class Xlogy(Composition):
    """The first times the logarithm of the second; zero where the first is zero."""

    is_pointwise = True

    def compose(self, x: Tensor, y: Tensor) -> Tensor:
        """Take the logarithm where it counts."""
        counts = apply("not_equal", x, 0.0)
        return x * apply("log", apply("where", counts, y, _filled(1.0, y)))


class Xdivy(Composition):
    """A quotient; zero where the first is zero."""

    is_pointwise = True

    def compose(self, x: Tensor, y: Tensor) -> Tensor:
        """Divide where it counts."""
        counts = apply("not_equal", x, 0.0)
        return x / apply("where", counts, y, _filled(1.0, y))


class TraceV2(Composition):
    """The sum of the diagonal of matrices."""

    def compose(self, x: Tensor, offset: int = 0) -> Tensor:
        """Keep the diagonal, and add up."""
        diagonal = apply("tril", apply("triu", x, diagonal=offset), diagonal=offset)
        return diagonal.sum((-2, -1))


class Cdist(Composition):
    """The distance of every row of the first to every row of the second."""

    notation = "... m k^, ... n k^ -> ... m n"

    def compose(self, x: Tensor, y: Tensor) -> Tensor:
        """Subtract every pair; rows that are equal have no gradient."""
        pairs = apply("expand_dims", x, axis=-2) - apply("expand_dims", y, axis=-3)
        return apply("sqrt", apply("square", pairs).sum(-1))


class ScatterAdd(Written):
    """Add to rows of a parameter that is not trained, at the end of the step."""

    rows = True
    change: type[TensorScatterAdd] = TensorScatterAdd

    def compose(self, input_x: Parameter, indices: Tensor, updates: Tensor) -> Tensor:
        """Return the new value."""
        positions = apply("expand_dims", indices, axis=-1)
        return Assign()(input_x, self.change()(input_x, positions, updates))


class ScatterSub(ScatterAdd):
    """Subtract from rows of a parameter that is not trained, at the end of the step."""

    change = TensorScatterSub


class ScatterMax(Written):
    """Replace rows of an untrained parameter by the elementwise maximum, at the end of the step."""

    rows = True
    operator = "scatter_nd_max"

    def compose(self, input_x: Parameter, indices: Tensor, updates: Tensor) -> Tensor:
        """Return the new value."""
        positions = apply("expand_dims", indices, axis=-1)
        return Assign()(input_x, apply(self.operator, input_x, positions, updates))


class ScatterMin(ScatterMax):
    """Replace rows of an untrained parameter by the elementwise minimum, at the end of the step."""

    operator = "scatter_nd_min"


class ScatterUpdate(ScatterMax):
    """Give rows of a parameter that is not trained other values, at the end of the step."""

    operator = "scatter_nd_update"
