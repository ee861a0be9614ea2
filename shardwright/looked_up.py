"""Tensors that are indexed: by numbers and slices, and by tensors of positions."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from shardwright.communication import WORLD_AXIS
from shardwright.indexing import Index, Item, index_of, without_ellipsis
from shardwright.ir.errors import ModelError

Apply = Callable[..., Any]


def indexed(tensor: Any, items: Sequence[Item], apply: Apply) -> Any:
    """Return the elements of a tensor that an index names.

    As in NumPy, tensors and lists of positions meet each other and numbers; their dimensions stand
    where the first of them stood, or first, where slices stand between them.

    Parameters
    ----------
    tensor : Tensor
        The tensor.
    items : sequence
        What stands in the brackets.
    apply : callable
        Records an operator.

    Raises
    ------
    ModelError
        If the index does not fit the shape, or keeps nothing.
    """
    items = tuple(np.asarray(item) if isinstance(item, list) else item for item in items)
    if not any(map(_is_positions, items)):
        return _cut(tensor, index_of(items, tensor.shape), apply)
    items = without_ellipsis(items, tensor.ndim)
    places = [i for i, item in enumerate(items) if isinstance(item, int) or _is_positions(item)]
    others = [slice(None) if i in places else item for i, item in enumerate(items)]
    tensor = _cut(tensor, index_of(others, tensor.shape), apply)
    if len(places) == 1:
        found = _wrapped(items[places[0]], tensor.shape[places[0]], apply)
        return apply("gather", tensor, found, axis=places[0])
    return _by_several(tensor, {i: items[i] for i in places}, apply)


def _by_several(tensor: Any, positions: dict[int, Any], apply: Apply) -> Any:
    """Look up along several dimensions, as one: the first of all."""
    places, shape = list(positions), tensor.shape
    rest = [d for d in range(tensor.ndim) if d not in positions]
    number: Any = 0
    for place, item in positions.items():
        number = _sum(number * shape[place], _wrapped(item, shape[place], apply))
    rows = tensor.transpose((*places, *rest)).reshape(
        (prod(shape[d] for d in places), *(shape[d] for d in rest))
    )
    found = apply("gather", rows, number, axis=0)
    if places != list(range(places[0], places[-1] + 1)):
        return found
    new = found.ndim - len(rest)
    before = range(new, new + places[0])
    return found.transpose((*before, *range(new), *range(new + places[0], found.ndim)))


def _sum(one: Any, other: Any) -> Any:
    """Add positions, those of a tensor and known ones in the type of the tensor."""
    tensor, known = (other, one) if hasattr(other, "type") else (one, other)
    fits = isinstance(known, np.ndarray | np.generic) and hasattr(tensor, "type")
    return tensor + (known.astype(tensor.dtype) if fits else known)


def _is_positions(item: object) -> bool:
    return hasattr(item, "dtype") and hasattr(item, "shape")


def _wrapped(item: Any, size: int, apply: Apply) -> Any:
    """Return positions that count from the first element; negative ones count from the end.

    Raises
    ------
    ModelError
        If they are known and outside, or no whole numbers.
    """
    if not isinstance(item, int) and not np.issubdtype(np.dtype(str(item.dtype)), np.integer):
        raise ModelError(
            f"a tensor is indexed by a tensor of {item.dtype}, expected whole numbers",
            hint="use `ops.where` to choose by truth values: how many are true is not known before",
        )
    if getattr(item, "is_parameter", False) or (hasattr(item, "data") and item.data is None):
        return apply("where", item < 0, item + size, item)
    known = np.asarray(item.asnumpy() if hasattr(item, "asnumpy") else item)
    outside = known[(known < -size) | (known >= size)]
    if outside.size:
        raise ModelError(f"the index {outside.flat[0]} is outside a dimension of size {size}")
    return known % size


def _cut(tensor: Any, index: Index, apply: Apply) -> Any:
    """Index in three moves: cut by rank, cut by numbers, drop and add dimensions of size one."""
    for dimension, world in index.own:
        how: dict[str, Any] = {"axes": (WORLD_AXIS,), "dimension": dimension}
        tensor = apply("local_slice", tensor, group_size=world, **how)
    if tuple(cut.size for cut in index.cuts) != tensor.shape:
        tensor = apply(
            "slice",
            tensor,
            begin=tuple(cut.start for cut in index.cuts),
            size=tuple(cut.size for cut in index.cuts),
            strides=tuple(cut.step for cut in index.cuts),
        )
    return tensor if index.shape == tensor.shape else tensor.reshape(index.shape)
