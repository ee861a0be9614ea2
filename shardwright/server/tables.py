"""Tables: the parameters that servers hold, and which rows of them each server has.

A parameter is a table of rows along its first dimension. Servers and workers divide tables alike,
from their descriptions alone.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.ir.attributes import Attribute
from shardwright.ir.errors import ShardwrightError
from shardwright.ir.types import DTYPES, TensorType, numpy_dtype
from shardwright.operators.info import OperatorInfo, operator_class, operator_info
from shardwright.operators.models.optimizer import Update
from shardwright.server.messages import message

Ids = NDArray[np.int64]
_WHOLE_BYTES = 2**16  # a smaller table is on one server
_GOLDEN = (5**0.5 - 1) / 2  # the golden section: multiples of it spread most evenly
_MOST_ROWS = 2**31


@dataclass(frozen=True)
class Division:
    """The rows that each server has: a range of them, or of their hashed positions.

    The hash is a bijection, ``row * factor mod rows``, so that rows with near numbers, which are
    often equally hot, are on different servers, and every server can list its rows.

    Parameters
    ----------
    rows : int
        Number of rows.
    servers : int
        Number of servers.
    hashed : bool
        Whether positions are hashed.
    home : int, optional
        The server that has all rows.

    Examples
    --------
    >>> Division(10, 2).rows_of(1)
    array([5, 6, 7, 8, 9])
    >>> Division(10, 2, hashed=True).rows_of(1)
    array([5, 8, 1, 4, 7])
    """

    rows: int
    servers: int
    hashed: bool = False
    home: int | None = None

    @cached_property
    def begins(self) -> Ids:
        """The first position of each server, and the end."""
        numbers = np.arange(self.servers + 1)
        if self.home is not None:
            return np.where(numbers > self.home, self.rows, 0)
        return numbers * self.rows // self.servers

    def count(self, server: int) -> int:
        """Return the number of rows of a server."""
        return int(self.begins[server + 1] - self.begins[server])

    @cached_property
    def _factor(self) -> int:
        factor = max(1, int(self.rows * _GOLDEN))
        while gcd(factor, self.rows) > 1:
            factor += 1
        return factor

    def places(self, rows: Ids) -> tuple[Ids, Ids]:
        """Return the server of each row, and its place there."""
        positions = rows * self._factor % self.rows if self.hashed else rows
        servers = np.searchsorted(self.begins, positions, "right") - 1
        return servers, positions - self.begins[servers]

    def rows_of(self, server: int, places: Ids | None = None) -> Ids:
        """Return the rows at some places of a server, or all of it."""
        if places is None:
            places = np.arange(self.count(server))
        positions = places + self.begins[server]
        if not self.hashed or self.rows == 1:
            return positions
        return positions * pow(self._factor, -1, self.rows) % self.rows


@dataclass(frozen=True)
class Table:
    """A parameter on servers, and the rule of its update.

    Parameters
    ----------
    name : str
        Name of the parameter.
    type : TensorType
        Its type.
    initializer : str
        How it begins: see `initial_value`; ``data`` where a worker has its values.
    update : str
        The operator of the update: ``adam_update``.
    settings : tuple of (str, Attribute)
        Its attributes.
    states : tuple of str
        The initializer of each state.
    gradient : str
        Element type of the gradient.
    by_rows : bool
        Whether rows are pulled and pushed one by one, those that a step reads.
    hashed : bool
        Whether rows are divided by hash.
    scheduled : bool
        Whether the learning rate comes with the gradients.

    Raises
    ------
    ShardwrightError
        If there is no such update, or it does not fit.
    """

    name: str
    type: TensorType
    initializer: str
    update: str
    settings: tuple[tuple[str, Attribute], ...]
    states: tuple[str, ...] = ()
    gradient: str = "float32"
    by_rows: bool = False
    hashed: bool = False
    scheduled: bool = False

    def __post_init__(self) -> None:
        if self.rows > _MOST_ROWS or not self.type.elements:
            raise ShardwrightError(
                f"the table `{self.name}` has the type {self.type}, expected 1 to 2**31 rows"
            )
        if len(self.states) != self.operator.states:
            raise ShardwrightError(
                f"the table `{self.name}` has {len(self.states)} states, `{self.update}` has "
                f"{self.operator.states}"
            )

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.type.shape[0] if self.type.rank else 1

    @property
    def width(self) -> int:
        """Elements of a row."""
        return prod(self.type.shape[1:])

    @property
    def state_dtype(self) -> str:
        """Element type of the states: float16 has too few exponents."""
        return "float32" if self.type.dtype == "float16" else self.type.dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of a row with its states."""
        own, state = numpy_dtype(self.type.dtype), numpy_dtype(self.state_dtype)
        return self.width * (own.itemsize + len(self.states) * state.itemsize)

    @cached_property
    def operator(self) -> Update:
        """The operator of the update, on the whole table."""
        kind = operator_class(self.update)
        if not issubclass(kind, Update):
            raise ShardwrightError(f"`{self.update}` is no update of a parameter")
        types = [self.type, TensorType(self.gradient, self.type.shape)]
        types += [TensorType(self.state_dtype, self.type.shape)] * kind.states
        types += [TensorType("int64", ())] * kind.counts_steps
        types += [TensorType("float64", ())] * self.scheduled
        found: OperatorInfo = operator_info(self.update, tuple(types), dict(self.settings))
        assert isinstance(found, Update)
        return found

    def as_message(self) -> Any:
        """Return the table as a message."""
        return message(
            "Table",
            name=self.name,
            dtype=self.type.dtype,
            shape=self.type.shape,
            by_rows=self.by_rows,
            hashed=self.hashed,
            scheduled=self.scheduled,
            gradient=self.gradient,
            initializer=self.initializer,
            update=self.update,
            settings=json.dumps(dict(self.settings)),
            states=self.states,
        )

    @staticmethod
    def of_message(item: Any) -> "Table":
        """Return the table that a message describes.

        Raises
        ------
        ShardwrightError
            If it describes none.
        """
        for dtype in (item.dtype, item.gradient):
            if dtype not in DTYPES:
                raise ShardwrightError(f"the table `{item.name}` has the type `{dtype}`")
        try:
            settings = json.loads(item.settings)
            pairs = tuple(
                (str(name), tuple(value) if isinstance(value, list) else value)
                for name, value in settings.items()
            )
        except (ValueError, AttributeError):
            raise ShardwrightError(f"the settings of `{item.name}` are not in JSON") from None
        return Table(
            item.name,
            TensorType(item.dtype, tuple(item.shape)),
            item.initializer,
            item.update,
            pairs,
            tuple(item.states),
            item.gradient,
            item.by_rows,
            item.hashed,
            item.scheduled,
        )


def divisions(tables: Sequence[Table], servers: int) -> tuple[Division, ...]:
    """Return how tables are divided over servers.

    A small table is whole, on the server that has the fewest bytes so far.
    """
    loads, found = [0] * servers, []
    for table in tables:
        size = table.rows * table.row_bytes
        home = None
        if size < _WHOLE_BYTES or table.rows < servers:
            home = min(range(servers), key=loads.__getitem__)
        division = Division(table.rows, servers, table.hashed and home is None, home)
        for server in range(servers):
            loads[server] += division.count(server) * table.row_bytes
        found.append(division)
    return tuple(found)
