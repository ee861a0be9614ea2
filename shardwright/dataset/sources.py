"""Sources of samples: arrays, and code of the user; each rank reads its own."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from shardwright.communication import NumberedRank, Rank, symbol_of
from shardwright.dataset.configuration import SETTINGS
from shardwright.dataset.dataset import ByKey, Sample
from shardwright.dataset.profile import PROFILE
from shardwright.ir.errors import ModelError
from shardwright.ir.values import POSITIVE_INTEGER, check_flag
from shardwright.operators.info import Array


class NumberedSource(ByKey):
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
        self.has_large_keys = False

    def fill_shards(self) -> None:
        """Leave out no sample where ranks do not divide them: some ranks begin again."""
        shards = max(self.shards, self._chosen.step)
        count = -(-self._total // shards) * shards
        self._chosen = range(self._chosen.start, count, self._chosen.step)

    def keys(self, epoch: int) -> Iterator[Any]:
        """Return the numbers of the samples of one epoch."""
        return iter(self._order(epoch))

    def _order(self, epoch: int) -> list[int]:
        """Return the numbers of the samples of one epoch."""
        order = np.arange(self._total)
        if self._shuffles:
            order = np.random.default_rng((SETTINGS.get_seed(), epoch)).permutation(self._total)
        return [int(order[i % self._total]) for i in self._chosen]

    def __len__(self) -> int:
        return len(self._chosen)


class ArrayDataset(NumberedSource):
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

    def make(self, key: Any) -> Sample:
        """Return the sample of a number."""
        with PROFILE.step("read"):
            return {name: np.asarray(array[key]) for name, array in self.columns.items()}


def _check_shards(num_shards: object, shard_id: object) -> None:
    """Refuse a number of shards without the one that is asked for, and the other way round."""
    if num_shards is not None:
        POSITIVE_INTEGER.check("num_shards", num_shards)
    if (num_shards is None) != (shard_id is None):
        given, missing = ("num_shards", "shard_id")[:: 1 if shard_id is None else -1]
        raise ModelError(f"a dataset is given `{given}` without `{missing}`", hint="give both")


class GeneratorDataset(NumberedSource):
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
        self.has_large_keys = self._first is not None

    def keys(self, epoch: int) -> Iterator[Any]:
        """Return numbers of samples; or the samples of what cannot be indexed."""
        if can_be_indexed(self._source):
            return super().keys(epoch)
        rows = self._rows(epoch)
        return (rows[i] for i in self._order(epoch))

    def make(self, key: Any) -> Sample:
        """Return the sample of a key."""
        with PROFILE.step("read"):
            return self._sample(self._source[key] if can_be_indexed(self._source) else key)

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
