"""Datasets of some samples of another: those that a function accepts, all but the first ones."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from shardwright.dataset.dataset import Dataset, Derived, Sample, without_first
from shardwright.ir.errors import ModelError


class Filtered(Derived):
    """Samples that a function accepts.

    How many they are is known after one pass over the first epoch.

    Parameters
    ----------
    source : Dataset
        The samples.
    predicate : callable
        Takes columns, and returns whether the sample is kept.
    columns : sequence of str
        The columns.

    Raises
    ------
    ModelError
        If samples of several ranks are interleaved: each rank would keep another number.
    """

    def __init__(
        self, source: Dataset, predicate: Callable[..., Any], columns: Sequence[str]
    ) -> None:
        super().__init__(source)
        if self.shards > 1:
            raise ModelError(
                f"the samples of {self.shards} ranks are filtered together, each would keep "
                "another number of them",
                hint="filter them before they are given to the dataset",
            )
        self._predicate, self._names = predicate, tuple(columns)
        self.has_large_keys = True
        self._count: int | None = None

    def keys(self, epoch: int) -> Iterator[Any]:
        """Return the samples that are kept: they are made to be looked at."""
        for sample in self.source.samples(epoch):
            if self._predicate(*(sample[name] for name in self._names)):
                yield sample

    def make(self, key: Any) -> Sample:
        """Return the sample, which is made."""
        return dict(key)

    def __len__(self) -> int:
        if self._count is None:
            self._count = sum(1 for _ in self.keys(0))
        return self._count


class Skipped(Derived):
    """All samples but the first `count` ones of each rank."""

    def __init__(self, source: Dataset, count: int) -> None:
        super().__init__(source)
        self._count = count * self.shards

    def keys(self, epoch: int) -> Iterator[Any]:
        """Return the keys of the other samples."""
        return without_first(self.source.keys(epoch), self._count)

    def __len__(self) -> int:
        return max(0, len(self.source) - self._count)


class Renamed(Derived):
    """Columns under other names, in the same order.

    Raises
    ------
    ModelError
        If two columns would have one name.
    """

    def __init__(self, source: Dataset, names: Mapping[str, str]) -> None:
        super().__init__(source)
        self._names = {name: names.get(name, name) for name in source.column_names}
        self.column_names = tuple(self._names.values())
        if len(set(self.column_names)) != len(self.column_names):
            raise ModelError(f"a dataset would have the columns {self.column_names}, each once")

    def make(self, key: Any) -> Sample:
        """Return the sample of a key, under the new names."""
        return {self._names[name]: array for name, array in self.source.make(key).items()}
