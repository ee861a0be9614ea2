"""Readers of data sets in files, and the digits of scikit-learn."""

import gzip
import os
import zlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from shardwright.communication import Rank
from shardwright.dataset.sources import ArrayDataset
from shardwright.ir.errors import ModelError
from shardwright.ir.files.reading import open_file
from shardwright.ir.optional import file_of_package, optional
from shardwright.operators.info import Array

_IDX_IMAGES, _IDX_LABELS = 2051, 2049  # magic numbers: unsigned bytes in three and one dimensions
_USAGES = {"train": ("train",), "test": ("t10k",), "all": ("train", "t10k")}
_PATTERNS: dict[str, tuple[str, ...]] = {
    "train": ("data_batch_*.bin",),
    "test": ("test_batch.bin",),
}
_PATTERNS["all"] = (*_PATTERNS["train"], *_PATTERNS["test"])
_CIFAR_IMAGE = (3, 32, 32)
# How much longer a file may be than it is packed, and bytes that every one may have: MNIST's images
# are 5 times as long. Half would do; with twice as much a file that is made for it takes twice the
# memory before it is refused.
_MOST_TIMES, _MOST_SMALL = 20, 2**24


class _OfFolder(ArrayDataset):
    """The arrays in the files of a folder, of the training part, the test part or both."""

    known: ClassVar[str]  # what the files are called
    parts: ClassVar[Mapping[str, tuple[str, ...]]]  # the beginnings or patterns of their names

    def __init__(
        self,
        dataset_dir: str | Path,
        usage: str = "train",
        num_shards: int | None = None,
        shard_id: int | Rank | None = None,
        shuffle: bool = False,
    ) -> None:
        if usage not in self.parts:
            raise ModelError(
                f"unknown usage `{usage}` of {self.known}: expected train, test or all"
            )
        columns = self._read(Path(dataset_dir), self.parts[usage])
        super().__init__(columns, num_shards, shard_id, shuffle)

    @abstractmethod
    def _read(self, folder: Path, names: tuple[str, ...]) -> dict[str, Array]:
        """Return the columns in the files of some names."""


class MnistDataset(_OfFolder):
    """Handwritten digits in the files of MNIST; columns ``image`` ``[28, 28, 1]`` and ``label``.

    Parameters
    ----------
    dataset_dir : path
        The folder of ``train-images-idx3-ubyte`` and the other files, plain or with ``.gz``.
    usage : str
        ``train``, ``test``, or ``all``: the files of both that are there.
    num_shards, shard_id, shuffle : optional
        As in `ArrayDataset`.

    References
    ----------
    LeCun, Cortes and Burges, "The MNIST database of handwritten digits", for the format.
    """

    known, parts = "MNIST", _USAGES

    def _read(self, folder: Path, names: tuple[str, ...]) -> dict[str, Array]:
        stems = [folder / name for name in names]
        there = [s for s in stems if list(s.parent.glob(f"{s.name}-images-idx3-ubyte*"))]
        pairs = [_mnist_pair(stem) for stem in there or stems[:1]]
        images, labels = (_joined(parts) for parts in zip(*pairs, strict=True))
        return {"image": images, "label": labels}


def _mnist_pair(stem: Path) -> tuple[Array, Array]:
    """Return the images and the labels of two files."""
    images = _read_idx(Path(f"{stem}-images-idx3-ubyte"), _IDX_IMAGES)
    return images[..., None], _read_idx(Path(f"{stem}-labels-idx1-ubyte"), _IDX_LABELS)


def _joined(parts: Sequence[Array]) -> Array:
    """Return parts one behind the other; one alone is not copied, and is read when it is used."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _read_idx(path: Path, magic: int) -> Array:
    """Return the bytes of a file in the idx format, in their shape."""
    data = _read(path)
    rank = magic % 256
    begin = 4 * (1 + rank)
    header = data[:begin].view(">i4") if len(data) >= begin else np.zeros(1)
    if header[0] != magic:
        raise ModelError(f"the file does not begin with the number {magic}", str(path))
    shape = tuple(int(size) for size in header[1:])
    body = data[begin:]
    if body.size != np.prod(shape):
        raise ModelError(
            f"the file holds {body.size} bytes after its header, "
            f"{int(np.prod(shape))} expected for the shape {shape}",
            str(path),
        )
    return body.reshape(shape)


def _read(path: Path) -> Array:
    """Return the bytes of a file: mapped into memory, or those of the packed one."""
    packed = path.with_name(path.name + ".gz")
    try:
        if path.is_file():
            return _mapped(path)
        if packed.is_file():
            return np.frombuffer(_unpacked(packed), np.uint8)
    except (OSError, EOFError, zlib.error) as error:
        raise ModelError(f"the file cannot be read: {error}", str(path)) from None
    raise ModelError(f"there is no file `{path.name}`, nor with `.gz`", str(path.parent))


def _unpacked(path: Path) -> bytes:
    """Return what a packed file holds, if that is not far more than it is long."""
    with open_file(path) as file, gzip.open(file) as packed:
        most = _MOST_SMALL + _MOST_TIMES * os.fstat(file.fileno()).st_size
        content = packed.read(most + 1)
    if len(content) > most:
        raise OSError(f"it has more than {most:,} bytes, unpacked")
    return content


def _mapped(path: Path) -> Array:
    """Return the bytes of a file, which are read when they are used."""
    if not path.stat().st_size:  # which cannot be mapped
        return np.zeros(0, np.uint8)
    return np.asarray(np.memmap(path, np.uint8, "r"))


class Cifar10Dataset(_OfFolder):
    """Small coloured pictures in the binary files of CIFAR-10.

    Columns are ``image`` ``[32, 32, 3]`` and ``label``.

    Parameters
    ----------
    dataset_dir : path
        The folder of ``data_batch_1.bin`` and the other files.
    usage : str
        ``train``, ``test``, or ``all``: the files of both that are there.
    num_shards, shard_id, shuffle : optional
        As in `ArrayDataset`.

    References
    ----------
    Krizhevsky, "Learning multiple layers of features from tiny images", 2009.
    """

    known, parts = "CIFAR-10", _PATTERNS

    def _read(self, folder: Path, names: tuple[str, ...]) -> dict[str, Array]:
        paths = [path for pattern in names for path in sorted(folder.glob(pattern))]
        if not paths:
            raise ModelError(f"there is no file `{names[0]}`", str(folder))
        records = _joined([_cifar_records(path) for path in paths])
        images = records[:, 1:].reshape(-1, *_CIFAR_IMAGE).transpose(0, 2, 3, 1)
        return {"image": images, "label": records[:, 0]}


def _cifar_records(path: Path) -> Array:
    length = 1 + int(np.prod(_CIFAR_IMAGE))
    data = _mapped(path)
    if data.size == 0 or data.size % length:
        raise ModelError(f"the file holds {data.size} bytes, no multiple of {length}", str(path))
    return data.reshape(-1, length)


def digits(num_shards: int | None = None, shard_id: int | Rank | None = None) -> ArrayDataset:
    """Return 1,797 handwritten digits, ready for a network that takes MNIST's.

    Columns are ``image`` ``[784]``, real numbers from 0 to 1, and ``label``. Pictures of 8 x 8 are
    enlarged to 28 x 28 by repeating the nearest point.

    Raises
    ------
    PackageError
        If scikit-learn is not installed.

    References
    ----------
    Alpaydin and Kaynak, "Optical recognition of handwritten digits", UCI, 1998.
    """
    rows = _rows_of_digits()  # of 64 points, from 0 to 16, and a label
    nearest = np.arange(28) * 8 // 28
    images = rows[:, :-1].reshape(-1, 8, 8)[:, nearest][:, :, nearest] / 16.0
    columns = {
        "image": images.reshape(len(images), -1).astype(np.float32),
        "label": rows[:, -1].astype(np.int32),
    }
    return ArrayDataset(columns, num_shards, shard_id)


def _rows_of_digits() -> Array:
    """Read the file of scikit-learn: 5 ms, where to import the package takes a second."""
    file = file_of_package("sklearn", "datasets/data/digits.csv.gz")
    if file is not None:
        return np.loadtxt(file, delimiter=",")
    datasets = optional("sklearn.datasets", extra="examples", need="the data set of digits")
    data = datasets.load_digits()
    return np.column_stack([data.data, data.target])
