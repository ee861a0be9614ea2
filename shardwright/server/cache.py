"""Caches of hot rows on a worker.

A row is kept with its version, the server's clock after its last update. A pull tells the server
the versions, and it sends only rows that have changed: a cache never gives an old value.
"""

import numpy as np

from shardwright.operators.info import Array
from shardwright.server.tables import Ids

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_MOST = 15  # lookups without a hit that a row survives at most


class RowCache:
    """Rows of one table.

    Each row has one place that it may be in, by its hash. Of two rows that compete for a place the
    one that is read more often stays: every hit adds one to a count, every miss takes one away.

    Parameters
    ----------
    capacity : int
        Most rows.
    width : int
        Elements of a row.
    dtype : data type
        Their type.
    """

    def __init__(self, capacity: int, width: int, dtype: "np.dtype[np.generic]") -> None:
        self.capacity = capacity
        self._rows = np.full(capacity, -1, np.int64)
        self._versions = np.zeros(capacity, np.uint64)
        self._counts = np.zeros(capacity, np.int32)
        self._values = np.zeros((capacity, width), dtype)

    def _places(self, rows: Ids) -> Ids:
        hashed = rows.astype(np.uint64) * _FACTOR >> np.uint64(32)
        return (hashed % np.uint64(self.capacity)).astype(np.int64)

    def known(self, rows: Ids) -> tuple[Array, Array]:
        """Return the values of rows, and their versions; 0 for a row that is not here."""
        places = self._places(rows)
        here = self._rows[places] == rows
        return self._values[places], np.where(here, self._versions[places], np.uint64(0))

    def keep(self, rows: Ids, values: Array, versions: Array) -> None:
        """Take in rows that were read, each given once."""
        places = self._places(rows)
        here = self._rows[places] == rows
        hits, misses = places[here], places[~here]
        self._counts[hits] = np.minimum(self._counts[hits] + 1, _MOST)
        np.subtract.at(self._counts, misses, 1)
        np.maximum(self._counts, 0, out=self._counts)
        taken = np.flatnonzero(here | (self._counts[places] == 0))
        at, first = np.unique(places[taken], return_index=True)  # one row for each place
        taken = taken[first]
        self._counts[at[~here[taken]]] = 1
        self._rows[at] = rows[taken]
        self._versions[at], self._values[at] = versions[taken], values[taken]

    def clear(self) -> None:
        """Forget all rows: the server may count its updates in another order."""
        self._rows[:] = -1
