"""Datasets: samples by column, and transformations of them.

A dataset is lazy: iterating over it runs its transformations from the start, and gives the same
batches every time, unless they come from code that gives others.

An epoch is a row of keys, and a sample, or a batch, is a function of its key. So an epoch can be
begun anywhere, and several processes can make the samples (`workers`): neither changes them.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from shardwright.dataset.configuration import SETTINGS
from shardwright.dataset.profile import PROFILE
from shardwright.dataset.transforms import RandomOperation
from shardwright.dataset.tuning import Tuner
from shardwright.dataset.workers import Workers
from shardwright.ir.errors import ModelError
from shardwright.ir.values import NOT_NEGATIVE_INTEGER, POSITIVE_INTEGER, SEED, check_flag
from shardwright.operators.info import Array

_NOT_DRAWN = np.random.default_rng(0)
Sample = dict[str, Array]
Operation = Callable[[Array], Array]


class Dataset:
    """Samples, each an array for every column.

    Attributes
    ----------
    column_names : tuple of str
        The columns.
    shards : int
        Number of ranks whose samples are interleaved; a batch concatenates the batches of all
        ranks.
    ranks : int
        The same, of batches too.
    apart : bool
        Whether the samples are those of this process's rank, and the other processes have others.
    workers : int, optional
        Processes that make the samples; those of the settings of all datasets if it is None.
    has_large_keys : bool
        Whether keys are not only numbers.
    """

    column_names: tuple[str, ...]
    shards: int = 1
    ranks: int = 1
    apart: bool = False
    workers: int | None = None
    has_large_keys: bool = True

    def __repr__(self) -> str:
        return f"<{type(self).__name__.strip('_')}: {len(self)} of {', '.join(self.column_names)}>"

    def samples(self, epoch: int) -> Iterator[Sample]:
        """Return the samples of one epoch in turn."""
        raise NotImplementedError

    def resumed(self, epoch: int, begin: int) -> Iterator[Sample]:
        """Return the samples of one epoch from number `begin` on; skips the others at once."""
        return without_first(self.samples(epoch), begin)

    def keys(self, epoch: int) -> Iterator[Any]:
        """Return the keys of the samples of one epoch in turn: here the samples themselves."""
        return self.samples(epoch)

    def make(self, key: Any) -> Sample:
        """Return the sample of a key."""
        return dict(key)

    def __len__(self) -> int:
        raise NotImplementedError

    def get_dataset_size(self) -> int:
        """Return the number of samples, or of batches once they are made, as one rank sees it."""
        return len(self) // self.shards

    def create_dict_iterator(self, epoch: int = 0) -> Iterator[Sample]:
        """Return the samples of one epoch, as arrays by column."""
        return self.samples(epoch)

    def create_tuple_iterator(self, epoch: int = 0) -> Iterator[tuple[Array, ...]]:
        """Return the samples of one epoch, as arrays in the order of the columns."""
        for sample in self.samples(epoch):
            yield tuple(sample[name] for name in self.column_names)

    def __iter__(self) -> Iterator[tuple[Array, ...]]:
        return self.create_tuple_iterator()

    # Transformations

    def map(
        self,
        operations: Operation | Sequence[Operation],
        input_columns: str | Sequence[str] | None = None,
        output_columns: str | Sequence[str] | None = None,
        *,
        num_parallel_workers: int | None = None,
    ) -> "Dataset":
        """Apply functions in turn to some columns, by default to the first.

        A function takes a column, and makes what replaces it; or, with other output columns, it
        takes all of them, and makes as many as those in a tuple.

        Parameters
        ----------
        operations : callable or sequence of callable
            The functions.
        input_columns : str or sequence of str, optional
            The columns.
        output_columns : str or sequence of str, optional
            What they become; they are replaced in place of the first.
        num_parallel_workers : int, optional
            Processes that make the samples of the whole pipeline, where no step asks for more;
            0: the process that trains.

        Raises
        ------
        ModelError
            If there is no such column.
        """
        columns = self.column_names[:1] if input_columns is None else input_columns
        columns = (columns,) if isinstance(columns, str) else tuple(columns)
        missing = [name for name in columns if name not in self.column_names]
        if missing:
            raise ModelError(
                f"a dataset has no column `{missing[0]}`", hint=f"there are {self.column_names}"
            )
        functions = (operations,) if callable(operations) else tuple(operations)
        outputs = columns if output_columns is None else output_columns
        outputs = (outputs,) if isinstance(outputs, str) else tuple(outputs)
        mapped = _Mapped(self, functions, columns)
        if outputs != columns:
            mapped = _Replaced(self, functions, columns, outputs)
        return _with_workers(mapped, num_parallel_workers)

    def project(self, columns: str | Sequence[str]) -> "Dataset":
        """Keep some columns alone, in this order.

        Raises
        ------
        ModelError
            If there is no such column.
        """
        columns = (columns,) if isinstance(columns, str) else tuple(columns)
        for name in columns:
            if name not in self.column_names:
                raise ModelError(
                    f"a dataset has no column `{name}`", hint=f"there are {self.column_names}"
                )
        return _Projected(self, columns)

    def shuffle(self, buffer_size: int | None = None, seed: int | None = 0) -> "Dataset":
        """Shuffle the samples; the order is a function of the seed and the epoch.

        Parameters
        ----------
        buffer_size : int, optional
            Number of samples that are shuffled at a time, of one rank; by default all.
        seed : int or None
            Seed of the order; None: that of `initial.set_seed`, when the samples are read.

        Raises
        ------
        OptionError
            If one is out of range.
        """
        if buffer_size is not None:
            POSITIVE_INTEGER.check("buffer_size", buffer_size)
        if seed is not None:
            SEED.check("seed", seed)
        return _Shuffled(self, buffer_size or max(1, len(self) // self.shards), seed)

    def batch(
        self,
        batch_size: int,
        drop_remainder: bool = True,
        *,
        num_parallel_workers: int | None = None,
    ) -> "Dataset":
        """Stack samples along a new first dimension.

        A program is compiled for one batch size, so an incomplete batch is dropped. Where samples
        of several ranks are interleaved, every rank gets a batch of its own.
        `num_parallel_workers` is that of `map`.

        Raises
        ------
        ModelError
            If there are fewer samples than one batch has, and the last one is dropped.
        """
        POSITIVE_INTEGER.check("batch_size", batch_size)
        check_flag("drop_remainder", drop_remainder)
        count = self.get_dataset_size()
        if batch_size > count and (drop_remainder or not count):
            raise ModelError(f"a batch is to have {batch_size} of {count} samples")
        batched = _Batched(self, batch_size, drop_remainder)
        return _with_workers(batched, num_parallel_workers)

    def take(self, count: int) -> "Dataset":
        """Take the first so many samples, or batches, or all where there are fewer."""
        POSITIVE_INTEGER.check("count", count)
        return _Taken(self, count)

    def repeat(self, count: int = 1) -> "Dataset":
        """Go through the samples so many times, at least once."""
        POSITIVE_INTEGER.check("count", count)
        return _Repeated(self, count)


def without_first(items: Iterator[Any], count: int) -> Iterator[Any]:
    """Drop some items at once, and return the rest."""
    for _ in islice(items, count):
        pass
    return items


def _with_workers(dataset: "ByKey", workers: int | None) -> "ByKey":
    """Give a dataset at least so many processes."""
    if workers is not None:
        NOT_NEGATIVE_INTEGER.check("num_parallel_workers", workers)
        dataset.workers = max(workers, dataset.workers or 0)
    return dataset


class ByKey(Dataset):
    """A dataset whose samples are made of their keys, in this process or in others."""

    _tuner: Tuner | None = None

    def samples(self, epoch: int) -> Iterator[Sample]:
        """Return the samples of one epoch in turn."""
        return self.resumed(epoch, 0)

    def resumed(self, epoch: int, begin: int) -> Iterator[Sample]:
        """Return the samples of one epoch from number `begin` on; makes only these."""
        keys = without_first(self.keys(epoch), begin)
        count = SETTINGS.workers if self.workers is None else self.workers
        if SETTINGS.autotune:
            self._tuner = self._tuner or Tuner(max(1, count))
            count = self._tuner.count
        if count == 0:
            return map(self.make, keys)
        return self._made_by(count, keys, (SETTINGS.get_seed(), epoch, begin))

    def _made_by(self, count: int, keys: Iterator[Any], seed: tuple[int, ...]) -> Iterator[Sample]:
        prefetch = 1 if self.has_large_keys else SETTINGS.prefetch
        workers = Workers(self.make, count, prefetch, seed)
        if self._tuner is None:
            yield from workers.run(keys)
        else:
            yield from self._tuner.run(workers, keys, SETTINGS)


class Derived(ByKey):
    """A transformation of another dataset."""

    def __init__(self, source: Dataset) -> None:
        self.source = source
        self.column_names = source.column_names
        self.shards, self.ranks, self.apart = source.shards, source.ranks, source.apart
        self.workers, self.has_large_keys = source.workers, source.has_large_keys

    def keys(self, epoch: int) -> Iterator[Any]:
        """Return the keys of the samples of one epoch in turn."""
        return self.source.keys(epoch)

    def make(self, key: Any) -> Sample:
        """Return the sample of a key."""
        return self.source.make(key)

    @property
    def depth(self) -> int:
        """Number of steps up to this one."""
        source = self.source
        return 1 + (source.depth if isinstance(source, Derived) else 0)

    def __len__(self) -> int:
        return len(self.source)


class _Mapped(Derived):
    def __init__(
        self, source: Dataset, functions: Sequence[Operation], columns: Sequence[str]
    ) -> None:
        super().__init__(source)
        self._functions = functions
        self._columns = columns
        self._draws = any(isinstance(function, RandomOperation) for function in functions)
        self._step = f"map({self.depth})"

    def keys(self, epoch: int) -> Iterator[Any]:
        seed = SETTINGS.get_seed()
        for i, key in enumerate(self.source.keys(epoch)):
            # The samples of all ranks at one place draw the same numbers, in one process or many.
            yield (seed, epoch, i // self.shards), key

    def make(self, key: Any) -> Sample:
        place, inner = key
        sample = self.source.make(inner)
        random = np.random.default_rng(place) if self._draws else _NOT_DRAWN
        with PROFILE.step(self._step):
            for name in self._columns:
                for function in self._functions:
                    if isinstance(function, RandomOperation):
                        sample[name] = np.asarray(function.draw(sample[name], random))
                    else:
                        sample[name] = np.asarray(function(sample[name]))
        return sample


class _Replaced(_Mapped):
    """Makes columns of others: functions take all of them, and make several."""

    def __init__(
        self,
        source: Dataset,
        functions: Sequence[Operation],
        columns: Sequence[str],
        outputs: Sequence[str],
    ) -> None:
        super().__init__(source, functions, columns)
        self._outputs = outputs
        if self._draws and len(columns) > 1:
            raise ModelError(
                f"a random transformation is to take the columns {tuple(columns)} at once",
                hint="leave `output_columns` out: each column is transformed",
            )
        first = source.column_names.index(columns[0])
        before = [name for name in source.column_names[:first] if name not in columns]
        after = [name for name in source.column_names[first:] if name not in columns]
        self.column_names = (*before, *outputs, *after)
        if len(set(self.column_names)) != len(self.column_names):
            raise ModelError(f"a dataset would have the columns {self.column_names}, each once")

    def make(self, key: Any) -> Sample:
        place, inner = key
        sample = self.source.make(inner)
        random = np.random.default_rng(place) if self._draws else _NOT_DRAWN
        made: tuple[Any, ...] = tuple(sample[name] for name in self._columns)
        with PROFILE.step(self._step):
            for function in self._functions:
                if isinstance(function, RandomOperation):
                    found: Any = function.draw(made[0], random)
                else:
                    found = function(*made)
                made = found if isinstance(found, tuple) else (found,)
        if len(made) != len(self._outputs):
            raise ModelError(
                f"`map` makes {len(made)} columns, and `output_columns` has {len(self._outputs)}"
            )
        arrays = map(np.asarray, made)
        known = {**sample, **dict(zip(self._outputs, arrays, strict=True))}
        return {name: known[name] for name in self.column_names}


class _Projected(Derived):
    """Some columns of another dataset."""

    def __init__(self, source: Dataset, columns: tuple[str, ...]) -> None:
        super().__init__(source)
        self.column_names = columns

    def make(self, key: Any) -> Sample:
        sample = self.source.make(key)
        return {name: sample[name] for name in self.column_names}


class _Shuffled(Derived):
    """Shuffles the samples of a rank; where those of several are interleaved, all in one order."""

    def __init__(self, source: Dataset, buffer_size: int, seed: int | None) -> None:
        super().__init__(source)
        self._buffer_size = buffer_size
        self._seed = seed

    def keys(self, epoch: int) -> Iterator[Any]:
        random = np.random.default_rng(
            (SETTINGS.get_seed() if self._seed is None else self._seed, epoch)
        )
        buffer: list[list[Any]] = []
        for together in _in_groups(self.source.keys(epoch), self.shards):
            buffer.append(together)
            if len(buffer) == self._buffer_size:
                yield from self._drawn(buffer, random)
        while buffer:
            yield from self._drawn(buffer, random)

    @staticmethod
    def _drawn(buffer: list[list[Any]], random: np.random.Generator) -> list[Any]:
        """Remove a random entry in constant time."""
        i = int(random.integers(len(buffer)))
        buffer[i], buffer[-1] = buffer[-1], buffer[i]
        return buffer.pop()


def _in_groups(keys: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while together := list(islice(keys, size)):
        yield together


class _Batched(Derived):
    def __init__(self, source: Dataset, size: int, drop_remainder: bool) -> None:
        super().__init__(source)
        self._size = size * source.shards
        self._ranks = source.shards
        self._drop_remainder = drop_remainder
        self._step = f"batch({self.depth})"
        self.shards = 1  # what follows are batches of all ranks

    def keys(self, epoch: int) -> Iterator[Any]:
        for together in _in_groups(self.source.keys(epoch), self._size):
            if len(together) == self._size or not self._drop_remainder:
                yield together

    def make(self, key: Any) -> Sample:
        rows = [self.source.make(one) for one in key]
        with PROFILE.step(self._step):
            return self._together(rows)

    def _together(self, rows: Sequence[Sample]) -> Sample:
        rows = [row for rank in range(self._ranks) for row in rows[rank :: self._ranks]]
        for name in self.column_names:
            shapes = sorted({row[name].shape for row in rows})
            if len(shapes) > 1:
                raise ModelError(
                    f"a batch of `{name}` has samples of the shapes {', '.join(map(str, shapes))}",
                    hint="make them equal with `map` before `batch`",
                )
        return {name: np.stack([row[name] for row in rows]) for name in self.column_names}

    def __len__(self) -> int:
        whole, rest = divmod(len(self.source), self._size)
        return whole + (rest > 0 and not self._drop_remainder)


class _Repeated(Derived):
    def __init__(self, source: Dataset, count: int) -> None:
        super().__init__(source)
        self._count = count

    def keys(self, epoch: int) -> Iterator[Any]:
        for i in range(self._count):
            yield from self.source.keys(epoch * self._count + i)

    def __len__(self) -> int:
        return len(self.source) * self._count


class _Taken(Derived):
    def __init__(self, source: Dataset, count: int) -> None:
        super().__init__(source)
        self._count = count

    def keys(self, epoch: int) -> Iterator[Any]:
        return islice(self.source.keys(epoch), self._count)

    def __len__(self) -> int:
        return min(self._count, len(self.source))
