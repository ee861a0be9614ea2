"""Reductions whose strategies may split what they reduce: each rank its part, then all parts."""

from collections.abc import Sequence
from typing import Any

from shardwright.operators.reduction.reduce import reduced_axes
from shardwright.ops.primitive import Primitive
from shardwright.tensor import Tensor, apply


class _InStages(Primitive):
    """The base of reductions that no communication does: parts are gathered, and reduced."""

    def __init__(self, keep_dims: bool = False) -> None:
        super().__init__(keep_dims=keep_dims)

    def __call__(self, x: Tensor, axis: int | Sequence[int] = ()) -> Any:
        """Reduce dimensions; all of them, if none is named."""
        named = axis if isinstance(axis, int) else tuple(axis) or None
        counts = None if self.in_strategy is None else self.in_strategy[0]
        axes = reduced_axes(named, x.ndim)
        if counts is None or len(counts) != x.ndim or not any(counts[d] > 1 for d in axes):
            return super().__call__(x, named)
        if any(x.shape[d] % counts[d] for d in axes):
            return super().__call__(x, named)  # which refuses it
        return self._in_stages(x, axes, counts)

    def _in_stages(self, x: Tensor, axes: tuple[int, ...], counts: tuple[int, ...]) -> Tensor:
        shape: list[int] = []
        split: list[int] = []
        inner: list[int] = []
        outer: list[int] = []
        for d, (size, count) in enumerate(zip(x.shape, counts, strict=True)):
            if d in axes and count > 1:
                outer.append(len(shape))
                shape.append(count)
                split.append(count)
                size //= count
            if d in axes:
                inner.append(len(shape))
            shape.append(size)
            split.append(1 if d in axes else count)
        parts = type(self)(keep_dims=True)
        parts.in_strategy = (tuple(split),)
        of_ranks = Primitive.__call__(parts, x.reshape(tuple(shape)), tuple(inner))
        made = apply(self.operator, of_ranks, axis=tuple(outer), keep_dims=True)
        keep = self.attributes.get("keep_dims", False)
        kept = [1 if d in axes else n for d, n in enumerate(x.shape) if keep or d not in axes]
        return made.reshape(tuple(kept))


class ReduceMax(_InStages):
    """The greatest element."""

    operator = "reduce_max"


class ReduceMin(_InStages):
    """The least element."""

    operator = "reduce_min"


class ReduceProd(_InStages):
    """The product of the elements."""

    operator = "reduce_prod"


__all__ = ["ReduceMax", "ReduceMin", "ReduceProd"]
