"""Datasets: samples by column, and transformations of them.

A dataset is lazy: iterating over it runs its transformations from the start, and gives the same
batches every time, unless they come from code that gives others.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from shardwright.communication import NumberedRank, Rank, symbol_of
from shardwright.dataset.transforms import RandomOperation
from shardwright.initial import get_seed
from shardwright.ir.errors import ModelError
from shardwright.ir.values import POSITIVE_INTEGER, SEED, check_flag
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
    """

    column_names: tuple[str, ...]
    shards: int = 1
    ranks: int = 1
    apart: bool = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__.strip('_')}: {len(self)} of {', '.join(self.column_names)}>"

    def samples(self, epoch: int) -> Iterator[Sample]:
        """Return the samples of one epoch in turn."""
        raise NotImplementedError

    def resumed(self, epoch: int, begin: int) -> Iterator[Sample]:
        """Return the samples of one epoch from number `begin` on; skips the others at once."""
        samples = self.samples(epoch)
        for _ in islice(samples, begin):
            pass
        return samples

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
    ) -> "Dataset":
        """Apply functions in turn to some columns, by default to the first.

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
        return _Mapped(self, functions, columns)

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

    def batch(self, batch_size: int, drop_remainder: bool = True) -> "Dataset":
        """Stack samples along a new first dimension.

        A program is compiled for one batch size, so an incomplete batch is dropped. Where samples
        of several ranks are interleaved, every rank gets a batch of its own.

        Raises
        ------
        ModelError
            If there are fewer samples than one batch has.
        """
        POSITIVE_INTEGER.check("batch_size", batch_size)
        check_flag("drop_remainder", drop_remainder)
        if batch_size > self.get_dataset_size():
            count = self.get_dataset_size()
            raise ModelError(f"a batch is to have {batch_size} of {count} samples")
        return _Batched(self, batch_size, drop_remainder)

    def take(self, count: int) -> "Dataset":
        """Take the first so many samples, or batches, or all where there are fewer."""
        POSITIVE_INTEGER.check("count", count)
        return _Taken(self, count)

    def repeat(self, count: int = 1) -> "Dataset":
        """Go through the samples so many times, at least once."""
        POSITIVE_INTEGER.check("count", count)
        return _Repeated(self, count)


class _Source(Dataset):
    """Samples that are numbered, and shared by ranks."""

    def __init__(
        self,
        total: int,
        names: Sequence[str],
        num_shards: int | None,
        shard_id: int | Rank | None,
        shuffle: bool,
    ) -> None:
        check_flag("shuffle", shuffle)
        _check_shards(num_shards, shard_id)
        self.column_names = tuple(names)
        shards = num_shards or 1
        if shards > 1 and symbol_of(shard_id) == Rank(shards):
            self.ranks, self.apart = shards, isinstance(shard_id, NumberedRank)
            if not self.apart:
                self.shards, shard_id = shards, None
        shard_id = None if shard_id is None else int(shard_id)
        if shard_id is not None and not 0 <= shard_id < shards:
            raise ModelError(f"the shard {shard_id} is asked for, there are {shards}")
        self._total = total
        count = total // shards * shards
        self._chosen = range(count) if shard_id is None else range(shard_id, count, shards)
        self._shuffles = shuffle

    def _order(self, epoch: int) -> list[int]:
        """Return the numbers of the samples of one epoch."""
        order = np.arange(self._total)
        if self._shuffles:
            order = np.random.default_rng((get_seed(), epoch)).permutation(self._total)
        chosen = self._chosen
        return [int(i) for i in order[chosen.start : chosen.stop : chosen.step]]

    def __len__(self) -> int:
        return len(self._chosen)


class ArrayDataset(_Source):
    """Samples along the first dimension of arrays.

    Parameters
    ----------
    columns : mapping of str to array
        The arrays, equally long.
    num_shards, shard_id : int, optional
        Number of ranks that share the samples, and the rank; it gets every `num_shards`-th. With
        the symbol of `get_rank`, the samples of all ranks are interleaved.
    shuffle : bool
        Whether every epoch has another order, before ranks get their samples; it is a function of
        the seed of `initial.set_seed` and of the epoch.
    """

    def __init__(
        self,
        columns: Mapping[str, Array],
        num_shards: int | None = None,
        shard_id: int | Rank | None = None,
        shuffle: bool = False,
    ) -> None:
        lengths = {name: len(array) for name, array in columns.items()}
        if len(set(lengths.values())) != 1:
            raise ModelError(f"columns have the lengths {lengths}, they must be equally long")
        self.columns = dict(columns)
        total = next(iter(lengths.values()))
        super().__init__(total, tuple(columns), num_shards, shard_id, shuffle)

    def samples(self, epoch: int) -> Iterator[Sample]:
        """Return the samples of one epoch in turn."""
        for i in self._order(epoch):
            yield {name: np.asarray(array[i]) for name, array in self.columns.items()}


def _check_shards(num_shards: object, shard_id: object) -> None:
    """Refuse a number of shards without the one that is asked for, and the other way round."""
    if num_shards is not None:
        POSITIVE_INTEGER.check("num_shards", num_shards)
    if (num_shards is None) != (shard_id is None):
        given, missing = ("num_shards", "shard_id")[:: 1 if shard_id is None else -1]
        raise ModelError(f"a dataset is given `{given}` without `{missing}`", hint="give both")


class GeneratorDataset(_Source):
    """Samples from the user's code, which is run again in every epoch.

    Parameters
    ----------
    source : sequence, iterable or callable
        Something that can be indexed and knows its length, whose samples are read one by one when
        they are needed; or an iterable, or a function that returns one, which is read whole once
        in an epoch (for the first epoch when the dataset is made). Each sample is a tuple of
        arrays.
    column_names : sequence of str
        The columns.
    num_shards, shard_id, shuffle : optional
        As in `ArrayDataset`.

    Raises
    ------
    ModelError
        If there are no samples, or they do not have the columns.
    """

    def __init__(
        self,
        source: Any,
        column_names: str | Sequence[str],
        num_shards: int | None = None,
        shard_id: int | Rank | None = None,
        shuffle: bool = False,
    ) -> None:
        self._source = source
        self._first = None if can_be_indexed(source) else self._read()
        rows = source if self._first is None else self._first
        if len(rows) == 0:
            raise ModelError("the source has no samples")
        names = (column_names,) if isinstance(column_names, str) else column_names
        super().__init__(len(rows), names, num_shards, shard_id, shuffle)
        self._sample(rows[0])

    def samples(self, epoch: int) -> Iterator[Sample]:
        """Return the samples of one epoch in turn."""
        rows = self._source if can_be_indexed(self._source) else self._rows(epoch)
        for i in self._order(epoch):
            yield self._sample(rows[i])

    def _rows(self, epoch: int) -> list[Any]:
        """Return the samples of an epoch: of the first one those that are counted already."""
        rows, self._first = self._first if epoch == 0 else None, None
        rows = self._read() if rows is None else rows
        if len(rows) != self._total:
            raise ModelError(
                f"the source gives {len(rows)} samples in a later epoch, it gave {self._total} "
                "before",
                hint="give a function that returns a new iterator at each call",
            )
        return rows

    def _read(self) -> list[Any]:
        rows = self._source() if callable(self._source) else self._source
        if not isinstance(rows, Iterable) and not can_be_indexed(rows):
            raise ModelError(
                f"samples are to come from {rows!r}",
                hint="give something with `__getitem__` and `__len__`, or an iterable",
            )
        return [rows[i] for i in range(len(rows))] if can_be_indexed(rows) else list(rows)

    def _sample(self, row: Any) -> Sample:
        row = row if isinstance(row, (tuple, list)) else (row,)
        if len(row) != len(self.column_names):
            raise ModelError(f"samples have {len(row)} columns, {len(self.column_names)} are named")
        return {name: np.asarray(a) for name, a in zip(self.column_names, row, strict=True)}


def can_be_indexed(source: object) -> bool:
    """Return whether samples can be read one by one in any order."""
    if isinstance(source, type):
        return False
    return hasattr(source, "__getitem__") and hasattr(source, "__len__")


class _Derived(Dataset):
    """A transformation of another dataset."""

    def __init__(self, source: Dataset) -> None:
        self.source = source
        self.column_names = source.column_names
        self.shards, self.ranks, self.apart = source.shards, source.ranks, source.apart

    def __len__(self) -> int:
        return len(self.source)


class _Mapped(_Derived):
    def __init__(
        self, source: Dataset, functions: Sequence[Operation], columns: Sequence[str]
    ) -> None:
        super().__init__(source)
        self._functions = functions
        self._columns = columns
        self._draws = any(isinstance(function, RandomOperation) for function in functions)

    def samples(self, epoch: int) -> Iterator[Sample]:
        for i, sample in enumerate(self.source.samples(epoch)):
            # The samples of all ranks at one place draw the same numbers, in one process or many.
            place = (get_seed(), epoch, i // self.shards)
            random = np.random.default_rng(place) if self._draws else _NOT_DRAWN
            for name in self._columns:
                for function in self._functions:
                    if isinstance(function, RandomOperation):
                        sample[name] = np.asarray(function.draw(sample[name], random))
                    else:
                        sample[name] = np.asarray(function(sample[name]))
            yield sample


class _Shuffled(_Derived):
    """Shuffles the samples of a rank; where those of several are interleaved, all in one order."""

    def __init__(self, source: Dataset, buffer_size: int, seed: int | None) -> None:
        super().__init__(source)
        self._buffer_size = buffer_size
        self._seed = seed

    def samples(self, epoch: int) -> Iterator[Sample]:
        random = np.random.default_rng((get_seed() if self._seed is None else self._seed, epoch))
        buffer: list[list[Sample]] = []
        for together in self._in_groups(self.source.samples(epoch)):
            buffer.append(together)
            if len(buffer) == self._buffer_size:
                yield from self._drawn(buffer, random)
        while buffer:
            yield from self._drawn(buffer, random)

    def _in_groups(self, samples: Iterator[Sample]) -> Iterator[list[Sample]]:
        while together := list(islice(samples, self.shards)):
            yield together

    @staticmethod
    def _drawn(buffer: list[list[Sample]], random: np.random.Generator) -> list[Sample]:
        """Remove a random entry in constant time."""
        i = int(random.integers(len(buffer)))
        buffer[i], buffer[-1] = buffer[-1], buffer[i]
        return buffer.pop()


class _Batched(_Derived):
    def __init__(self, source: Dataset, size: int, drop_remainder: bool) -> None:
        super().__init__(source)
        self._size = size * source.shards
        self._ranks = source.shards
        self._drop_remainder = drop_remainder
        self.shards = 1  # what follows are batches of all ranks

    def samples(self, epoch: int) -> Iterator[Sample]:
        rows: list[Sample] = []
        for sample in self.source.samples(epoch):
            rows.append(sample)
            if len(rows) == self._size:
                yield self._together(rows)
                rows = []
        if rows and not self._drop_remainder:
            yield self._together(rows)

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


class _Repeated(_Derived):
    def __init__(self, source: Dataset, count: int) -> None:
        super().__init__(source)
        self._count = count

    def samples(self, epoch: int) -> Iterator[Sample]:
        for i in range(self._count):
            yield from self.source.samples(epoch * self._count + i)

    def __len__(self) -> int:
        return len(self.source) * self._count


class _Taken(_Derived):
    def __init__(self, source: Dataset, count: int) -> None:
        super().__init__(source)
        self._count = count

    def samples(self, epoch: int) -> Iterator[Sample]:
        return islice(self.source.samples(epoch), self._count)

    def __len__(self) -> int:
        return min(self._count, len(self.source))
