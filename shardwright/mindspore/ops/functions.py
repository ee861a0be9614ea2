"""Functions whose arguments, defaults or results are others in MindSpore than those of ours."""

from collections.abc import Sequence
from math import prod as product
from typing import Any

from shardwright import ops as own
from shardwright.indexing import beside
from shardwright.ir.errors import ModelError
from shardwright.ir.values import check_choice, wrong_value
from shardwright.tensor import Operand, Tensor, apply, apply_all

# Activations


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """Return x times the normal distribution's share below x, exactly or by ``tanh``."""
    check_choice("approximate", approximate, ("none", "tanh"))
    return apply("gelu", input, approximate=approximate == "tanh")


def leaky_relu(input: Tensor, alpha: float = 0.2) -> Tensor:
    """Return the operand, times `alpha` where negative."""
    return apply("leaky_relu", input, slope=float(alpha))


def softplus(input: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    """Return log(1 + exp(beta x)) / beta; the operand itself where beta x exceeds a threshold."""
    smooth = apply("softplus", input * beta) / beta if beta != 1 else apply("softplus", input)
    return apply("where", input * beta > threshold, input, smooth)


def softmax(input: Tensor, axis: int = -1, *, dtype: str | None = None) -> Tensor:
    """Return the shares of exponentials along a dimension, in an element type if one is given."""
    return apply("softmax", input if dtype is None else input.astype(dtype), axis=axis)


def dropout(
    input: Tensor, p: float = 0.5, training: bool = True, seed: int | None = None
) -> Tensor:
    """Set elements to zero with a probability, and scale the rest; in evaluation do nothing."""
    if not training or p == 0:
        return input
    made: Tensor = own.dropout(input, rate=p, **({} if seed is None else {"seed": seed}))
    return made


# Arithmetic


def pow(input: Tensor | float, exponent: Tensor | float) -> Tensor:
    """Return a power; of two tensors, or of one and a number."""
    if isinstance(input, Tensor) and not isinstance(exponent, Tensor):
        return input**exponent
    base = input if isinstance(input, Tensor) else apply("fill", shape=(), value=float(input))
    if isinstance(exponent, Tensor) and not isinstance(input, Tensor):
        exponent = exponent if exponent.type.is_float else exponent.astype("float32")
        base = base.astype(exponent.dtype)
    return apply("power", base, exponent)


def beside_each(operator: str, x: Operand, y: Operand) -> Tensor:
    """Apply an operator of two operands, of which one may be a number: it meets a tensor."""
    first, second = (beside(a, b) if isinstance(a, Tensor) else a for a, b in ((x, y), (y, x)))
    return apply(operator, first, second)


def add(input: Operand, other: Operand) -> Tensor:
    """Add."""
    return beside_each("add", input, other)


def sub(input: Operand, other: Operand) -> Tensor:
    """Subtract."""
    return beside_each("sub", input, other)


def mul(input: Operand, other: Operand) -> Tensor:
    """Multiply."""
    return beside_each("mul", input, other)


def maximum(input: Operand, other: Operand) -> Tensor:
    """Return the greater of two elements."""
    return beside_each("maximum", input, other)


def minimum(input: Operand, other: Operand) -> Tensor:
    """Return the lesser of two elements."""
    return beside_each("minimum", input, other)


def sqrt(x: Tensor) -> Tensor:
    """Return the square root; of whole numbers in float32."""
    return apply("sqrt", real(x))


def reciprocal(input: Tensor) -> Tensor:
    """Return one divided by each element; of whole numbers in float32."""
    return apply("reciprocal", real(input))


def div(input: Operand, other: Operand, *, rounding_mode: str | None = None) -> Tensor:
    """Divide, and round if asked: ``floor`` or ``trunc``."""
    if rounding_mode is None:
        return beside_each("div", real(input), real(other))
    made: Tensor = own.DivMod()(input, other, rounding_mode)
    return made


def polygamma(n: Tensor | int, input: Tensor) -> Tensor:
    """Return a derivative of the logarithm of the gamma function: the first for 0."""
    order = int(n.item()) if isinstance(n, Tensor) else n
    return apply("polygamma", input, order=order)


def isclose(
    input: Tensor,
    other: Tensor,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    equal_nan: bool = False,
) -> Tensor:
    """Return where abs(x - y) is at most ``atol + rtol abs(y)``."""
    bound = apply("abs", other) * rtol + atol
    near = apply("less_equal", apply("abs", input - other), bound)
    same = apply("equal", input, other)  # infinities
    finite = apply("is_finite", other)
    found = apply("logical_or", apply("logical_and", near, finite), same)
    if not equal_nan:
        return found
    both = apply("logical_and", apply("is_nan", input), apply("is_nan", other))
    return apply("logical_or", found, both)


def clip(
    input: Tensor, min: Tensor | float | None = None, max: Tensor | float | None = None
) -> Tensor:
    """Return the operand within bounds, of which one may be left out."""
    for bound, kind in ((min, "maximum"), (max, "minimum")):
        if bound is not None:
            input = beside_each(kind, input, bound)
    return input


def where(condition: Tensor, input: Operand, other: Operand) -> Tensor:
    """Return elements of the first where a condition holds, of the other elsewhere."""
    known = next((item for item in (input, other) if isinstance(item, Tensor)), None)
    dtype = "float32" if known is None else known.dtype
    both = (item if isinstance(item, Tensor) else Tensor(item, dtype) for item in (input, other))
    return apply("where", condition, *both)


def matmul(input: Tensor, other: Tensor) -> Tensor:
    """Return the product of matrices, or of vectors, whose dimension goes."""
    first = apply("expand_dims", input, axis=0) if input.ndim == 1 else input
    second = apply("expand_dims", other, axis=1) if other.ndim == 1 else other
    made: Tensor = own.matmul(first, second)
    made = apply("squeeze", made, axis=-1) if other.ndim == 1 else made
    return apply("squeeze", made, axis=-2 if other.ndim > 1 else -1) if input.ndim == 1 else made


def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """Return the products of all pairs of elements of two vectors."""
    return apply("expand_dims", input, axis=1) * vec2


def tensor_dot(
    x1: Tensor, x2: Tensor, axes: int | Sequence[int] | Sequence[Sequence[int]]
) -> Tensor:
    """Multiply, and add up over dimensions: so many last and first ones, or those that are named.

    Raises
    ------
    ModelError
        If different numbers of dimensions are named.
    """
    if isinstance(axes, int):
        pair: tuple[Any, Any] = tuple(range(x1.ndim - axes, x1.ndim)), tuple(range(axes))
    else:
        pair = tuple((a,) if isinstance(a, int) else tuple(a) for a in axes)  # type: ignore[assignment]
    first = [d % x1.ndim for d in pair[0]]
    second = [d % x2.ndim for d in pair[1]]
    if len(first) != len(second):
        raise ModelError(f"`tensor_dot` adds up over {axes}, expected as many dimensions of both")
    left = [d for d in range(x1.ndim) if d not in first]
    right = [d for d in range(x2.ndim) if d not in second]
    size = product(x1.shape[d] for d in first)
    a = x1.transpose(*left, *first).reshape((-1, size))
    b = x2.transpose(*second, *right).reshape((size, -1))
    shape = (*(x1.shape[d] for d in left), *(x2.shape[d] for d in right))
    return apply("matmul", a, b).reshape(shape)


def real(item: Any) -> Any:
    """Return an operand of a quotient: whole numbers are divided in float32."""
    return item.astype("float32") if isinstance(item, Tensor) and not item.type.is_float else item


# Shapes


def flatten(input: Tensor, order: str = "C", *, start_dim: int = 1, end_dim: int = -1) -> Tensor:
    """Return the tensor with some dimensions in a row as one."""
    check_choice("order", order, ("C",))
    if not input.ndim:
        return input.reshape((1,))
    first, last = start_dim % input.ndim, end_dim % input.ndim
    if input.ndim == 1 and start_dim == 1:
        return input
    size = product(input.shape[first : last + 1])
    return input.reshape((*input.shape[:first], size, *input.shape[last + 1 :]))


def split(
    tensor: Tensor, split_size_or_sections: int | Sequence[int], axis: int = 0
) -> tuple[Tensor, ...]:
    """Return parts of a size, the last of which may be smaller, or of several sizes."""
    each = split_size_or_sections
    kind = own.SplitTensor if isinstance(each, int) else own.SplitWithSize
    made: tuple[Tensor, ...] = kind()(tensor, each, axis)
    return made


def tile(input: Tensor, dims: Sequence[int]) -> Tensor:
    """Repeat a tensor along its dimensions, before which there may be further ones."""
    sizes = (1,) * (len(dims) - input.ndim) + input.shape
    return apply("tile", input.reshape(sizes), multiples=tuple(dims))


def pad(
    input_x: Tensor, padding: Sequence[int], mode: str = "constant", value: float | None = None
) -> Tensor:
    """Pad dimensions, the last one first: ``(before, after, before of the one before, ...)``.

    Raises
    ------
    ModelError
        If there is not a pair for each of some last dimensions.
    """
    check_choice("mode", mode, ("constant", "reflect", "replicate", "circular"))
    if len(padding) % 2 or len(padding) > 2 * input_x.ndim:
        raise ModelError(
            f"`padding` is {tuple(padding)} of a tensor of {input_x.ndim} dimensions, expected two "
            f"numbers for each of the last ones"
        )
    pairs = [(0, 0)] * (input_x.ndim - len(padding) // 2)
    pairs += list(zip(padding[::2], padding[1::2], strict=True))[::-1]
    if mode == "constant":
        before, after = zip(*pairs, strict=True)
        filled = 0.0 if value is None else float(value)
        return apply("pad", input_x, before=before, after=after, value=filled)
    for axis, (first, last) in enumerate(pairs):
        if first or last:
            places = Tensor(_places(mode, input_x.shape[axis], first, last), "int32")
            input_x = apply("gather", input_x, places, axis=axis)
    return input_x


def _places(mode: str, size: int, before: int, after: int) -> list[int]:
    """Return which element of a dimension each of the padded one repeats."""
    every = range(-before, size + after)
    if mode == "circular":
        return [i % size for i in every]
    if mode == "replicate":
        return [sorted((0, i, size - 1))[1] for i in every]
    return [size - 1 - abs(size - 1 - abs(i)) for i in every]


def one_hot(
    indices: Tensor,
    depth: int,
    on_value: Tensor | float = 1,
    off_value: Tensor | float = 0,
    axis: int = -1,
) -> Tensor:
    """Return for each index a vector of one value at it and another one elsewhere."""
    values = (on_value, off_value)
    dtype = next((item.dtype for item in values if isinstance(item, Tensor)), None)
    if dtype is None:
        dtype = "float32" if any(isinstance(item, float) for item in values) else "int64"
    on, off = (item.item() if isinstance(item, Tensor) else item for item in values)
    made: Tensor = own.OneHot(axis)(indices, depth, float(on), float(off))
    return made.astype(dtype)


def gather(input_params: Tensor, input_indices: Tensor, axis: int, batch_dims: int = 0) -> Tensor:
    """Look up slices along a dimension, by index; in each of some first dimensions apart.

    Negative positions count from the end.
    """
    input_indices = from_begin(input_indices, input_params.shape[axis])
    if not batch_dims:
        return apply("gather", input_params, input_indices, axis=axis)
    axis %= input_params.ndim
    shape, first = input_params.shape, input_params.shape[:batch_dims]
    rest = shape[axis + 1 :]
    rows = input_params.transpose(
        *range(batch_dims), axis, *range(batch_dims, axis), *range(axis + 1, len(shape))
    ).reshape((product(first) * shape[axis], *shape[batch_dims:axis], *rest))
    begin = [i * shape[axis] for i in range(product(first))]
    ones = (1,) * (input_indices.ndim - batch_dims)
    begins = Tensor(begin, input_indices.dtype).reshape((*first, *ones))
    found = apply("gather", rows, input_indices + begins, axis=0)
    inner, between = input_indices.ndim, axis - batch_dims
    order = (
        *range(batch_dims),
        *range(inner, inner + between),
        *range(batch_dims, inner),
        *range(inner + between, found.ndim),
    )
    return found.transpose(*order)


def from_begin(index: Tensor, size: int) -> Tensor:
    """Return positions that count from the begin of a dimension: negative ones from its end.

    Raises
    ------
    ModelError
        If they are known, and one is outside; one that is computed in a program reads zeros.
    """
    if index.array is not None and not index.is_parameter:
        _check_inside(index.array[..., None], (size,), -size)
        if (index.array >= 0).all():
            return index
    return apply("where", index < 0, index + size, index)


def _check_inside(known: Any, sizes: Sequence[int], least: int) -> None:
    outside = known[((known < least) | (known >= sizes)).any(-1)] if known.size else known
    if outside.size:
        raise ModelError(
            f"the position {outside[0].tolist()} is outside a tensor of the shape {tuple(sizes)}",
            hint="positions count from 0",
        )


def gather_nd(input_x: Tensor, indices: Tensor) -> Tensor:
    """Look up slices at tuples of positions; see `from_begin` for those outside.

    Raises
    ------
    ModelError
        If they are known, and one is outside or negative.
    """
    if indices.array is not None and not indices.is_parameter:
        _check_inside(indices.array, input_x.shape[: indices.shape[-1]], 0)
    return apply("gather_nd", input_x, indices)


def gather_elements(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """Look up elements along a dimension; negative positions count from the end."""
    found = from_begin(index, input.shape[dim])
    return apply("gather_elements", input, found, axis=dim)


def gather_d(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Look up elements along a dimension; negative positions count from the end."""
    return gather_elements(x, dim, index)


def svd(
    input: Tensor, full_matrices: bool = False, compute_uv: bool = True
) -> Tensor | tuple[Tensor, Tensor, Tensor]:
    """Return the singular values, and the left and right singular vectors, as columns."""
    if full_matrices is not False:
        raise wrong_value("full_matrices", full_matrices, "False")
    u, s, vh = apply_all("svd", input)
    return (s, u, vh.swapaxes(-2, -1)) if compute_uv else s


def fill(type: str, shape: Sequence[int], value: float) -> Tensor:
    """Return a tensor of a type and a shape that holds one number."""
    return apply("fill", shape=tuple(shape), value=float(value), dtype=type)


def ones_like(input: Tensor, *, dtype: str | None = None) -> Tensor:
    """Return ones in the shape of a tensor, and in its type unless one is given."""
    made = apply("ones_like", input)
    return made if dtype is None else made.astype(dtype)


def zeros_like(input: Tensor, *, dtype: str | None = None) -> Tensor:
    """Return zeros in the shape of a tensor, and in its type unless one is given."""
    made = apply("zeros_like", input)
    return made if dtype is None else made.astype(dtype)


__all__ = [
    "add",
    "clip",
    "div",
    "dropout",
    "fill",
    "flatten",
    "gather",
    "gather_d",
    "gather_elements",
    "gather_nd",
    "gelu",
    "isclose",
    "leaky_relu",
    "matmul",
    "maximum",
    "minimum",
    "mul",
    "one_hot",
    "ones_like",
    "outer",
    "pad",
    "polygamma",
    "pow",
    "reciprocal",
    "softmax",
    "softplus",
    "split",
    "sqrt",
    "sub",
    "svd",
    "tensor_dot",
    "tile",
    "where",
    "zeros_like",
]
