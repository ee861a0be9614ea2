"""Tensor types: an element type, a shape, and which entries are filled."""

from dataclasses import dataclass, field
from math import prod
from typing import Final

import ml_dtypes
import numpy as np

from shardwright.ir.errors import IRError

# Element types with their short spelling in text and their size in bytes.
_DTYPES = {
    "float64": ("f64", 8),
    "float32": ("f32", 4),
    "float16": ("f16", 2),
    "bfloat16": ("bf16", 2),
    "int64": ("i64", 8),
    "int32": ("i32", 4),
    "int16": ("i16", 2),
    "int8": ("i8", 1),
    "uint64": ("u64", 8),
    "uint32": ("u32", 4),
    "uint16": ("u16", 2),
    "uint8": ("u8", 1),
    "bool": ("bool", 1),
}
DTYPES = tuple(_DTYPES)
TF32: Final = "tf32"
"""The type of factors with 10 bits of fraction, and their rate in the file of a device."""
_MOST_BYTES = 2**63 - 1  # the largest size in memory
_FROM_SHORT = {short: name for name, (short, _) in _DTYPES.items()}


@dataclass(frozen=True)
class Ragged:
    """Which entries of a tensor are filled: a few along one dimension, for each index of others.

    A tensor ``[expert, token, feature]`` behind a `dispatch` has an entry for every expert and
    token. The entries of experts that a token did not choose are read by nothing, so devices
    neither compute nor hold them. The shape of the tensor bounds what may be filled, and
    `expected` counts what is, on the rank that has most.

    Parameters
    ----------
    dimension : int
        The dimension of which few entries are filled: the experts.
    rows : tuple of int
        The dimensions, for each index of which so few are: the tokens.
    filled : int
        How many entries are filled for each row, at most.
    imbalance : float
        Rows of the rank that has most over their mean, where ranks divide the dimension; at
        twice its value the busiest rank computes twice as many rows.
    parts : tuple of (int, int)
        In how many of how many equal parts of the dimension the entries of a row are: ``(4, 8)``
        for a router that first chooses 4 of 8 groups of experts. Priced, and changes no value.

    Raises
    ------
    IRError
        If a number is out of range.
    """

    dimension: int
    rows: tuple[int, ...]
    filled: int
    imbalance: float = 1.0
    parts: tuple[int, int] = (1, 1)

    def __post_init__(self) -> None:
        if self.filled < 1:
            raise IRError(f"{self.filled} entries are filled for each row, expected at least 1")
        if not self.imbalance >= 1.0:
            raise IRError(f"the imbalance is {self.imbalance}, expected a number of at least 1")
        if not 1 <= self.parts[0] <= self.parts[1]:
            few, all_of_them = self.parts
            raise IRError(f"the entries of a row are in {few} of {all_of_them} parts")

    def expected(self, size: int, local: int) -> float:
        """Return how many of `local` entries, of `size` in all, are filled for each row.

        For a row of the rank that has most: ``filled local / size imbalance``, at most all.
        """
        share = self.filled * local / size
        return min(share * (self.imbalance if local < size else 1.0), self.bound(local))

    def bound(self, local: int) -> float:
        """Return how many of `local` entries may be filled for each row."""
        return min(self.filled, local)

    def within(self, shape: tuple[int, ...]) -> "Ragged | None":
        """Return what is filled of a slice; None where all of it may be."""
        local = shape[self.dimension]
        return None if local <= self.filled else self

    def size_text(self, dimension: int, size: int) -> str:
        """Return the text of a size: ``2/8`` or ``2/8*1.5 in 2/4`` of the few, ``16~`` of rows."""
        if dimension == self.dimension:
            imbalance = "" if self.imbalance == 1.0 else f"*{self.imbalance!r}"
            parts = "" if self.parts == (1, 1) else " in {}/{}".format(*self.parts)
            return f"{self.filled}/{size}{imbalance}{parts}"
        return f"{size}~" if dimension in self.rows else f"{size}"


@dataclass(frozen=True, slots=True)
class TensorType:
    """The type of a whole (unsharded) tensor.

    Parameters
    ----------
    dtype : str
        One of ``DTYPES``.
    shape : tuple of int
        Sizes of the dimensions; ``()`` is a scalar.
    in_host : bool
        Whether the tensor is in host memory; by default it is in the memory of the devices.
    ragged : Ragged, optional
        Which entries are filled, where not all are.

    Examples
    --------
    >>> str(TensorType("float32", (2, 3))), str(TensorType("float32", (2, 3), in_host=True))
    ('f32[2, 3]', 'f32[2, 3] in host')
    >>> str(TensorType("float32", (8, 16, 4), ragged=Ragged(0, (1,), 2)))
    'f32[2/8, 16~, 4]'
    """

    dtype: str
    shape: tuple[int, ...]
    in_host: bool = False
    ragged: Ragged | None = None
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check()
        # Types are hashed often, as layouts are.
        object.__setattr__(self, "_hash", hash((self.dtype, self.shape, self.in_host, self.ragged)))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        # Equal ones are often the same object; the generated method would make two tuples.
        if self is other:
            return True
        if not isinstance(other, TensorType):
            return NotImplemented
        return (
            self.dtype == other.dtype
            and self.shape == other.shape
            and self.in_host == other.in_host
            and self.ragged == other.ragged
        )

    def __reduce__(self) -> tuple[type["TensorType"], tuple[object, ...]]:
        return TensorType, (self.dtype, self.shape, self.in_host, self.ragged)  # hashes anew

    def _check(self) -> None:
        if not isinstance(self.dtype, str) or self.dtype not in _DTYPES:
            raise IRError(f"no element type is called `{self.dtype}`", hint=f"use one of {DTYPES}")
        if not isinstance(self.shape, tuple):
            raise IRError(f"a tensor has the shape {self.shape}, expected a tuple of integers")
        if not isinstance(self.in_host, bool):
            raise IRError(f"`in_host` of a tensor is {self.in_host}, expected True or False")
        if not isinstance(self.ragged, Ragged | None):
            raise IRError(f"`ragged` of a tensor is {self.ragged}, expected a Ragged or None")
        if not all(isinstance(size, int | np.integer) for size in self.shape):
            raise IRError(f"a tensor has the shape {self.shape}, every size must be an integer")
        if any(size < 1 for size in self.shape):
            raise IRError(f"a tensor has the shape {self.shape}, every size must be at least 1")
        if self.nbytes > _MOST_BYTES:
            raise IRError(
                f"a tensor of shape {self.shape} has {self.nbytes} bytes, expected at most 2^63 - 1"
            )

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of the whole tensor in bytes."""
        return self.elements * _DTYPES[self.dtype][1]

    @property
    def is_float(self) -> bool:
        """Whether the elements are floating-point numbers, which have gradients."""
        return "float" in self.dtype

    @property
    def memory_text(self) -> str:
        """The text of the memory, after a layout: `` in host``; empty for that of the devices."""
        return " in host" if self.in_host else ""

    @property
    def dense(self) -> "TensorType":
        """The type with all entries filled."""
        return TensorType(self.dtype, self.shape, self.in_host) if self.ragged else self

    def with_shape(self, shape: tuple[int, ...]) -> "TensorType":
        """Return the type with another shape; of as many dimensions, with the same ones ragged."""
        ragged = self.ragged
        if ragged is not None:
            ragged = ragged.within(shape) if len(shape) == self.rank else None
        return TensorType(self.dtype, shape, ragged=ragged)

    @property
    def size_texts(self) -> tuple[str, ...]:
        """The text of every size; see `Ragged.size_text`."""
        if self.ragged is None:
            return tuple(map(str, self.shape))
        return tuple(map(self.ragged.size_text, range(self.rank), self.shape))

    def filled_elements(self, slice_shape: tuple[int, ...]) -> float:
        """Return how many elements of the largest slice are filled, of a slice of some shape."""
        if self.ragged is None:
            return prod(slice_shape)
        at = self.ragged.dimension
        filled = self.ragged.expected(self.shape[at], slice_shape[at])
        return prod(slice_shape) / slice_shape[at] * filled

    def __str__(self) -> str:
        return f"{short_dtype(self.dtype)}[{', '.join(self.size_texts)}]{self.memory_text}"


def item_bytes(dtype: str) -> int:
    """Return the size of one element in bytes."""
    return _DTYPES[dtype][1]


def short_dtype(dtype: str) -> str:
    """Return the spelling of an element type in text: ``f32`` for ``float32``."""
    return _DTYPES[dtype][0]


def dtype_from_short(short: str) -> str:
    """Return the element type with the short spelling `short`.

    Raises
    ------
    IRError
        If there is none.
    """
    if short not in _FROM_SHORT:
        raise IRError(f"no element type is spelled `{short}`", hint=f"use {tuple(_FROM_SHORT)}")
    return _FROM_SHORT[short]


def numpy_dtype(dtype: str, float_dtype: str | None = None) -> np.dtype:
    """Return the numpy element type that holds `dtype`.

    Numpy has no bfloat16; `ml_dtypes` adds it. With `float_dtype`, every floating-point type is
    stored as that type: plans are verified in float64.
    """
    if "float" in dtype and float_dtype is not None:
        return np.dtype(float_dtype)
    return np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)


def is_low(dtype: "np.dtype[np.generic]") -> bool:
    """Return whether numpy elements are floating-point numbers of 16 bits."""
    return dtype == np.float16 or dtype == ml_dtypes.bfloat16


def is_real(dtype: "np.dtype[np.generic]") -> bool:
    """Return whether numpy elements are floating-point numbers, bfloat16 among them."""
    return bool(np.issubdtype(dtype, np.floating)) or dtype == ml_dtypes.bfloat16


def unit_roundoff(dtype: "np.dtype[np.generic]") -> float:
    """Return the largest relative error of rounding a number to numpy elements of a type."""
    if dtype == ml_dtypes.bfloat16:  # a fraction of 7 bits; `numpy.finfo` does not know it
        return 2.0**-8
    return float(np.finfo(dtype.name).eps) / 2
