"""Tensors of a model definition: symbols whose operators the tracer records.

A tensor is a symbol of the program being traced, a parameter, or a constant array of the model. All
have a type; the current tracer records the operators on them.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Union

import numpy as np
from numpy.typing import ArrayLike

from shardwright.eager import values_of
from shardwright.extremes import extremes, position, reduction
from shardwright.indexing import Item, beside, common_type, indexed, place_of, size_of
from shardwright.ir.attributes import Attribute
from shardwright.ir.errors import ModelError
from shardwright.ir.graph import Value
from shardwright.ir.types import DTYPES, TensorType, numpy_dtype
from shardwright.operators.info import Array
from shardwright.tracer import Tracer, current_tracer, is_tracing

Operand = Union["Tensor", float, int, bool, Array]
Axis = int | tuple[int, ...] | None


class Tensor:
    """A tensor with data: a constant of the network that uses it.

    Parameters
    ----------
    input_data : array_like
        The elements.
    dtype : str, optional
        Element type; that of the data unless given. Numbers of Python are float32 or int64.
    shape, init : optional
        In place of data: the sizes of an input, None for any; or of a parameter, and how it begins.

    Examples
    --------
    >>> Tensor([[1, 2]], "float32").shape
    (1, 2)
    """

    is_parameter: ClassVar[bool] = False
    sizes: "tuple[Any, ...] | None" = None  # of a type that describes an input
    init: Any = None  # how a parameter begins that is made of it

    def __init__(
        self,
        input_data: "ArrayLike | Tensor | None" = None,
        dtype: str | None = None,
        *,
        shape: "tuple[Any, ...] | list[Any] | None" = None,
        init: Any = None,
    ) -> None:
        data, self.sizes = input_data, None if shape is None else tuple(shape)
        if data is None or self.sizes is not None or init is not None:
            self._describe(data, dtype, init)
            return
        array = data.asnumpy() if isinstance(data, Tensor) else np.asarray(data)
        if dtype is None:
            numbers = not hasattr(data, "dtype") and array.dtype == np.float64
            dtype = "float32" if numbers else array.dtype.name
        if dtype not in DTYPES:
            raise ModelError(f"a tensor has the element type `{dtype}`, expected one of {DTYPES}")
        self.type = TensorType(dtype, array.shape)
        self.array: Array | None = array.astype(numpy_dtype(dtype))

    def _describe(self, data: object, dtype: str | None, init: Any) -> None:
        """Be a type without data.

        Raises
        ------
        ModelError
            If there are data and a shape, neither, or no element type.
        """
        if data is not None or self.sizes is None or dtype is None:
            raise ModelError(
                "a tensor has data; or a shape and an element type, to describe an input",
                hint="write `Tensor(data)`, or `Tensor(shape=[None, 8], dtype=float32)`",
            )
        sizes = (1,) * len(self.sizes) if init is None else self.sizes
        self.type, self.array, self.init = TensorType(dtype, sizes), None, init

    def check(self, found: Any) -> None:
        """Refuse a tensor of other sizes or of another type than this one describes.

        Raises
        ------
        ModelError
            If it is one.
        """
        sizes = self.shape if self.sizes is None else self.sizes
        fits = isinstance(found, Tensor) and found.dtype == self.dtype
        known: dict[int, int] = {}
        for size, n in zip(sizes, found.shape, strict=False) if fits else ():
            fits = fits and (size is None or size == n)
            fits = fits and (isinstance(size, int) or known.setdefault(id(size), n) == n)
        if not fits or len(sizes) != found.ndim:
            raise ModelError(
                f"an input is {found!r}, `set_inputs` said {self.dtype} of the shape {list(sizes)}"
            )

    def read(self, tracer: Tracer) -> Value:
        """Return the tensor in the graph being traced, as operators read it."""
        return self.value(tracer)

    @property
    def has_value(self) -> bool:
        """Whether its elements are known."""
        return self.array is not None

    # Its type

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions."""
        return self.type.shape

    @property
    def dtype(self) -> str:
        """Element type."""
        return self.type.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self.type.rank

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.type.elements

    def asnumpy(self) -> Array:
        """Return the data.

        Raises
        ------
        ModelError
            If the tensor is a symbol and has none.
        """
        if self.array is None:
            raise ModelError(
                f"the elements of a tensor of type {self.type} are needed while it is traced",
                hint="a network may depend on shapes, it may not depend on values",
            )
        return self.array

    def value(self, tracer: Tracer | None = None) -> Any:
        """Return the value of the tensor in the graph being traced; without a graph, itself."""
        known = Value("constant", self.type)
        return self if tracer is None else tracer.constant(self, self.asnumpy(), known)

    # Arithmetic

    def __add__(self, other: Operand) -> "Tensor":
        if isinstance(other, (int, float)):
            own = beside(self, other)
            return apply("add_scalar", own, value=other) if other else own
        return apply("add", self, other)

    __radd__ = __add__

    def __sub__(self, other: Operand) -> "Tensor":
        return self + -other if isinstance(other, (int, float)) else apply("sub", self, other)

    def __rsub__(self, other: Operand) -> "Tensor":
        return -self + other if isinstance(other, (int, float)) else apply("sub", other, self)

    def __mul__(self, other: Operand) -> "Tensor":
        own = beside(self, other)
        if isinstance(other, (int, float)) and own.type.is_float:
            return apply("scale", own, factor=float(other))
        return apply("mul", own, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Operand) -> "Tensor":
        own = beside(self, other, divides=True)
        if isinstance(other, (int, float)) and own.type.is_float:
            return apply("scale", own, factor=1.0 / other)
        return apply("div", own, other)

    def __rtruediv__(self, other: Operand) -> "Tensor":
        return apply("div", other, beside(self, other, divides=True))

    def __neg__(self) -> "Tensor":
        return apply("neg", self)

    def __floordiv__(self, other: Operand) -> "Tensor":
        return apply("floor_div", beside(self, other), other)

    def __mod__(self, other: Operand) -> "Tensor":
        return apply("mod", beside(self, other), other)

    def __pow__(self, exponent: "Tensor | float") -> "Tensor":
        if isinstance(exponent, Tensor):
            return apply("power", self, exponent)
        if isinstance(exponent, int) and exponent >= 0 and not self.type.is_float:
            return apply("power", beside(self, exponent), exponent)
        return apply("pow", beside(self, float(exponent)), exponent=float(exponent))

    def __matmul__(self, other: "Tensor") -> "Tensor":
        return apply("matmul", self, other)

    # Comparison

    def __eq__(self, other: object) -> "Tensor":  # type: ignore[override]
        return _compared("equal", self, _operand(other))

    def __ne__(self, other: object) -> "Tensor":  # type: ignore[override]
        return _compared("not_equal", self, _operand(other))

    def __lt__(self, other: "Tensor | float") -> "Tensor":
        return _compared("less", self, other)

    def __le__(self, other: "Tensor | float") -> "Tensor":
        return _compared("less_equal", self, other)

    def __gt__(self, other: "Tensor | float") -> "Tensor":
        return _compared("greater", self, other)

    def __ge__(self, other: "Tensor | float") -> "Tensor":
        return _compared("greater_equal", self, other)

    def __and__(self, other: Operand) -> "Tensor":
        return _combined("and", self, other)

    def __or__(self, other: Operand) -> "Tensor":
        return _combined("or", self, other)

    def __xor__(self, other: Operand) -> "Tensor":
        return _combined("xor", self, other)

    def __invert__(self) -> "Tensor":
        return apply("logical_not" if self.dtype == "bool" else "invert", self)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__
    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        return bool(self.asnumpy())

    def item(self) -> Any:
        """Return the element of a tensor of one element, as a number of Python."""
        return self.asnumpy().item()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    # Shape

    def reshape(self, *shape: int | tuple[int, ...]) -> "Tensor":
        """Return the elements in another shape; one size may be -1 and follows from the rest."""
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        return apply("reshape", self, shape=tuple(map(size_of, sizes)))

    view = reshape

    def flatten(self) -> "Tensor":
        """Return the elements in one dimension."""
        return self.reshape(-1)

    def transpose(self, *axes: int | tuple[int, ...]) -> "Tensor":
        """Return the tensor with its dimensions in another order; reversed without arguments."""
        order = axes[0] if len(axes) == 1 and isinstance(axes[0], tuple) else axes
        wanted = tuple(place_of(axis, self.ndim) for axis in order)
        return apply("transpose", self, permutation=wanted or tuple(reversed(range(self.ndim))))

    permute = transpose

    def squeeze(self, axis: "int | tuple[int, ...] | None" = None) -> "Tensor":
        """Return the tensor without dimensions of size one: those that are named, or all."""
        return apply("squeeze", self, axis=axis)

    def swapaxes(self, first: int, second: int) -> "Tensor":
        """Return the tensor with two dimensions exchanged."""
        order = list(range(self.ndim))
        one, other = place_of(first, self.ndim), place_of(second, self.ndim)
        order[one], order[other] = other, one
        return self.transpose(tuple(order))

    @property
    def T(self) -> "Tensor":  # noqa: N802
        """The tensor with its dimensions reversed."""
        return self.transpose()

    def astype(self, dtype: str) -> "Tensor":
        """Return the elements as another type."""
        return apply("cast", self, dtype=dtype)

    def of_real_type(self, dtype: str) -> "Tensor":
        """Return real numbers as another type of those; others, and the same, as they are."""
        are_real = self.type.is_float and "float" in dtype
        return self.astype(dtype) if are_real and self.dtype != dtype else self

    def __len__(self) -> int:
        if not self.shape:
            raise ModelError("a scalar has no length")
        return self.shape[0]

    def __getitem__(self, items: Item | tuple[Item, ...]) -> "Tensor":
        return indexed(self, items if isinstance(items, tuple) else (items,), apply)

    def __iter__(self) -> object:
        return (self[i] for i in range(len(self)))

    # Reductions

    def sum(self, axis: Axis = None, keep_dims: bool = False, **how: Any) -> "Tensor":
        """Return the sum over the dimensions `axis` (None: all); see `reduction` for `how`."""
        return reduction("reduce_sum", self, axis, keep_dims, apply, **how)

    def mean(self, axis: Axis = None, keep_dims: bool = False, **how: Any) -> "Tensor":
        """Return the mean over the dimensions `axis` (None: all); see `reduction` for `how`."""
        return reduction("reduce_mean", self, axis, keep_dims, apply, **how)

    def max(self, *dim: Any, **how: Any) -> Any:
        """Return the greatest elements, and for `max(1)` or `max(dim=1)` their positions, too."""
        return extremes("max", self, dim, how, apply)

    def min(self, *dim: Any, **how: Any) -> Any:
        """Return the least elements, and for `min(1)` or `min(dim=1)` their positions, too."""
        return extremes("min", self, dim, how, apply)

    def argmax(self, *axis: Any, **how: Any) -> "Tensor":
        """Return the position of the greatest element along an axis, or among all elements."""
        return position("max", self, axis, how, apply)

    def argmin(self, *axis: Any, **how: Any) -> "Tensor":
        """Return the position of the least element along an axis, or among all, as int32."""
        return position("min", self, axis, how, apply).astype("int32")

    def __repr__(self) -> str:
        return f"Tensor({self.type})"

    def __str__(self) -> str:
        return repr(self) if self.array is None else str(self.array)


class TracedTensor(Tensor):
    """A symbol: a value of the program being traced."""

    def __init__(self, value: Value) -> None:
        self.type = value.type
        self.array = None
        self._value = value

    def value(self, tracer: Tracer | None = None) -> Any:
        """Return the value; without a graph, itself."""
        return self if tracer is None else self._value

    def __repr__(self) -> str:
        return f"Tensor({self._value.name}: {self.type})"


# Recording


def apply(operator: str, *operands: Operand, **attributes: Attribute) -> Tensor:
    """Record an operator with one result and return it; see `apply_all`."""
    return apply_all(operator, *operands, **attributes)[0]


def _compared(operator: str, first: Tensor, second: Operand) -> Tensor:
    """Apply a comparison."""
    return apply(operator, beside(first, second), second)


def _combined(how: str, first: Tensor, second: Operand) -> Tensor:
    """Combine truth values, or the bits of whole numbers."""
    other = Tensor(second, first.dtype) if isinstance(second, int) else second
    return apply(f"{'logical' if first.dtype == 'bool' else 'bitwise'}_{how}", first, other)


def apply_all(operator: str, *operands: Operand, **attributes: Attribute) -> tuple[Tensor, ...]:
    """Record an operator and return its results; outside of a trace, compute them.

    Parameters
    ----------
    operator : str
        Name of the operator in the registry.
    *operands : Tensor, number or array
        What it reads; numbers take the element type of the first tensor.
    **attributes
        Attributes of the operator.

    Raises
    ------
    IRError
        If the operands do not fit the operator or each other.
    """
    if not is_tracing():
        made = computed(Tracer(1, {}, {}), lambda: apply_all(operator, *operands, **attributes), {})
        return tuple(made)
    tracer = current_tracer()
    if operator in _MEETING:
        read = (_read(operand, tracer) for operand in operands)
        operands = _met(tuple(read))
    tensors = [operand for operand in operands if isinstance(operand, Tensor)]
    dtype = tensors[0].dtype if tensors else "float32"
    values = [_value(operand, tracer, dtype) for operand in operands]
    results = tracer.emit_all(operator, *values, name=None, like=None, **attributes)
    return tuple(TracedTensor(value) for value in results)


_MEETING = (
    "add",
    "sub",
    "mul",
    "div",
    "maximum",
    "minimum",
    "equal",
    "not_equal",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
)


def _read(operand: Operand, tracer: Tracer) -> Operand:
    """Return a tensor as it is read here: a parameter may be in another element type."""
    return TracedTensor(_value(operand, tracer, "")) if isinstance(operand, Tensor) else operand


def _met(operands: tuple[Operand, ...]) -> tuple[Operand, ...]:
    """Return operands whose tensors have one element type."""
    common = common_type({item.dtype for item in operands if isinstance(item, Tensor)})
    if common is None:
        return operands
    return tuple(
        item.astype(common) if isinstance(item, Tensor) and item.dtype != common else item
        for item in operands
    )


def computed(tracer: Tracer, make: Callable[[], Any], parameters: Mapping[str, Tensor]) -> Any:
    """Return what a function makes of tensors, with their values.

    Parameters
    ----------
    tracer : Tracer
        A new tracer.
    make : callable
        Applies operators and cells, and returns tensors, in tuples, lists or mappings.
    parameters : mapping of str to Tensor
        The parameters that it may use, by name.
    """
    with tracer.tracing():
        made = make()
        outputs = [tensor.value(tracer) for tensor in tensors_in(made)]
    declared = {parameter.name for parameter in tracer.parameters}
    known = {n: p.asnumpy() for n, p in parameters.items() if n in declared and p.has_value}
    arrays = iter(values_of(tracer, outputs, known))
    return with_arrays(made, arrays)


def tensors_in(made: Any) -> Iterator[Tensor]:
    """Yield the tensors in what a function makes: in tuples, lists or mappings."""
    if isinstance(made, Tensor):
        yield made
    elif isinstance(made, tuple | list | dict):
        for item in made.values() if isinstance(made, dict) else made:
            yield from tensors_in(item)


def with_arrays(made: Any, arrays: Iterator[Array]) -> Any:
    """Return the structure with the next arrays as its tensors."""
    if isinstance(made, Tensor):
        return Tensor(next(arrays), made.dtype)
    if isinstance(made, dict):
        return {name: with_arrays(item, arrays) for name, item in made.items()}
    if isinstance(made, tuple | list):
        return type(made)([with_arrays(item, arrays) for item in made])
    return made


def _value(operand: Operand, tracer: Tracer, dtype: str) -> Value:
    if isinstance(operand, Tensor):
        return (
            tracer.as_read(operand.read(tracer)) if operand.is_parameter else operand.read(tracer)
        )
    if isinstance(operand, (int, float)):
        return tracer.emit("fill", shape=(), value=float(operand), dtype=dtype)
    return Tensor(operand).value(tracer)


def _operand(item: object) -> Operand:
    if isinstance(item, (Tensor, int, float, np.ndarray)):
        return item
    raise ModelError(f"a tensor is compared with {item!r}, expected a tensor or a number")
