"""Functions of MindSpore that take tensors apart, put them together, or move their elements."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from shardwright.ir.errors import ModelError
from shardwright.ir.values import check_choice, wrong_value
from shardwright.mindspore.ops import functions
from shardwright.mindspore.ops.reductions import sort
from shardwright.tensor import Tensor, apply

Formula = Callable[..., Any]


def _sized(x: Tensor, rank: int) -> Tensor:
    """Return a tensor with dimensions of one element before it, to a number of dimensions."""
    return x if x.ndim >= rank else x.reshape((1,) * (rank - x.ndim) + x.shape)


def _volume(x: Tensor) -> Tensor:
    """Return a tensor of at least three dimensions, as `atleast_3d` and `dstack` have it."""
    shape = {0: (1, 1, 1), 1: (1, x.size, 1), 2: (*x.shape, 1)}.get(x.ndim)
    return x if shape is None else x.reshape(shape)


def _each(tensors: Any, make: Callable[[Tensor], Tensor]) -> Any:
    return make(tensors) if isinstance(tensors, Tensor) else tuple(map(make, tensors))


def _joined(tensors: Sequence[Tensor], axis: int) -> Tensor:
    return apply("concat", *tensors, axis=axis)


def _narrow(input: Tensor, axis: int, start: int, length: int) -> Tensor:
    begin = [0] * input.ndim
    size = list(input.shape)
    begin[axis % input.ndim], size[axis % input.ndim] = start % input.shape[axis], length
    return apply("slice", input, begin=tuple(begin), size=tuple(size))


def _cut(input: Tensor, ends: Sequence[int], axis: int) -> tuple[Tensor, ...]:
    """Return the parts of a dimension between positions."""
    pairs = zip((0, *ends), (*ends, input.shape[axis]), strict=True)
    return tuple(_narrow(input, axis, start, end - start) for start, end in pairs)


def _chunk(input: Tensor, chunks: int, axis: int = 0) -> tuple[Tensor, ...]:
    each = -(-input.shape[axis] // chunks)
    return _cut(input, range(each, input.shape[axis], each), axis)


def _tensor_split(
    input: Tensor, indices_or_sections: int | Sequence[int], axis: int = 0
) -> tuple[Tensor, ...]:
    given, size = indices_or_sections, input.shape[axis]
    if isinstance(given, int):
        sizes = [size // given + (i < size % given) for i in range(given)]
        return _cut(input, [*accumulate(sizes)][:-1], axis)
    return _cut(input, given, axis)


def _roll(input: Tensor, shifts: Any, dims: Any = None) -> Tensor:
    if dims is None:
        rolled: Tensor = _roll(input.reshape((-1,)), shifts, 0).reshape(input.shape)
        return rolled
    pairs = ((shifts, dims),) if isinstance(dims, int) else zip(shifts, dims, strict=True)
    for shift, axis in pairs:
        at = -shift % input.shape[axis]
        if at:
            input = _joined(_cut(input, [at], axis)[::-1], axis)
    return input


def _rot90(input: Tensor, k: int, dims: Sequence[int]) -> Tensor:
    first, second = dims
    for _ in range(k % 4):
        input = apply("reverse", input.swapaxes(first, second), axis=(first % input.ndim,))
    return input


def _moved(x: Tensor, source: Any, destination: Any) -> Tensor:
    axes = [(a,) if isinstance(a, int) else tuple(a) for a in (source, destination)]
    left = {b % x.ndim: a % x.ndim for a, b in zip(*axes, strict=True)}
    rest = iter(d for d in range(x.ndim) if d not in left.values())
    return x.transpose(*(left[d] if d in left else next(rest) for d in range(x.ndim)))


def _repeated(input: Tensor, repeats: Any, axis: int | None = None) -> Tensor:
    if axis is None:
        input, axis = input.reshape((-1,)), 0
    counts = repeats.asnumpy() if isinstance(repeats, Tensor) else repeats
    places = np.repeat(np.arange(input.shape[axis]), counts)
    return apply("gather", input, Tensor(places, "int32"), axis=axis % input.ndim)


def _grid(*inputs: Any, indexing: str = "xy") -> tuple[Tensor, ...]:
    check_choice("indexing", indexing, ("xy", "ij"))
    tensors: Sequence[Tensor] = inputs[0] if len(inputs) == 1 else inputs
    turned = indexing == "xy" and len(tensors) > 1
    order = [1, 0, *range(2, len(tensors))] if turned else [*range(len(tensors))]
    shape = tuple(tensors[i].size for i in order)
    made = []
    for i, tensor in enumerate(tensors):
        own = tuple(tensor.size if d == i else 1 for d in order)
        made.append(apply("broadcast_to", tensor.reshape(own), shape=shape))
    return tuple(made)


def _expanded(input: Tensor, size: Any) -> Tensor:
    own = _sized(input, len(size))
    shape = tuple(n if each == -1 else each for each, n in zip(size, own.shape, strict=True))
    return apply("broadcast_to", own, shape=shape)


def _difference(x: Tensor, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None):  # type: ignore[no-untyped-def]
    parts = [part for part in (prepend, x, append) if part is not None]
    x = _joined(parts, axis) if len(parts) > 1 else x
    for _ in range(n):
        size = x.shape[axis] - 1
        x = _narrow(x, axis, 1, size) - _narrow(x, axis, 0, size)
    return x


def _taken(input: Tensor, index: Tensor, axis: int | None = None) -> Tensor:
    x, dim = (input.reshape((-1,)), 0) if axis is None else (input, axis)
    return functions.gather(x, index, dim % x.ndim)


def _full_like(input: Tensor, fill_value: float, *, dtype: str | None = None) -> Tensor:
    return apply("fill", shape=input.shape, value=float(fill_value), dtype=dtype or input.dtype)


def _index_add(
    x: Tensor,
    indices: Tensor,
    y: Tensor,
    axis: int,
    use_lock: bool = True,
    check_index_bound: bool = True,
) -> Tensor:
    if axis % x.ndim:
        turned = _index_add(x.swapaxes(0, axis), indices, y.swapaxes(0, axis), 0)
        return turned.swapaxes(0, axis)
    places = apply("expand_dims", indices, axis=-1)
    return x + apply("scatter_nd", places, y, shape=x.shape)


def _index_fill(x: Tensor, axis: int, index: Any, value: Any) -> Tensor:
    places = index if isinstance(index, Tensor) else Tensor([index], "int32")
    hits = apply("one_hot", places.reshape((-1,)), depth=x.shape[axis], dtype="float32").sum(0)
    chosen = (hits > 0).reshape(
        tuple(n if d == axis % x.ndim else 1 for d, n in enumerate(x.shape))
    )
    filled = value.astype(x.dtype) if isinstance(value, Tensor) else _full_like(x, value)
    return apply("where", chosen, filled, x)


def _triangle(which: str) -> Formula:
    def indices(row: int, col: int, offset: int = 0, *, dtype: str = "int64") -> Tensor:
        found = getattr(np, f"{which}_indices")(row, offset, col)
        return Tensor(np.stack(found), dtype)

    return indices


def _block_diagonal(*inputs: Tensor) -> Tensor:
    blocks, columns = [_sized(x, 2) for x in inputs], 0
    width, rows = sum(block.shape[1] for block in blocks), []
    for block in blocks:
        after = width - columns - block.shape[1]
        rows.append(apply("pad", block, before=(0, columns), after=(0, after)))
        columns += block.shape[1]
    return _joined(rows, 0)


def _trapezoids(y: Tensor, x: Tensor | None = None, *, dx: float = 1.0, dim: int = -1) -> Tensor:
    y, size = y.astype("float32"), y.shape[dim] - 1
    heights = _narrow(y, dim, 1, size) + _narrow(y, dim, 0, size)
    if x is None:
        return heights.sum(dim) * (dx / 2)
    at = dim % y.ndim
    own = x if x.ndim == y.ndim else x.reshape(tuple(-1 if d == at else 1 for d in range(y.ndim)))
    steps = _narrow(own, at, 1, size) - _narrow(own, at, 0, size)
    return (heights * steps).sum(dim) * 0.5


def _of_rank(x: Tensor, rank: int) -> Tensor:
    if x.ndim > rank:
        raise ModelError(f"a tensor of {x.ndim} dimensions is given, expected at most {rank}")
    return x


def _put(input: Tensor, src: Tensor, axis: int, index: int) -> Tensor:
    return _inserted(input, apply("expand_dims", src, axis=axis % input.ndim), axis, index)


def _inserted(input: Tensor, src: Tensor, axis: int, start: int) -> Tensor:
    """Return a tensor with another in place of some of its slices along a dimension."""
    begin, size = start % input.shape[axis], input.shape[axis]
    end = begin + src.shape[axis]
    before = [_narrow(input, axis, 0, begin)] if begin else []
    after = [_narrow(input, axis, end, size - end)] if end < size else []
    return _joined([*before, src, *after], axis) if before or after else src


def _slice_scatter(
    input: Tensor,
    src: Tensor,
    axis: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    if step != 1:
        raise wrong_value("step", step, "1")
    return _inserted(input, src, axis, start or 0)


def _powers(x: Tensor, N: int | None = None) -> Tensor:  # noqa: N803  # MindSpore's name
    exponents = reversed(range(x.size if N is None else N))
    each = (x**power if power else apply("ones_like", x) for power in exponents)
    return apply("stack", *each, axis=-1)


SHAPES: dict[str, Formula] = {
    "argsort": lambda input, axis=-1, descending=False: sort(input, axis, descending)[1],
    "atleast_1d": lambda inputs: _each(inputs, lambda x: _sized(x, 1)),
    "atleast_2d": lambda inputs: _each(inputs, lambda x: _sized(x, 2)),
    "atleast_3d": lambda inputs: _each(inputs, _volume),
    "block_diag": _block_diagonal,
    "chunk": _chunk,
    "column_stack": lambda tensors: _joined(
        [x.reshape((-1, 1)) if x.ndim < 2 else x for x in tensors], 1
    ),
    "diff": _difference,
    "dstack": lambda tensors: _joined([_volume(x) for x in tensors], 2),
    "expand": _expanded,
    "expand_as": lambda input, other: _expanded(input, other.shape),
    "flip": lambda input, dims: apply(
        "reverse", input, axis=(dims,) if isinstance(dims, int) else tuple(dims)
    ),
    "fliplr": lambda input: apply("reverse", input, axis=(1,)),
    "flipud": lambda input: apply("reverse", input, axis=(0,)),
    "full_like": _full_like,
    "hstack": lambda tensors: _joined(
        [_sized(x, 1) for x in tensors], 0 if tensors[0].ndim < 2 else 1
    ),
    "index_add": _index_add,
    "index_fill": _index_fill,
    "is_tensor": lambda obj: isinstance(obj, Tensor),
    "meshgrid": _grid,
    "movedim": _moved,
    "msort": lambda input: sort(input, 0)[0],
    "narrow": _narrow,
    "numel": lambda input: input.size,
    "permute": lambda input, axis: input.transpose(tuple(axis)),
    "rank": lambda input_x: input_x.ndim,
    "ravel": lambda input: input.reshape((-1,)),
    "repeat_elements": lambda x, rep, axis=0: _repeated(x, rep, axis),
    "repeat_interleave": _repeated,
    "roll": _roll,
    "rot90": _rot90,
    "select_scatter": _put,
    "size": lambda input_x: input_x.size,
    "slice_scatter": _slice_scatter,
    "swapaxes": lambda input, axis0, axis1: input.swapaxes(axis0, axis1),
    "t": lambda input: _of_rank(input, 2).transpose(),
    "take": _taken,
    "tensor_split": _tensor_split,
    "trapz": _trapezoids,
    "tril_indices": _triangle("tril"),
    "triu_indices": _triangle("triu"),
    "unbind": lambda input, dim=0: tuple(
        apply("squeeze", part, axis=dim) for part in _cut(input, range(1, input.shape[dim]), dim)
    ),
    "vander": _powers,
    "view_as": lambda input, other: input.reshape(other.shape),
    "vstack": lambda inputs: _joined([_sized(x, 2) for x in inputs], 0),
}
