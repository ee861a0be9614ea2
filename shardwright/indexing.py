"""What stands beside a tensor: indices, by numbers, slices and positions, and other numbers."""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from math import prod
from types import EllipsisType
from typing import Any

import numpy as np

from shardwright.communication import WORLD_AXIS, Rank, symbol_of
from shardwright.ir.errors import ModelError
from shardwright.ir.types import DTYPES, numpy_dtype

Item = int | slice | None | EllipsisType
Apply = Callable[..., Any]


@dataclass(frozen=True)
class Cut:
    """The part of one dimension that an index keeps.

    Parameters
    ----------
    start, stop, step : int
        The elements that are kept.
    drop : bool
        Whether the dimension goes, as it does for a number.
    """

    start: int
    stop: int
    step: int = 1
    drop: bool = False

    @property
    def size(self) -> int:
        """How many elements are kept."""
        return len(range(self.start, self.stop, self.step))


@dataclass(frozen=True)
class Index:
    """What an index does to a tensor.

    Parameters
    ----------
    own : tuple of (int, int)
        The dimensions of which every rank keeps its own part, and the number of ranks.
    cuts : tuple of Cut
        What is kept of every dimension then.
    shape : tuple of int
        The shape of the result.
    """

    own: tuple[tuple[int, int], ...]
    cuts: tuple[Cut, ...]
    shape: tuple[int, ...]


def index_of(items: Sequence[Item], shape: Sequence[int]) -> Index:
    """Return what an index does to a tensor of some shape.

    Raises
    ------
    ModelError
        If it does not fit the shape, or keeps nothing.
    """
    items = without_ellipsis(items, len(shape))
    kept = [item for item in items if item is not None]
    own, cuts = [], []
    for dimension, (item, size) in enumerate(zip(kept, shape, strict=True)):
        symbol = _either(item) if isinstance(item, slice) else None
        if isinstance(item, slice) and symbol is not None and symbol.world > 1:
            own.append((dimension, symbol.world))
            cuts.append(Cut(0, _own_part(item, size, symbol.world)))
        else:
            cuts.append(_cut(item, size))
    left = iter(cuts)
    sizes = [Cut(0, 1) if item is None else next(left) for item in items]
    return Index(tuple(own), tuple(cuts), tuple(cut.size for cut in sizes if not cut.drop))


def without_ellipsis(items: Sequence[Any], rank: int) -> list[Any]:
    """Return the items of an index with slices of whole dimensions where it leaves some out.

    Raises
    ------
    ModelError
        If there are more items than dimensions.
    """
    used = sum(item is not None and item is not Ellipsis for item in items)
    if used > rank:
        raise ModelError(f"{used} indices are given for a tensor of {rank} dimensions")
    at = next((i for i, item in enumerate(items) if item is Ellipsis), len(items))
    rest = [item for item in items[at:] if item is not Ellipsis]
    return [*items[:at], *[slice(None)] * (rank - used), *rest]


def _either(item: slice) -> Rank | None:
    start = symbol_of(item.start)
    return symbol_of(item.stop) if start is None else start


def _cut(item: Item, size: int) -> Cut:
    if isinstance(item, slice):
        ends = [None if end is None else int(end) for end in (item.start, item.stop, item.step)]
        start, stop, step = slice(*ends).indices(size)
        if step < 1 or stop <= start:
            raise ModelError(f"the slice {item} of a dimension of size {size} keeps nothing")
        return Cut(start, stop, step)
    if not isinstance(item, int):
        raise ModelError(
            f"a tensor is indexed by {item!r}, expected a number, a slice, None or ...",
            hint="use `ops.gather` to index by a tensor",
        )
    if not -size <= item < size:
        raise ModelError(f"the index {item} is outside a dimension of size {size}")
    return Cut(item % size, item % size + 1, drop=True)


def _own_part(item: slice, size: int, world: int) -> int:
    """Return the size of a rank's part of a dimension: one of equal parts, in rank order.

    Raises
    ------
    ModelError
        If the slice is another one.
    """
    part = size // world
    bounds = (_affine(item.start, 0), _affine(item.stop, size))
    if size % world or item.step not in (None, 1) or bounds != ((part, 0), (part, part)):
        raise ModelError(
            f"a dimension of size {size} is cut from {item.start} to {item.stop} on {world} ranks, "
            f"each must keep its own of {world} equal parts in turn",
            hint=f"cut from rank * {part} to (rank + 1) * {part}" if size % world == 0 else None,
        )
    return part


def _affine(end: int | Rank | None, default: int) -> tuple[int, int]:
    """Return the factor of the rank, and the offset."""
    symbol = symbol_of(end)
    if symbol is not None:
        return symbol.scale, symbol.offset
    return 0, default if end is None else int(end)


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
        return _cut_tensor(tensor, index_of(items, tensor.shape), apply)
    items = without_ellipsis(items, tensor.ndim)
    places = [i for i, item in enumerate(items) if isinstance(item, int) or _is_positions(item)]
    others = [slice(None) if i in places else item for i, item in enumerate(items)]
    tensor = _cut_tensor(tensor, index_of(others, tensor.shape), apply)
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
    if getattr(item, "is_parameter", False) or (hasattr(item, "array") and item.array is None):
        return apply("where", item < 0, item + size, item)
    known = np.asarray(item.asnumpy() if hasattr(item, "asnumpy") else item)
    outside = known[(known < -size) | (known >= size)]
    if outside.size:
        raise ModelError(f"the index {outside.flat[0]} is outside a dimension of size {size}")
    return known % size


def _cut_tensor(tensor: Any, index: Index, apply: Apply) -> Any:
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


def beside(tensor: Any, other: object, *, divides: bool = False) -> Any:
    """Return a tensor in the element type in which it meets a number; as it is beside a tensor.

    As in MindSpore, integers and truths meet a real number in float32, and truths an integer in
    int32.

    Parameters
    ----------
    tensor : Tensor
        The tensor.
    other : object
        What it meets.
    divides : bool
        Whether the result is a quotient, and so real.
    """
    if tensor.type.is_float or isinstance(other, bool):
        return tensor
    if not isinstance(other, (int, float)):
        return tensor.astype("float32") if divides and hasattr(other, "type") else tensor
    if isinstance(other, float) or divides:
        return tensor.astype("float32")
    return tensor.astype("int32") if tensor.dtype == "bool" else tensor


def common_type(types: AbstractSet[str]) -> str | None:
    """Return the element type in which tensors meet, as in MindSpore; None if they do not.

    Real numbers come before whole ones, these before truth values, and wider ones before narrower;
    float16 and bfloat16 meet in float32. Whole numbers meet in the type that holds both, if any.
    """
    kinds = [numpy_dtype(dtype) for dtype in types]
    if all(kind.kind in "iu" for kind in kinds):
        both = np.result_type(*kinds) if kinds else None
        return both.name if both is not None and both.kind in "iu" else None
    halves = types >= {"float16", "bfloat16"}
    return min(types | ({"float32"} if halves else set()), key=DTYPES.index)


def place_of(dimension: object, rank: int) -> int:
    """Return the position of a dimension of a tensor; negative ones count from the end.

    Raises
    ------
    ModelError
        If there is no such dimension.
    """
    place = size_of(dimension)
    if not -rank <= place < rank:
        raise ModelError(f"a tensor of {rank} dimensions has no dimension {place}")
    return place % rank


def size_of(size: object) -> int:
    """Return the size, or the position, of a dimension.

    Raises
    ------
    ModelError
        If it is no integer.
    """
    if not isinstance(size, int):
        raise ModelError(f"a dimension is {size!r}, expected an integer")
    return size
