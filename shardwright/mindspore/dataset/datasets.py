"""Datasets with MindSpore's arguments and defaults.

Samples are made by the process that trains, or by as many processes as the step of the pipeline
with the most `num_parallel_workers` asks for. A dataset that is shuffled has the same order in
every run, on every rank and with any number of processes: it follows from the seed of `set_seed`,
and from the epoch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from shardwright import dataset as own
from shardwright.communication import Rank
from shardwright.dataset.configuration import SETTINGS
from shardwright.dataset.selection import Filtered, Renamed, Skipped
from shardwright.dataset.sources import NumberedSource, can_be_indexed
from shardwright.ir.errors import ModelError, OptionError
from shardwright.ir.values import (
    NOT_NEGATIVE_INTEGER,
    POSITIVE_INTEGER,
    SEED,
    check_flag,
    wrong_value,
)
from shardwright.operators.info import Array
from shardwright.tensor import Tensor

Operations = Callable[[Any], Any] | Sequence[Callable[[Any], Any]]


class Dataset(own.Dataset):
    """A dataset, under MindSpore's methods.

    Iterating over it goes through its next epoch, and gives tensors.

    Parameters
    ----------
    inner : Dataset
        The dataset.
    batch_size : int
        Number of samples in a batch; 1 for samples.
    """

    def __init__(self, inner: own.Dataset, batch_size: int = 1) -> None:
        self.inner = inner
        self._batch_size = batch_size
        self._epoch = 0
        self.column_names = inner.column_names
        self.shards, self.ranks, self.apart = inner.shards, inner.ranks, inner.apart

    def samples(self, epoch: int) -> Iterator[dict[str, Array]]:
        """Return the samples of one epoch in turn."""
        return self.inner.samples(epoch)

    def resumed(self, epoch: int, begin: int) -> Iterator[dict[str, Array]]:
        """Return the samples of one epoch from number `begin` on."""
        return self.inner.resumed(epoch, begin)

    def __len__(self) -> int:
        return len(self.inner)

    def get_batch_size(self) -> int:
        """Return the number of samples in a batch."""
        return self._batch_size

    def get_col_names(self) -> list[str]:
        """Return the names of the columns."""
        return list(self.column_names)

    def __iter__(self) -> Iterator[Any]:
        return self.create_tuple_iterator()

    def create_tuple_iterator(
        self, columns: Any = None, num_epochs: int = -1, output_numpy: bool = False
    ) -> Iterator[Any]:
        """Return the samples of the next epoch, as tensors in the order of the columns."""
        names = self._columns(columns)
        for sample in self._next_epoch(num_epochs, output_numpy):
            yield [sample[name] for name in names]

    def create_dict_iterator(
        self, num_epochs: int = -1, output_numpy: bool = False
    ) -> Iterator[Any]:
        """Return the samples of the next epoch, as tensors by column."""
        yield from self._next_epoch(num_epochs, output_numpy)

    def _next_epoch(self, num_epochs: int, output_numpy: bool) -> Iterator[dict[str, Any]]:
        check_flag("output_numpy", output_numpy)
        if num_epochs != -1:
            POSITIVE_INTEGER.check("num_epochs", num_epochs)
        epoch, self._epoch = self._epoch, self._epoch + 1
        for sample in self.samples(epoch):
            yield sample if output_numpy else {n: Tensor(a) for n, a in sample.items()}

    def _columns(self, columns: Any) -> Sequence[str]:
        names = self.column_names if columns is None else columns
        names = (names,) if isinstance(names, str) else tuple(names)
        for name in names:
            if name not in self.column_names:
                raise ModelError(f"a dataset has no column `{name}`")
        return names

    # Transformations

    def map(
        self,
        operations: Operations,
        input_columns: str | Sequence[str] | None = None,
        output_columns: str | Sequence[str] | None = None,
        num_parallel_workers: int | None = None,
        **others: object,
    ) -> "Dataset":
        """Apply functions in turn to each of some columns; see `shardwright.dataset.Dataset.map`.

        Raises
        ------
        ModelError
            If there is no such column.
        """
        workers = _workers(num_parallel_workers)
        _nothing("map", others, ("python_multiprocessing", "cache", "callbacks"))
        columns = None if input_columns is None else self._columns(input_columns)
        mapped = self.inner.map(operations, columns, output_columns, num_parallel_workers=workers)
        return Dataset(mapped, self._batch_size)

    def filter(
        self,
        predicate: Callable[..., Any],
        input_columns: str | Sequence[str] | None = None,
        num_parallel_workers: int | None = None,
    ) -> "Dataset":
        """Keep the samples for which a function of some columns, or of all, returns true."""
        _workers(num_parallel_workers)
        return Dataset(Filtered(self.inner, predicate, self._columns(input_columns)))

    def skip(self, count: int) -> "Dataset":
        """Leave out the first so many samples, or batches."""
        NOT_NEGATIVE_INTEGER.check("count", count)
        return Dataset(Skipped(self.inner, count), self._batch_size)

    def take(self, count: int = -1) -> "Dataset":
        """Take the first so many samples, or batches; all unless given."""
        if count == -1:
            return self
        POSITIVE_INTEGER.check("count", count)
        return Dataset(self.inner.take(count * self.shards), self._batch_size)

    def rename(
        self, input_columns: str | Sequence[str], output_columns: str | Sequence[str]
    ) -> "Dataset":
        """Give columns other names."""
        before = self._columns(input_columns)
        after = (output_columns,) if isinstance(output_columns, str) else tuple(output_columns)
        if len(before) != len(after):
            raise wrong_value("output_columns", after, f"{len(before)} names")
        names = dict(zip(before, after, strict=True))
        return Dataset(Renamed(self.inner, names), self._batch_size)

    def project(self, columns: str | Sequence[str]) -> "Dataset":
        """Keep some columns alone, in this order."""
        return Dataset(self.inner.project(columns), self._batch_size)

    def shuffle(self, buffer_size: int | None = None, seed: int | None = None) -> "Dataset":
        """Shuffle the samples, `buffer_size` at a time; each epoch has another order."""
        if buffer_size is None:
            raise wrong_value("buffer_size", None, "an integer of at least 1")
        return Dataset(self.inner.shuffle(buffer_size, seed), self._batch_size)

    def batch(
        self,
        batch_size: int,
        drop_remainder: bool = False,
        num_parallel_workers: int | None = None,
        **others: object,
    ) -> "Dataset":
        """Stack samples along a new first dimension.

        A last batch with fewer samples is kept unless `drop_remainder`: the model is compiled for
        it too.
        """
        workers = _workers(num_parallel_workers)
        _nothing("batch", others, ("per_batch_map", "input_columns", "output_columns"))
        batched = self.inner.batch(batch_size, drop_remainder, num_parallel_workers=workers)
        return Dataset(batched, batch_size)

    def repeat(self, count: int | None = None) -> "Dataset":
        """Go through the samples so many times."""
        if count in (None, -1):
            raise wrong_value("count", count, "an integer of at least 1")
        return Dataset(self.inner.repeat(count), self._batch_size)


def _workers(number: int | None) -> int | None:
    """Return the number of processes that a step asks for; None if it does not."""
    if number is not None:
        POSITIVE_INTEGER.check("num_parallel_workers", number)
    return number


def _nothing(method: str, others: Mapping[str, object], known: Sequence[str]) -> None:
    """Refuse arguments that are not supported, and unknown ones."""
    for name, value in others.items():
        if name not in known:
            raise OptionError(f"`{method}` has no argument `{name}`")
        if value is not None and value is not False:
            raise wrong_value(name, value, "none")


class _Reader(Dataset):
    """A dataset of files or arrays, with the arguments that all readers have."""

    def __init__(
        self,
        make: Callable[..., own.Dataset],
        num_samples: int | None = None,
        num_parallel_workers: int | None = None,
        shuffle: bool | None = None,
        sampler: None = None,
        num_shards: int | None = None,
        shard_id: int | Rank | None = None,
        cache: None = None,
    ) -> None:
        workers = _workers(num_parallel_workers)
        _nothing("a dataset", {"sampler": sampler, "cache": cache}, ("sampler", "cache"))
        inner: own.Dataset = make(num_shards, shard_id, shuffle is not False)
        if isinstance(inner, NumberedSource):
            inner.fill_shards()
        inner.workers = workers
        if num_samples is not None:
            POSITIVE_INTEGER.check("num_samples", num_samples)
            inner = inner.take(num_samples * inner.shards)
        super().__init__(inner)


class _FolderReader(_Reader):
    """A dataset of the files in a folder, of the training part, the test part or both."""

    files: ClassVar[Callable[..., own.Dataset]]

    def __init__(
        self, dataset_dir: str | Path, usage: str | None = None, *arguments: Any, **named: Any
    ) -> None:
        def make(*shards: Any) -> own.Dataset:
            return type(self).files(dataset_dir, usage or "all", *shards)

        super().__init__(make, *arguments, **named)


class MnistDataset(_FolderReader):
    """Handwritten digits in the files of MNIST; see `shardwright.dataset.MnistDataset`.

    Parameters
    ----------
    dataset_dir : path
        The folder.
    usage : str, optional
        ``train``, ``test`` or ``all``; all unless given.
    num_samples, num_parallel_workers, shuffle, sampler, num_shards, shard_id, cache : optional
        Those of every reader: how many samples of a rank are read; shuffled unless False.
    """

    files = own.MnistDataset


class Cifar10Dataset(_FolderReader):
    """Coloured pictures in the files of CIFAR-10; see `shardwright.dataset.Cifar10Dataset`.

    Parameters
    ----------
    dataset_dir : path
        The folder.
    usage : str, optional
        ``train``, ``test`` or ``all``; all unless given.
    num_samples, num_parallel_workers, shuffle, sampler, num_shards, shard_id, cache : optional
        As of `MnistDataset`.
    """

    files = own.Cifar10Dataset


class ImageFolderDataset(_Reader):
    """Pictures in folders, one for each class; see `shardwright.dataset.ImageFolderDataset`.

    Parameters
    ----------
    dataset_dir : path
        The folder of the folders.
    num_samples, num_parallel_workers, shuffle, sampler, num_shards, shard_id, cache : optional
        As of `MnistDataset`.
    extensions : sequence of str, optional
        Endings of the files.
    class_indexing : mapping of str to int, optional
        Number of each folder.
    decode : bool
        Whether pictures are decoded.
    decrypt : None
        Must be left out.
    """

    def __init__(
        self,
        dataset_dir: str | Path,
        num_samples: int | None = None,
        num_parallel_workers: int | None = None,
        shuffle: bool | None = None,
        sampler: None = None,
        extensions: Sequence[str] | None = None,
        class_indexing: Mapping[str, int] | None = None,
        decode: bool = False,
        num_shards: int | None = None,
        shard_id: int | Rank | None = None,
        cache: None = None,
        decrypt: None = None,
    ) -> None:
        _nothing("a dataset", {"decrypt": decrypt}, ("decrypt",))

        def make(number: int | None, rank: int | Rank | None, shuffles: bool) -> own.Dataset:
            settings = decode, extensions, class_indexing
            return own.ImageFolderDataset(dataset_dir, number, rank, shuffles, *settings)

        super().__init__(
            make, num_samples, num_parallel_workers, shuffle, sampler, num_shards, shard_id, cache
        )


class TextFileDataset(_Reader):
    """Lines of texts; see `shardwright.dataset.TextFileDataset`.

    Parameters
    ----------
    dataset_files : path or sequence of path
        The files.
    num_samples, num_parallel_workers, shuffle, num_shards, shard_id, cache : optional
        As of `MnistDataset`; `shuffle` is True or False.
    """

    def __init__(
        self,
        dataset_files: str | Path | Sequence[str | Path],
        num_samples: int | None = None,
        num_parallel_workers: int | None = None,
        shuffle: bool | None = None,
        num_shards: int | None = None,
        shard_id: int | Rank | None = None,
        cache: None = None,
    ) -> None:
        if shuffle is not None:
            check_flag("shuffle", shuffle)

        def make(*shards: Any) -> own.Dataset:
            return own.TextFileDataset(dataset_files, *shards)

        super().__init__(
            make, num_samples, num_parallel_workers, shuffle, None, num_shards, shard_id, cache
        )


class NumpySlicesDataset(_Reader):
    """Slices along the first dimension of arrays.

    Parameters
    ----------
    data : array, sequence or mapping of array
        The arrays, by column if it is a mapping.
    column_names : sequence of str, optional
        The columns, if it is none; ``column_0`` and so on unless given.
    num_samples, num_parallel_workers, shuffle, sampler, num_shards, shard_id, cache : optional
        As of `MnistDataset`.
    """

    def __init__(
        self,
        data: Any,
        column_names: str | Sequence[str] | None = None,
        *arguments: Any,
        **named: Any,
    ) -> None:
        if isinstance(data, Mapping):
            columns = {name: np.asarray(array) for name, array in data.items()}
        else:
            arrays = list(data) if isinstance(data, tuple) else [data]
            names = [f"column_{i}" for i in range(len(arrays))]
            if column_names is not None:
                names = [column_names] if isinstance(column_names, str) else list(column_names)
            if len(names) != len(arrays):
                raise ModelError(f"{len(arrays)} arrays are given, {len(names)} are named")
            columns = {n: np.asarray(array) for n, array in zip(names, arrays, strict=True)}
        super().__init__(lambda *shards: own.ArrayDataset(columns, *shards), *arguments, **named)


class GeneratorDataset(_Reader):
    """Samples from the user's code; see `shardwright.dataset.GeneratorDataset`.

    Parameters
    ----------
    source : sequence, iterable or callable
        Something that can be indexed, or an iterable, or a function that returns one; it is read
        again in every epoch.
    column_names : sequence of str
        The columns.
    num_samples, num_parallel_workers, shuffle, sampler, num_shards, shard_id : optional
        As of `MnistDataset`; what cannot be indexed is shuffled only if `shuffle` is True.
    **others
        ``python_multiprocessing`` and ``max_rowsize``, which change nothing here.
    """

    def __init__(
        self,
        source: Any,
        column_names: str | Sequence[str],
        *,
        shuffle: bool | None = None,
        python_multiprocessing: bool = True,
        max_rowsize: object = None,
        **named: Any,
    ) -> None:
        check_flag("python_multiprocessing", python_multiprocessing)
        shuffle = can_be_indexed(source) if shuffle is None else shuffle

        def make(*shards: Any) -> own.Dataset:
            return own.GeneratorDataset(source, column_names, *shards)

        super().__init__(make, shuffle=shuffle, **named)


class Configuration:
    """The settings of all datasets."""

    def set_seed(self, seed: int) -> None:
        """Set the seed of datasets alone: of their order, and of what transformations draw."""
        SEED.check("seed", seed)
        SETTINGS.seed = seed

    def get_seed(self) -> int:
        """Return the seed of datasets: that of `set_seed` of the script unless set."""
        return SETTINGS.get_seed()

    def set_num_parallel_workers(self, num: int) -> None:
        """Set the number of processes of datasets whose steps do not ask for some."""
        POSITIVE_INTEGER.check("num", num)
        SETTINGS.workers = num

    def get_num_parallel_workers(self) -> int:
        """Return that number; 0: the process that trains makes the samples."""
        return SETTINGS.workers

    def set_prefetch_size(self, size: int) -> None:
        """Set how many samples, or batches, each process makes ahead."""
        POSITIVE_INTEGER.check("size", size)
        SETTINGS.prefetch = size

    def get_prefetch_size(self) -> int:
        """Return how many each process makes ahead."""
        return SETTINGS.prefetch

    def set_enable_autotune(self, enable: bool, filepath_prefix: str | None = None) -> None:
        """Let the number of processes follow the measured waits.

        Parameters
        ----------
        enable : bool
            Whether it does.
        filepath_prefix : str, optional
            Begin of the name of a file, ``PREFIX_RANK.json``, to which the numbers are written
            after every epoch.
        """
        check_flag("enable", enable)
        if filepath_prefix is not None and not isinstance(filepath_prefix, str):
            raise wrong_value("filepath_prefix", filepath_prefix, "the begin of a file's name")
        SETTINGS.autotune, SETTINGS.tuned_file = enable, filepath_prefix if enable else None

    def get_enable_autotune(self) -> bool:
        """Return whether it does."""
        return SETTINGS.autotune

    def set_autotune_interval(self, interval: int) -> None:
        """Set the number of samples, or batches, from one measurement to the next."""
        POSITIVE_INTEGER.check("interval", interval)
        SETTINGS.interval = interval

    def get_autotune_interval(self) -> int:
        """Return that number."""
        return SETTINGS.interval


config = Configuration()
