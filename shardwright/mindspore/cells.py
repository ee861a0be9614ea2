"""Cells outside of a trace, where the context splits them over the ranks of the script."""

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from shardwright.communication import get_group_size
from shardwright.feeding import ByShape
from shardwright.mindspore.common.api import _cell_graph_executor, simulated
from shardwright.mindspore.context import get_seed, splits_operators
from shardwright.mindspore.running import Running, as_arrays
from shardwright.mindspore.simulation import is_simulated
from shardwright.mindspore.spread import options_of_context
from shardwright.mindspore.steps import Step
from shardwright.nn.cell import Cell
from shardwright.operators.info import Array


class SplitCells:
    """Runs cells on all processes in ``semi_auto_parallel`` and ``auto_parallel``.

    In a simulation they are compiled for the ranks that the context names, and computed alone.
    """

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Cell, ByShape[Running]] = WeakKeyDictionary()
        self._simulated: WeakKeyDictionary[Cell, set[Any]] = WeakKeyDictionary()

    def run(self, cell: Cell, inputs: Sequence[Any]) -> Any:
        """Return what a cell returns; None where this process computes it alone."""
        if not _splits():
            if is_simulated() and splits_operators():
                self._simulate(cell, inputs)
            return None
        arrays = as_arrays(inputs)
        return self._compiled(cell, arrays)(arrays)

    def _simulate(self, cell: Cell, inputs: Sequence[Any]) -> None:
        """Compile a cell for inputs of these shapes, once."""
        known = self._simulated.setdefault(cell, set())
        shapes = tuple(array.shape for array in as_arrays(inputs))
        if shapes not in known:
            _cell_graph_executor.compile(cell, *inputs)
            known.add(shapes)

    def compile(self, cell: Cell, inputs: Sequence[Any]) -> None:
        """Compile a cell for some inputs, where it is not computed by this process alone."""
        if _splits():
            self._compiled(cell, as_arrays(inputs))

    def _compiled(self, cell: Cell, arrays: list[Array]) -> Running:
        return self._known.setdefault(cell, ByShape()).session(
            arrays,
            lambda: Running(cell, arrays, options_of_context(cell), get_seed() or 0),
        )


def _splits() -> bool:
    return get_group_size() > 1 and splits_operators()


Cell.runner, Step.simulated = SplitCells(), staticmethod(simulated)
