"""Data sets of many files, or of lines in files: each rank reads what it needs, when it does."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from shardwright.communication import Rank
from shardwright.dataset.dataset import Sample
from shardwright.dataset.profile import PROFILE
from shardwright.dataset.sources import NumberedSource
from shardwright.ir.errors import ModelError
from shardwright.ir.files.reading import open_file, read_bytes
from shardwright.ir.optional import optional
from shardwright.ir.values import check_flag, wrong_value
from shardwright.operators.info import Array

_ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".gif", ".webp")
_BLOCK = 1 << 20  # bytes of a text that are searched for lines at a time


def decoded(data: Array, place: str = "a picture") -> Array:
    """Return a picture ``[height, width, 3]`` of the bytes of its file.

    Raises
    ------
    ModelError
        If they are no picture.
    PackageError
        If the package that decodes pictures is not installed.
    """
    images = optional("PIL.Image", extra="images", need="decoding pictures")
    try:
        with images.open(io.BytesIO(np.asarray(data).tobytes())) as picture:
            return np.asarray(picture.convert("RGB"))
    except (OSError, ValueError, SyntaxError, images.DecompressionBombError) as error:
        raise ModelError(f"the picture cannot be decoded: {error}", place) from None


class ImageFolderDataset(NumberedSource):
    """Pictures in folders, one for each class; columns ``image`` and ``label``.

    Parameters
    ----------
    dataset_dir : path
        The folder of the folders.
    num_shards, shard_id, shuffle : optional
        As in `ArrayDataset`.
    decode : bool
        Whether pictures are decoded, to ``[height, width, 3]``; else they are the bytes of files.
    extensions : sequence of str, optional
        Endings of the files; those of common formats unless given.
    class_indexing : mapping of str to int, optional
        Number of each folder; in the order of their names unless given. Others are left out.

    Raises
    ------
    ModelError
        If there is no picture.
    """

    def __init__(
        self,
        dataset_dir: str | Path,
        num_shards: int | None = None,
        shard_id: int | Rank | None = None,
        shuffle: bool = False,
        decode: bool = False,
        extensions: Sequence[str] | None = None,
        class_indexing: Mapping[str, int] | None = None,
    ) -> None:
        check_flag("decode", decode)
        root = Path(dataset_dir)
        if not root.is_dir():
            raise ModelError("there is no folder of pictures", str(root))
        endings = tuple(e.lower() for e in (_ENDINGS if extensions is None else extensions))
        folders = sorted(path for path in root.iterdir() if path.is_dir())
        numbers = class_indexing or {path.name: i for i, path in enumerate(folders)}
        self._files = [
            (path, numbers[folder.name])
            for folder in folders
            if folder.name in numbers
            for path in sorted(folder.iterdir())
            if path.suffix.lower() in endings
        ]
        if not self._files:
            hint = (
                f"expected files with the endings {', '.join(endings)}, in a folder for each class"
            )
            raise ModelError("there are no pictures", str(root), hint)
        self.classes = dict(numbers)
        self._decode = decode
        super().__init__(len(self._files), ("image", "label"), num_shards, shard_id, shuffle)

    def make(self, key: int) -> Sample:
        """Return the picture and the class of a number."""
        path, label = self._files[key]
        with PROFILE.step("read"):
            try:
                data = np.frombuffer(read_bytes(path), np.uint8)
            except OSError as error:
                reason = (error.strerror or "unknown").lower()
                raise ModelError(f"the picture cannot be read: {reason}", str(path)) from None
        image = data
        if self._decode:
            with PROFILE.step("decode"):
                image = decoded(data, str(path))
        return {"image": image, "label": np.asarray(label, np.int32)}


class TextFileDataset(NumberedSource):
    """Lines of texts, without their ends; the column ``text``.

    Parameters
    ----------
    dataset_files : path or sequence of path
        The files, in UTF-8.
    num_shards, shard_id, shuffle : optional
        As in `ArrayDataset`.

    Raises
    ------
    ModelError
        If a file cannot be read, or there is no line.
    """

    def __init__(
        self,
        dataset_files: str | Path | Sequence[str | Path],
        num_shards: int | None = None,
        shard_id: int | Rank | None = None,
        shuffle: bool = False,
    ) -> None:
        names = [dataset_files] if isinstance(dataset_files, str | Path) else list(dataset_files)
        if not names or not all(isinstance(name, str | Path) for name in names):
            raise wrong_value("dataset_files", dataset_files, "the path of a file, or several")
        self._paths = [Path(name) for name in names]
        found = [_lines(path) for path in self._paths]
        self._begins = np.concatenate([begins for begins, _ in found])
        self._ends = np.concatenate([ends for _, ends in found])
        self._file_of = np.repeat(np.arange(len(found)), [len(begins) for begins, _ in found])
        if not len(self._begins):
            raise ModelError("the texts have no lines", ", ".join(map(str, self._paths)))
        super().__init__(len(self._begins), ("text",), num_shards, shard_id, shuffle)

    def make(self, key: int) -> Sample:
        """Return the line of a number."""
        path = self._paths[self._file_of[key]]
        begin, end = int(self._begins[key]), int(self._ends[key])
        with PROFILE.step("read"), open_file(path) as file:
            file.seek(begin)
            line = file.read(end - begin)
        try:
            return {"text": np.asarray(line.decode())}
        except UnicodeDecodeError:
            raise ModelError(f"the line at byte {begin} is not UTF-8", str(path)) from None


def _lines(path: Path) -> tuple[Array, Array]:
    """Return where the lines of a file begin and end; read in blocks."""
    ends, size, last = [], 0, b"\n"
    try:
        with open_file(path) as file:
            while block := file.read(_BLOCK):
                ends.append(np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + size)
                size, last = size + len(block), block[-1:]
    except OSError as error:
        reason = (error.strerror or "unknown").lower()
        raise ModelError(f"the text cannot be read: {reason}", str(path)) from None
    found = np.concatenate([np.zeros(0, np.int64), *ends, *([[size]] if last != b"\n" else [])])
    begins = np.concatenate([[0], found[:-1] + 1]) if len(found) else found
    return begins.astype(np.int64), found.astype(np.int64)
