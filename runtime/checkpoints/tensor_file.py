"""Files of tensors in the format safetensors: written as a stream, and read by regions.

A file begins with the length of a JSON header (8 bytes, little endian), the header, and the data of
the tensors in order, row by row. Read by the package ``safetensors``, which checks the header.

References
----------
https://github.com/huggingface/safetensors, section "Format".
"""

import hashlib
import json
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from shardwright.ir.errors import PlanError
from shardwright.ir.files.reading import check_member, open_file
from shardwright.ir.optional import optional
from shardwright.operators.info import Array
from shardwright.runtime.checkpoints.manifest import SavedFile, damaged

_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
_LENGTH = struct.Struct("<Q")  # of the header, whose text is padded to as many bytes
_BLOCK = 1 << 20  # bytes that are read at a time for a sum
Region = tuple[slice, ...]


def library() -> Any:
    """Return the package that reads the files."""
    return optional("safetensors", extra="safetensors", need="a checkpoint of slices")


def write_tensors(
    path: Path,
    tensors: Sequence[tuple[str, np.dtype[Any], tuple[int, ...], Iterable[Array]]],
    metadata: Mapping[str, str],
) -> SavedFile:
    """Write tensors, each given in blocks of rows, and return the size and sum of the file.

    Parameters
    ----------
    path : Path
        A file that does not exist.
    tensors : sequence of (str, dtype, tuple of int, iterable of array)
        Name, element type, shape, and the elements in order.
    metadata : mapping of str to str
        Texts in the header.
    """
    digest, size = hashlib.sha256(), 0
    with path.open("xb") as file:
        chunks = (_bytes(block) for _, _, _, blocks in tensors for block in blocks)
        for chunk in chain((memoryview(_header(tensors, metadata)),), chunks):
            size += file.write(chunk)
            digest.update(chunk)
        file.flush()
        os.fsync(file.fileno())
    return SavedFile(bytes=size, sha256=digest.hexdigest())


def tensors_content(tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> bytes:
    """Return the content of a file of whole tensors, with texts in its header."""
    entries = [(name, array.dtype, array.shape, (array,)) for name, array in tensors.items()]
    return _header(entries, metadata) + b"".join(map(_bytes, tensors.values()))


def _bytes(array: Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _header(
    tensors: Sequence[tuple[str, np.dtype[Any], tuple[int, ...], Iterable[Array]]],
    metadata: Mapping[str, str],
) -> bytes:
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    begin = 0
    for name, dtype, shape, _ in tensors:
        end = begin + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        entries[name] = {
            "dtype": _NAMES[dtype.name],
            "shape": list(shape),
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH.size)
    return _LENGTH.pack(len(text)) + text


def check_sum(path: Path, expected: SavedFile) -> None:
    """Check that a file is the one that was written; reads it in blocks.

    Raises
    ------
    PlanError
        If it is missing, has another size, or another sum; names the file.
    """
    digest = hashlib.sha256()
    try:
        check_member(path.parent, path.name)
        found = path.stat().st_size
        if found != expected.bytes:
            raise damaged(f"it has {found} bytes, {expected.bytes} were written", path)
        with open_file(path) as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    except FileNotFoundError:
        raise PlanError("a file of the checkpoint is missing", str(path)) from None
    except OSError as error:
        reason = (error.strerror or "unknown").lower()
        raise PlanError(f"the file cannot be read: {reason}", str(path)) from error
    if digest.hexdigest() != expected.sha256:
        raise damaged("its SHA-256 differs from the one that was written", path)


class TensorFile:
    """A file of tensors that is open for reading.

    Parameters
    ----------
    path : Path
        The file.

    Raises
    ------
    PlanError
        If its header is not that of such a file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        safetensors = library()
        try:
            self._file = safetensors.safe_open(str(path), framework="numpy")
        except (safetensors.SafetensorError, OSError) as error:
            raise damaged(str(error).lower(), path) from None
        self._names = frozenset(self._file.keys())

    @property
    def metadata(self) -> dict[str, str]:
        """The texts in the header."""
        return dict(self._file.metadata() or {})

    @property
    def names(self) -> frozenset[str]:
        """The names of the tensors."""
        return self._names

    def whole(self, name: str) -> Array:
        """Return a tensor of whatever type and shape it has."""
        return np.asarray(self._file.get_tensor(name))

    def read(self, name: str, part: Region, dtype: str, shape: tuple[int, ...]) -> Array:
        """Return a region of a tensor.

        Raises
        ------
        PlanError
            If the tensor is missing, or has another type or shape.
        """
        if name not in self._names:
            raise damaged(f"it has no tensor `{name}`", self._path)
        tensor = self._file.get_slice(name)
        found = tuple(tensor.get_shape())
        if tensor.get_dtype() != _NAMES[dtype] or found != shape:
            raise damaged(f"`{name}` is {tensor.get_dtype()}{list(found)}", self._path)
        return np.asarray(tensor[part] if part else tensor[...])
