"""Messages between processes of one run: values as JSON, and the bytes of their arrays.

Nothing that comes from another process is ever run, as unpickling would: a message says numbers,
texts, arrays, and instances of classes that the reader names. Its size is checked before memory is
taken for it, and what it says of itself against the bytes that came.

A message is `SWM1`, the number of bytes of its head, the head, and the arrays, one after another,
each of which begins at a multiple of 16 bytes.
The head is JSON: an item is null, true, a number, a text, or a list whose first element says what
the others are.
"""

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydantic import TypeAdapter, ValidationError

from shardwright.ir.errors import ExecutionError, ShardwrightError
from shardwright.ir.files.reading import from_json
from shardwright.ir.types import numpy_dtype
from shardwright.operators.info import Array

MOST_BYTES: Final = 2**34
"""Bytes of a message: the largest parameter of known models has 2 GB in 16 bits. Half would still
hold every known one, twice as many let another process ask for 32 GiB at once."""

_MAGIC: Final = b"SWM1"
_LENGTH: Final = struct.Struct("<Q")  # the number of bytes of the head
_ALIGNMENT: Final = 16  # bytes; as of what numpy allocates
_MOST_HEAD: Final = 2**28  # bytes; as of a text in a file, see `shardwright.ir.files.reading`
_CHUNK: Final = 2**30  # bytes in one call of MPI, which counts to 2^31
_TYPES: Final = frozenset(
    {
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    }
)


# Values as bytes


def encoded(item: object) -> bytes:
    """Return a value as a message.

    Parameters
    ----------
    item : object
        None, numbers, texts, bytes, paths, arrays, errors of this product, dataclasses, and lists,
        tuples and mappings of these.

    Raises
    ------
    TypeError
        If it is, or holds, something else.
    """
    arrays: list[Array] = []
    head = json.dumps(_item(item, arrays), separators=(",", ":")).encode()
    head += b" " * (-(len(_MAGIC) + _LENGTH.size + len(head)) % _ALIGNMENT)
    parts: list[Any] = [_MAGIC, _LENGTH.pack(len(head)), head]
    for array in arrays:
        parts += [array.reshape(-1).view(np.uint8).data, bytes(-array.nbytes % _ALIGNMENT)]
    return b"".join(parts)


def decoded(data: bytes | bytearray | memoryview | Array, kinds: Sequence[type] = ()) -> Any:
    """Return the value of a message; its arrays share the memory of the message.

    Parameters
    ----------
    data : bytes
        The message.
    kinds : sequence of type
        The dataclasses that may be in it.

    Raises
    ------
    ExecutionError
        If it is no message, or holds something else.
    """
    view = memoryview(data).cast("B")  # type: ignore[arg-type]  # numpy's arrays are buffers
    begin = len(_MAGIC) + _LENGTH.size
    length = int.from_bytes(view[len(_MAGIC) : begin], "little")
    if bytes(view[: len(_MAGIC)]) != _MAGIC or length > min(len(view) - begin, _MOST_HEAD):
        raise _wrong("it does not begin as one")
    try:
        head = from_json(bytes(view[begin : begin + length]))
        reader = _Reader(view[begin + length :], {kind.__name__: kind for kind in kinds})
        found = reader.item(head)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
        raise _wrong(f"{error}") from None
    if reader.place != len(reader.data):
        raise _wrong(f"it has {len(reader.data) - reader.place} bytes more than it says")
    return found


def _wrong(what: str) -> ExecutionError:
    return ExecutionError(
        f"another process sent what is no message: {what}",
        hint="let all processes run one version of one program",
    )


def _item(item: Any, arrays: list[Array]) -> Any:
    """Return what the head says of a value; its arrays are added to a list."""
    if item is None or isinstance(item, bool):
        return item
    if isinstance(item, np.ndarray | np.generic):
        array = np.ascontiguousarray(item).reshape(np.shape(item))
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        if array.dtype.name not in _TYPES:
            raise TypeError(f"an array of {array.dtype.name} is sent to no other process")
        arrays.append(array)
        kind = "array" if isinstance(item, np.ndarray) else "scalar"
        return [kind, array.dtype.name, list(array.shape)]
    if isinstance(item, int):
        return ["int", hex(item)]  # numbers of any length, which JSON's readers limit
    if isinstance(item, float | str):
        return item
    if isinstance(item, bytes):
        arrays.append(np.frombuffer(item, np.uint8))
        return ["bytes", len(item)]
    if isinstance(item, Path):
        return ["path", str(item)]
    if isinstance(item, list | tuple):
        kind = "list" if isinstance(item, list) else "tuple"
        return [kind, [_item(one, arrays) for one in item]]
    if isinstance(item, Mapping):
        return ["mapping", [[_item(k, arrays), _item(v, arrays)] for k, v in item.items()]]
    if isinstance(item, ShardwrightError):
        as_python = "" if item.as_python is None else item.as_python.__name__
        return ["error", type(item).__name__, [item.what, item.where, item.hint, as_python]]
    if is_dataclass(item) and not isinstance(item, type):
        values = {f.name: _item(getattr(item, f.name), arrays) for f in fields(item)}
        return ["class", type(item).__name__, values]
    raise TypeError(f"a {type(item).__name__} is sent to no other process")


class _Reader:
    """Reads the items of a head, and their arrays in order."""

    def __init__(self, data: memoryview, kinds: Mapping[str, type]) -> None:
        self.data, self.place, self._kinds = data, 0, kinds

    def item(self, said: Any) -> Any:
        """Return what the head says."""
        if not isinstance(said, list):
            if isinstance(said, dict):
                raise ValueError("an item is a mapping, expected a list")
            return said
        kind, *rest = said
        read = getattr(self, f"_{kind}", None) if kind in _KINDS else None
        if read is None:
            raise ValueError(f"there is no kind of item `{str(kind)[:40]}`")
        return read(*rest)

    def _int(self, text: str) -> int:
        return int(text, 16)

    def _bytes(self, length: int) -> bytes:
        return bytes(self._taken(length))

    def _path(self, text: str) -> Path:
        if not isinstance(text, str):
            raise ValueError("a path is no text")
        return Path(text)

    def _list(self, items: list[Any]) -> list[Any]:
        return [self.item(one) for one in items]

    def _tuple(self, items: list[Any]) -> tuple[Any, ...]:
        return tuple(self.item(one) for one in items)

    def _mapping(self, pairs: list[Any]) -> dict[Any, Any]:
        return {self.item(key): self.item(value) for key, value in pairs}

    def _array(self, name: str, shape: list[int]) -> Array:
        sizes = tuple(shape)
        whole = all(type(size) is int and size >= 0 for size in sizes)
        if name not in _TYPES or not whole:
            raise ValueError(f"there is no array of {str(name)[:40]} with such a shape")
        dtype, count = numpy_dtype(name), 1
        for size in sizes:
            count *= size
        found: Array = np.frombuffer(self._taken(count * dtype.itemsize), dtype).reshape(sizes)
        return found

    def _scalar(self, name: str, shape: list[int]) -> Any:
        return self._array(name, shape)[()]

    def _error(self, name: str, parts: list[Any]) -> ShardwrightError:
        kind = next((k for k in _errors() if k.__name__ == name), ShardwrightError)
        what, where, hint, as_python = parts
        if not all(isinstance(one, str | None) for one in (what, where, hint)):
            raise ValueError("the parts of an error are no texts")
        error = kind.__new__(kind)
        ShardwrightError.__init__(error, str(what), where, hint)
        error.as_python = _PYTHON[as_python]
        return error

    def _class(self, name: str, values: dict[str, Any]) -> Any:
        kind = self._kinds[name]
        if not isinstance(values, dict):
            raise ValueError(f"the fields of a {name} are no mapping")
        read = {key: self.item(value) for key, value in values.items()}
        if read.keys() != {field.name for field in fields(kind)}:
            raise ValueError(f"a {name} has other fields")
        try:
            return TypeAdapter(kind).validate_python(read)
        except ValidationError as error:
            raise ValueError(f"a {name} has a wrong field: {error.errors()[0]['msg']}") from None

    def _taken(self, length: int) -> memoryview:
        if type(length) is not int or not 0 <= length <= len(self.data) - self.place:
            raise ValueError("it says that it has more bytes than came")
        begin = self.place
        self.place = min(begin + length + -length % _ALIGNMENT, len(self.data))
        return self.data[begin : begin + length]


_KINDS: Final = frozenset(
    {
        *("int", "bytes", "path", "list", "tuple", "mapping"),
        *("array", "scalar", "error", "class"),
    }
)


_PYTHON: Final[Mapping[str, type[Exception] | None]] = {
    "": None,
    **{kind.__name__: kind for kind in (TypeError, ValueError, IndexError, KeyError)},
}
"""What an error is in Python, by name."""


def _errors(kind: type[ShardwrightError] = ShardwrightError) -> Iterator[type[ShardwrightError]]:
    """Yield the errors of this product that say nothing but their texts."""
    for other in kind.__subclasses__():
        if other.__init__ is ShardwrightError.__init__:
            yield other
        yield from _errors(other)


# Bytes between processes


def checked_size(size: int, source: int) -> int:
    """Return the bytes of a message that another process announces.

    Raises
    ------
    ExecutionError
        If no message has so many.
    """
    if not 0 <= size <= MOST_BYTES:
        raise ExecutionError(
            f"process {source} announces a message of {size} bytes, expected at most {MOST_BYTES}"
        )
    return int(size)


def gathered_from_all(group: Any, data: bytes) -> list[memoryview]:
    """Return the messages of all members of a group."""
    sizes = np.empty(group.size, np.int64)
    group.Allgather(np.array([len(data)], np.int64), sizes)
    for source, size in enumerate(sizes):
        checked_size(int(size), source)
    width = -(-int(sizes.max()) // _ALIGNMENT) * _ALIGNMENT
    own = np.zeros(width, np.uint8)
    own[: len(data)] = np.frombuffer(data, np.uint8)
    rows: list[list[Array]] = [[] for _ in sizes]
    step = max(_ALIGNMENT, _CHUNK // group.size // _ALIGNMENT * _ALIGNMENT)
    for begin in range(0, width, step):
        part = own[begin : begin + step]
        parts = np.empty(group.size * part.size, np.uint8)
        group.Allgather(part, parts)
        for row, piece in zip(rows, parts.reshape(group.size, -1), strict=True):
            row.append(piece)
    found = []
    for row, size in zip(rows, sizes, strict=True):
        joined = row[0] if len(row) == 1 else np.concatenate([np.empty(0, np.uint8), *row])
        found.append(joined[: int(size)].data)
    return found


def sent(group: Any, data: bytes, dest: int, tag: int) -> list[tuple[Any, Array]]:
    """Start to send a message; return the requests, and the buffers that they need."""
    size, content = np.array([len(data)], np.int64), np.frombuffer(data, np.uint8)
    pieces: list[Array] = [size]
    pieces += [content[i : i + _CHUNK] for i in range(0, len(content), _CHUNK)]
    return [(group.Isend(piece, dest=dest, tag=tag), piece) for piece in pieces]


def received(group: Any, source: int, tag: int) -> Array:
    """Wait for a message, and return its bytes."""
    size = np.empty(1, np.int64)
    group.Recv(size, source=source, tag=tag)
    content = np.empty(checked_size(int(size[0]), source), np.uint8)
    for begin in range(0, len(content), _CHUNK):
        group.Recv(content[begin : begin + _CHUNK], source=source, tag=tag)
    return content
