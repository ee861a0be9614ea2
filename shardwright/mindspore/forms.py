"""Methods of tensors that are a formula, or a value of the tensor: a line each."""

from collections.abc import Callable
from typing import Any

from shardwright import ops as own
from shardwright.ir.errors import ModelError
from shardwright.ir.types import TensorType
from shardwright.ir.values import check_choice
from shardwright.mindspore.ops import creation, functional
from shardwright.mindspore.ops.formulas import Formula
from shardwright.tensor import Tensor, apply

_CASTS = {
    "bfloat16": "bfloat16",
    "bool": "bool",
    "byte": "uint8",
    "float": "float32",
    "half": "float16",
    "int": "int32",
    "long": "int64",
    "short": "int16",
}


def _cast(dtype: str) -> Formula:
    return lambda self: self.astype(dtype)


def _new(value: float | None) -> Formula:
    if value is None:
        return lambda self, size, fill_value, *, dtype=None: creation.full(
            size, fill_value, dtype=dtype or self.dtype
        )
    return lambda self, size, *, dtype=None: creation.full(size, value, dtype=dtype or self.dtype)


def _pieces(axis: int) -> Formula:
    return lambda self, indices_or_sections: functional.tensor_split(
        self, indices_or_sections, axis if self.ndim > 1 else 0
    )


def _smallest(self: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """Return the k-th of the elements along a dimension in rising order, and where it is."""
    parts = [functional.narrow(x, dim, k - 1, 1) for x in functional.sort(self, dim)]
    found, place = parts if keepdim else (apply("squeeze", x, axis=dim) for x in parts)
    return found, place.astype("int64")


def _gather(self: Tensor, first: Any, second: Any, *others: Any) -> Tensor:
    """Look up elements by ``(dim, index)``, or slices by ``(index, axis, batch_dims)``."""
    look_up: Callable[..., Tensor] = functional.gather
    if isinstance(first, int):
        look_up = functional.gather_elements
    return look_up(self, first, second, *others)


def _positions(self: Tensor, v: Tensor, side: str = "left") -> Tensor:
    """Return where elements would be put into a sequence that rises."""
    check_choice("side", side, ("left", "right"))
    if self.ndim != 1:
        raise ModelError(f"`searchsorted` is of a sequence, this has the shape {self.shape}")
    values = apply("expand_dims", v, axis=-1)
    before = self < values if side == "left" else self <= values
    return before.astype("int32").sum(-1).astype("int32")


def _repeated(self: Tensor, *repeats: Any) -> Tensor:
    times = repeats[0] if len(repeats) == 1 and not isinstance(repeats[0], int) else repeats
    return functional.tile(self, times)


METHODS: dict[str, Formula] = {name: _cast(dtype) for name, dtype in _CASTS.items()}
METHODS |= {name: lambda self: self for name in ("clone", "contiguous", "copy")}
METHODS |= {name: lambda self: self.ndim for name in ("dim", "ndimension")}
METHODS |= {
    "adjoint": lambda self: self.swapaxes(-1, -2),
    "allclose": lambda self, other, rtol=1e-5, atol=1e-8, equal_nan=False: functional.isclose(
        self, other, rtol, atol, equal_nan
    ).all(),
    "argmax_with_value": lambda self, axis=0, keep_dims=False: own.ArgMaxWithValue(axis, keep_dims)(
        self
    )[::-1],
    "argmin_with_value": lambda self, axis=0, keep_dims=False: own.ArgMinWithValue(axis, keep_dims)(
        self
    )[::-1],
    "bitwise_not": lambda self: functional.invert(self),
    "digamma": lambda self: apply("polygamma", self, order=0),
    "dsplit": _pieces(2),
    "gather": _gather,
    "hsplit": _pieces(1),
    "i0": lambda self: functional.bessel_i0(self),
    "igamma": lambda self, other: functional.igamma(self, other),
    "igammac": lambda self, other: functional.igammac(self, other),
    "invert": lambda self: functional.invert(self),
    "is_complex": lambda self: False,
    "is_contiguous": lambda self: True,
    "is_floating_point": lambda self: self.type.is_float,
    "kthvalue": _smallest,
    "lcm": lambda self, other: functional.abs(self * other) // functional.gcd(self, other),
    "median": lambda self, axis=-1, keepdims=False: _smallest(
        self, (self.shape[axis] + 1) // 2, axis, keepdims
    ),
    "nelement": lambda self: self.size,
    "new_empty": _new(0.0),
    "new_full": _new(None),
    "new_ones": _new(1.0),
    "new_zeros": _new(0.0),
    "numpy": lambda self: self.asnumpy(),
    "ptp": lambda self, axis=None, keepdims=False: (
        functional.amax(self, axis, keepdims) - functional.amin(self, axis, keepdims)
    ),
    "repeat": _repeated,
    "reshape_as": lambda self, other: self.reshape(other.shape),
    "reverse": lambda self, axis: functional.flip(self, axis),
    "scatter": lambda self, dim, index, src: apply(
        "scatter_elements", self, index, src, axis=dim % self.ndim
    ),
    "searchsorted": _positions,
    "select": lambda self, dim, index: apply(
        "squeeze", functional.narrow(self, dim, index % self.shape[dim], 1), axis=dim
    ),
    "to": lambda self, dtype=None, non_blocking=False, copy=False: (
        self if dtype is None else self.astype(dtype)
    ),
    "tolist": lambda self: self.asnumpy().tolist(),
    "type_as": lambda self, other: self.astype(other.dtype),
    "vsplit": _pieces(0),
}
PROPERTIES: dict[str, Formula] = {
    "H": lambda self: self.swapaxes(0, 1),
    "itemsize": lambda self: TensorType(self.dtype, ()).nbytes,
    "mH": lambda self: self.swapaxes(-1, -2),
    "mT": lambda self: self.swapaxes(-1, -2),
    "nbytes": lambda self: self.type.nbytes,
}
