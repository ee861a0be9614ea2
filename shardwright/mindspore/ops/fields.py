"""Tables of embeddings whose rows belong to fields, in turn: ``manual_split``.

The last dimension of the positions has the fields; positions of a field look up its own rows, and
read zeros outside of them. Each device has all rows of a slice of the columns, and its fields.
"""

from itertools import accumulate
from math import prod
from typing import Any, Self

import numpy as np

from shardwright import ops as own
from shardwright.ir.errors import ModelError, StrategyError
from shardwright.ir.values import wrong_value
from shardwright.mindspore.context import get_auto_parallel_context, has_parallel_setting
from shardwright.operators.info import SplitCounts
from shardwright.parameter import Parameter
from shardwright.tensor import Tensor, apply

_NAMES = ("manual_split", "manual_split_with_offset")


class ByFields:
    """What primitives that look up rows do where their rows belong to fields."""

    in_strategy: SplitCounts | None
    out_strategy: SplitCounts | None = None
    _fields: tuple[str, Any] | None = None

    def add_prim_attr(self, name: str, value: object) -> Self:
        """Set the rows of fields, or another attribute; see `OnAnyDevice.add_prim_attr`.

        Parameters
        ----------
        name : str
            ``manual_split``: the numbers of rows of the fields; or ``manual_split_with_offset``:
            these, and for each the position of its first row.
        value : object
            A tuple of numbers, or of pairs.
        """
        if name not in _NAMES:
            return super().add_prim_attr(name, value)  # type: ignore[misc]
        self._fields = name, value
        return self

    def by_fields(self, table: Tensor, positions: Tensor, axis: int) -> Tensor:
        """Look up.

        Raises
        ------
        ModelError
            If the table is a parameter that begins as data.
        OptionError
            If the fields are not given by numbers that make up the table.
        StrategyError
            If there is no strategy that splits the table and the positions by the fields.
        """
        if axis != 0:
            raise wrong_value("axis", axis, "0: rows of a table belong to fields")
        if isinstance(table, Parameter) and table.begins_as_data:
            raise ModelError(
                f"the table `{table.name}` by fields begins as data, which MindSpore does not "
                f"split by fields",
                hint="make it with `initializer`, and load or set its data afterwards",
            )
        rows, offsets = self._rows(table.shape[0])
        counts = self._strategy(len(rows), table.ndim, positions.ndim)
        size = positions.shape[-1] // len(rows)
        begins = [0, *accumulate(rows)][:-1]

        def of_fields(values: list[int]) -> Tensor:
            return Tensor(np.repeat(values, size), positions.dtype)

        local = positions - of_fields(offsets)
        inside = apply("logical_and", local >= 0, local < of_fields(rows))
        nowhere = Tensor(np.full(positions.shape[-1], -1), positions.dtype)
        found = apply("where", inside, local + of_fields(begins), nowhere)
        look_up = own.Gather().shard(counts, self.out_strategy)
        return look_up(table, found)

    def _rows(self, size: int) -> tuple[list[int], list[int]]:
        """Return the numbers of rows of the fields, and the positions of their first rows."""
        assert self._fields is not None
        name, value = self._fields
        items = [*value] if isinstance(value, tuple | list) else [value]
        pairs = name == _NAMES[1]
        if pairs and all(isinstance(item, tuple | list) and len(item) == 2 for item in items):
            rows, offsets = [item[0] for item in items], [item[1] for item in items]
        else:
            rows = items
            known = all(isinstance(item, int) for item in rows) and not pairs
            offsets = [0, *accumulate(rows)][:-1] if known else [None]
        if not all(isinstance(item, int) for item in (*rows, *offsets)) or sum(rows) != size:
            what = "pairs of a number of rows and a position" if pairs else "numbers of rows"
            raise wrong_value(name, value, f"{what} that make up the {size} rows of the table")
        return rows, offsets

    def _strategy(self, fields: int, of_table: int, of_positions: int) -> SplitCounts:
        """Return the strategy in which the table has whole rows."""
        counts = self.in_strategy
        if counts is None or tuple(map(len, counts)) != (of_table, of_positions):
            raise StrategyError(
                f"`{type(self).__name__}` by fields has the strategy {counts}, expected numbers of "
                f"slices for {of_table} and {of_positions} dimensions"
            )
        table, positions = counts
        ones, devices = (1,) * (of_positions - 1), prod(table)
        if has_parallel_setting("device_num"):
            devices = get_auto_parallel_context("device_num")
        if table[0] != fields or positions != (*ones, fields) or prod(table) != devices:
            raise StrategyError(
                f"the strategy {counts} of `{type(self).__name__}` does not fit {fields} fields on "
                f"{devices} devices, expected ({fields}, ...) for a table of {devices} slices, "
                f"and {(*ones, fields)} for the positions"
            )
        return (1, *table[1:]), positions


__all__: list[str] = []
