"""Reductions of a tensor, by the arguments of its methods.

As in MindSpore 2.10, ``x.max(1)`` and ``x.max(dim=1)`` return the elements and where they stand,
``x.max(axis=1)`` and ``x.max()`` the elements alone.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Axis = int | tuple[int, ...] | None


def extremes(
    which: str,
    tensor: Any,
    given: Sequence[Any],
    named: Mapping[str, Any],
    apply: Callable[..., Any],
) -> Any:
    """Return elements, or a pair of elements and positions.

    Parameters
    ----------
    which : str
        ``max`` or ``min``.
    tensor : Tensor
        The tensor.
    given, named : sequence, mapping
        The arguments of the method: ``dim, keepdim`` for both results, else ``axis, keepdims`` and
        ``return_indices``; ``keep_dims`` is another name of ``keepdims``.
    apply : callable
        Records an operator.
    """
    along = named.keys() <= {"dim", "keepdim"} and (named or (given and isinstance(given[0], int)))
    axis, keep, places = (_along if along else _over)(*given, **named)
    values = apply(f"reduce_{which}", tensor, axis=axis, keep_dims=keep)
    if not places:
        return values
    if axis is None:  # which MindSpore has at 0
        return values, apply("fill", shape=(), value=0.0, dtype="int64")
    return values, apply(f"arg{which}", tensor, axis=axis, keep_dims=keep)


def _along(dim: int, keepdim: bool = False) -> tuple[Axis, bool, bool]:
    return dim, keepdim, True


def _over(
    axis: Axis = None,
    keepdims: bool = False,
    *,
    keep_dims: bool = False,
    return_indices: bool = False,
) -> tuple[Axis, bool, bool]:
    return axis, keepdims or keep_dims, return_indices


def position(
    which: str,
    tensor: Any,
    given: Sequence[Any],
    named: Mapping[str, Any],
    apply: Callable[..., Any],
) -> Any:
    """Return where an extreme element stands, along a dimension or among all; see `extremes`."""
    axis, keep, _ = (_along if "dim" in named else _over)(*given, **named)
    if axis is not None:
        return apply(f"arg{which}", tensor, axis=axis, keep_dims=keep)
    found = apply(f"arg{which}", tensor.reshape(-1), axis=0)
    return found.reshape((1,) * tensor.ndim) if keep else found


def reduction(
    operator: str,
    tensor: Any,
    axis: Axis,
    keep: bool,
    apply: Callable[..., Any],
    *,
    dim: Axis = None,
    keepdim: bool = False,
    keepdims: bool = False,
    dtype: str | None = None,
) -> Any:
    """Return a reduction over dimensions, which have two names, as what keeps them has three.

    Parameters
    ----------
    operator : str
        The operator.
    tensor : Tensor
        The tensor.
    axis, dim : int, tuple of int or None
        The dimensions; all if neither is given.
    keep, keepdim, keepdims : bool
        Whether they stay, with size one.
    apply : callable
        Records an operator.
    dtype : str, optional
        The element type that is reduced in; unless given that of the tensor, but int64 for sums of
        whole numbers and truth values.
    """
    if dtype is None and operator == "reduce_sum" and not tensor.type.is_float:
        dtype = "int64"
    tensor = tensor if dtype in (None, tensor.dtype) else tensor.astype(dtype)
    axis = dim if axis is None else axis
    return apply(operator, tensor, axis=axis, keep_dims=bool(keep or keepdim or keepdims))
