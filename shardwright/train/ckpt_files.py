"""MindSpore's checkpoint files: messages of protobuf, one behind the other, of a tensor each.

The messages, of MindSpore's ``checkpoint.proto``::

    message Checkpoint { repeated Value value = 1; }
    message Value { required string tag = 1; required TensorProto tensor = 2; }
    message TensorProto { repeated int64 dims = 1; required string tensor_type = 2;
                          required bytes tensor_content = 3; }

A large tensor is several values with one tag. A scalar has the dims ``[0]``. They are read and
written here, since a file may exceed the 2 GiB that libraries of protobuf parse at once.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Final

import numpy as np

from shardwright.ir.errors import OptionError, PlanError
from shardwright.ir.files.reading import open_file, read_bytes
from shardwright.ir.files.writing import check_file, replacing
from shardwright.ir.types import numpy_dtype
from shardwright.operators.info import Array
from shardwright.runtime.checkpoint import is_checkpoint

_TYPES: Final = {
    "BFloat16": "bfloat16",
    "Bool": "bool",
    "Float16": "float16",
    "Float32": "float32",
    "Float64": "float64",
    "Int16": "int16",
    "Int32": "int32",
    "Int64": "int64",
    "Int8": "int8",
    "UInt16": "uint16",
    "UInt32": "uint32",
    "UInt64": "uint64",
    "UInt8": "uint8",
}
_NAMES: Final = {dtype: name for name, dtype in _TYPES.items()}
_SLICE_BYTES = 2**29
_WHAT = "the checkpoint"
_VARINT, _BYTES = 0, 2  # wire types


def is_ckpt(path: Path) -> bool:
    """Return whether a file may be MindSpore's: its first message is a tagged value."""
    with open_file(path) as file:
        head = file.read(64)
    try:
        for number, _, value in _fields(memoryview(head), whole=False):
            return number == 1 and not isinstance(value, int) and bytes(value[:1]) == b"\n"
        return True  # an empty file
    except _CorruptError:
        return False


def is_either(path: Path) -> bool:
    """Return whether a file is a checkpoint of MindSpore's form or of ours."""
    return is_checkpoint(path) or is_ckpt(path)


# Writing


def write_ckpt(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write whole tensors by name; the file appears complete or not at all.

    Raises
    ------
    OptionError
        If an element type is none of MindSpore's.
    OutputError
        If the file cannot be written, or would replace one that is no checkpoint.
    """
    check_file(path, _WHAT, is_either)
    for name, array in arrays.items():
        if array.dtype.name not in _NAMES:
            raise OptionError(
                f"`{name}` has the element type {array.dtype.name}, expected one of "
                f"{', '.join(sorted(_NAMES))}"
            )
    with replacing(path, _WHAT) as file:
        for name, array in arrays.items():
            content = memoryview(np.ascontiguousarray(array).tobytes())
            for begin in range(0, max(len(content), 1), _SLICE_BYTES):
                part = content[begin : begin + _SLICE_BYTES]
                head, length = _head(name, array, len(part))
                file.write(_length(1, length) + head)
                file.write(part)


def _head(name: str, array: Array, size: int) -> tuple[bytes, int]:
    """Return a value up to its content, and the length of both."""
    dims = array.shape if array.ndim else (0,)
    tensor = b"".join(_varint(1 << 3 | _VARINT) + _varint(dim) for dim in dims)
    kind = _NAMES[array.dtype.name].encode()
    tensor += _length(2, len(kind)) + kind + _length(3, size)
    tag = name.encode()
    head = _length(1, len(tag)) + tag + _length(2, len(tensor) + size) + tensor
    return head, len(head) + size


def _length(number: int, size: int) -> bytes:
    """Return the beginning of a field of bytes."""
    return _varint(number << 3 | _BYTES) + _varint(size)


def _varint(number: int) -> bytes:
    """Return a number that is not negative, seven bits in a byte, the lowest first."""
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes((*parts, number))


# Reading


class _CorruptError(Exception):
    """The bytes are no such message."""


@dataclass
class _Tensor:
    """A tensor as far as it is read."""

    dims: tuple[int, ...]
    kind: str
    parts: list[memoryview] = field(default_factory=list)


def read_ckpt(path: Path) -> dict[str, Array]:
    """Return the tensors in a file of MindSpore's, by name.

    Raises
    ------
    PlanError
        If the file is missing or corrupt, or has values that are no tensors.
    """
    try:
        content = read_bytes(path, path.stat().st_size)
    except FileNotFoundError:
        raise PlanError("there is no such checkpoint", str(path)) from None
    except OSError as error:
        raise PlanError(f"the checkpoint cannot be read: {error}", str(path)) from None
    tensors: dict[str, _Tensor] = {}
    try:
        if not content:
            raise _CorruptError
        for number, kind, value in _fields(memoryview(content)):
            if (number, kind) != (1, _BYTES) or isinstance(value, int):
                raise _CorruptError
            _read_value(value, tensors, path)
        return {name: _array(name, tensor, path) for name, tensor in tensors.items()}
    except (_CorruptError, UnicodeDecodeError):
        hint = "files that are encrypted or end in a checksum are not supported"
        raise PlanError("the checkpoint is corrupt", str(path), hint) from None


def _read_value(value: memoryview, tensors: dict[str, _Tensor], path: Path) -> None:
    """Add a value to the tensor with its tag."""
    entries = {number: entry for number, _, entry in _fields(value)}
    tag, tensor = entries.get(1), entries.get(2)
    if isinstance(tag, int) or tag is None:
        raise _CorruptError
    name = bytes(tag).decode()
    if set(entries) != {1, 2} or isinstance(tensor, int) or tensor is None:
        raise PlanError(f"the value `{name}` is no tensor", str(path), "leave maps of keys out")
    dims: list[int] = []
    kind, content = "", memoryview(b"")
    for number, wire, entry in _fields(tensor):
        if number == 1 and isinstance(entry, int):
            dims.append(entry)
        elif number == 1 and wire == _BYTES and not isinstance(entry, int):
            dims += _packed(entry)
        elif number == 2 and not isinstance(entry, int):
            kind = bytes(entry).decode()
        elif number == 3 and not isinstance(entry, int):
            content = entry
        else:
            raise _CorruptError
    known = tensors.setdefault(name, _Tensor(tuple(dims), kind))
    if (known.dims, known.kind) != (tuple(dims), kind):
        raise PlanError(f"parts of `{name}` have two types", str(path))
    known.parts.append(content)


def _array(name: str, tensor: _Tensor, path: Path) -> Array:
    """Return a tensor as an array.

    Raises
    ------
    PlanError
        If its type is unknown, or its content has another length.
    """
    if tensor.kind not in _TYPES:
        raise PlanError(
            f"`{name}` has the element type `{tensor.kind}`, expected one of {', '.join(_TYPES)}",
            str(path),
        )
    dtype = np.dtype(numpy_dtype(_TYPES[tensor.kind]))
    content = b"".join(tensor.parts)
    shape = () if tensor.dims == (0,) and content else tensor.dims
    if len(content) != prod(shape) * dtype.itemsize:
        raise PlanError(
            f"`{name}` of shape {shape} has {len(content)} bytes, expected "
            f"{prod(shape) * dtype.itemsize}",
            str(path),
        )
    return np.frombuffer(content, dtype).reshape(shape).copy()


def _fields(
    content: memoryview, whole: bool = True
) -> Iterator[tuple[int, int, "memoryview | int"]]:
    """Yield number, wire type and value of the fields of a message.

    Parameters
    ----------
    content : memoryview
        The message.
    whole : bool
        Whether all of it is there; else the last value may be cut off.
    """
    place = 0
    while place < len(content):
        key, place = _number(content, place)
        if key & 7 == _VARINT:
            number, place = _number(content, place)
            yield key >> 3, _VARINT, number
        elif key & 7 == _BYTES:
            size, place = _number(content, place)
            if whole and place + size > len(content):
                raise _CorruptError
            yield key >> 3, _BYTES, content[place : place + size]
            place += size
        else:
            raise _CorruptError


def _number(content: memoryview, place: int) -> tuple[int, int]:
    """Return the varint at a place, and the place behind it."""
    number = 0
    for shift in range(0, 70, 7):
        if place >= len(content):
            raise _CorruptError
        byte = int(content[place])
        number, place = number | (byte & 127) << shift, place + 1
        if byte < 128:
            return number, place
    raise _CorruptError


def _packed(content: memoryview) -> list[int]:
    """Return varints one behind the other."""
    place, numbers = 0, []
    while place < len(content):
        number, place = _number(content, place)
        numbers.append(number)
    return numbers
