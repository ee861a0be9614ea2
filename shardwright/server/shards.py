"""Shards: what one server holds of a table, and its update."""

import numpy as np
from numpy.typing import NDArray

from shardwright.ir.types import numpy_dtype
from shardwright.operators.info import Array
from shardwright.operators.models.random import initial_rows
from shardwright.runtime.updates import overwrites, overwriting
from shardwright.server.tables import Division, Ids, Table

_CHUNK_BYTES = 2**18


class Shard:
    """The rows of a table that a server has, with their states.

    Rows of a table by rows are drawn when they are first read: until then they take no memory.

    Parameters
    ----------
    table : Table
        The table.
    division : Division
        How it is divided.
    server : int
        Number of the server.
    seed : int
        Seed of the initial values.

    Attributes
    ----------
    values, states : array of shape (rows, width)
        The rows here.
    versions : array of uint64
        One more than the number of the last update of each row; 1 for its initial value.
    clock : int
        Number of updates, of a table by rows.
    """

    def __init__(self, table: Table, division: Division, server: int, seed: int) -> None:
        self.table, self.division, self.server, self.seed = table, division, server, seed
        self.rows = division.count(server)
        shape = (self.rows, table.width)
        self.values = np.zeros(shape, numpy_dtype(table.type.dtype))
        state = numpy_dtype(table.state_dtype)
        self.states = [np.zeros(shape, state) for _ in table.states]
        self.clock = 0
        self.versions = np.zeros(self.rows if table.by_rows else 0, np.uint64)
        self.is_filled = table.initializer != "data" or not self.rows
        if not table.by_rows and table.initializer != "data":
            for begin in range(0, self.rows, self._chunk):
                self._draw(np.arange(begin, min(begin + self._chunk, self.rows)))
        elif not table.by_rows:
            self._begin_states(np.arange(self.rows))

    @property
    def _chunk(self) -> int:
        """Rows that are updated at once."""
        return max(1, _CHUNK_BYTES // max(1, self.table.width * self.values.itemsize))

    # Initial values

    def _draw(self, places: Ids) -> None:
        table, rows = self.table, self.division.rows_of(self.server, places)
        initializer = "zeros" if self._is_zero_when_idle and self.clock else table.initializer
        self.values[places] = initial_rows(
            initializer, table.name, self.seed, table.type.shape, rows, self.values.dtype
        )
        self._begin_states(places)

    def _begin_states(self, places: Ids) -> None:
        for state, initializer in zip(self.states, self.table.states, strict=True):
            if initializer != "zeros":
                shape = self.table.type.shape
                state[places] = initial_rows(initializer, "", 0, shape, places, state.dtype)

    def fill(self, values: Array) -> None:
        """Begin with given values, in the order of the places."""
        self.values[:] = values.reshape(self.values.shape)
        self.versions[:] = 1
        self._begin_states(np.arange(self.rows))
        self.is_filled = True

    def at(self, places: Ids) -> tuple[Array, NDArray[np.uint64]]:
        """Return some rows of a table by rows, and their versions."""
        new = places[self.versions[places] == 0]
        if len(new):
            self._draw(np.unique(new))
            self.versions[new] = 1
        return self.values[places], self.versions[places]

    # Updates

    @property
    def _is_zero_when_idle(self) -> bool:
        """Whether the first update sets all rows without a gradient to zero: that of FTRL does."""
        return self.table.update == "ftrl_update"

    def update(self, gradient: Array, step: int, rate: float = 0.0) -> None:
        """Update all rows.

        Parameters
        ----------
        gradient : array
            That of the rows here.
        step : int
            Number of the update, from 1.
        rate : float
            The learning rate, where the table does not have it.
        """
        gradient = gradient.reshape(self.values.shape)
        operator, replaced = self.table.operator, (0, *range(2, 2 + len(self.states)))
        if overwrites(operator, replaced):
            scalars = self._scalars(step, rate)
            overwriting(operator, replaced)([self.values, gradient, *self.states, *scalars])
            return
        for begin in range(0, self.rows, self._chunk):
            part = slice(begin, begin + self._chunk)
            before = (self.values[part], *(state[part] for state in self.states))
            after = self._after(before, gradient[part], step, rate)
            for old, new in zip(before, after, strict=True):
                old[:] = new

    def update_rows(self, places: Ids, gradient: Array, step: int, rate: float = 0.0) -> None:
        """Update some rows, each given once; the clock after the update is `step`."""
        self.at(places)
        if self._is_zero_when_idle and not self.clock:
            idle = np.setdiff1d(np.flatnonzero(self.versions), places, assume_unique=True)
            self.values[idle], self.versions[idle] = 0, step + 1
        self.clock = step
        for begin in range(0, len(places), self._chunk):
            part = slice(begin, begin + self._chunk)
            at = places[part]
            before = (self.values[at], *(state[at] for state in self.states))
            after = self._after(before, gradient[part], step, rate)
            for held, new in zip((self.values, *self.states), after, strict=True):
                held[at] = new
        self.versions[places] = step + 1

    def _after(
        self, before: tuple[Array, ...], gradient: Array, step: int, rate: float
    ) -> tuple[Array, ...]:
        """Return rows and states after an update, by the kernel of its operator."""
        operator = self.table.operator
        value, *states = before
        scalars = self._scalars(step, rate)
        return operator.kernel(operator.rule.view(), value, gradient, *states, *scalars)

    def _scalars(self, step: int, rate: float) -> list[Array]:
        """Return the operands of an update behind its tensors."""
        scalars = [np.asarray(step)] if self.table.operator.counts_steps else []
        if self.table.scheduled:
            scalars.append(np.asarray(rate))
        return scalars
