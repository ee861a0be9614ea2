"""Gradient accumulation: what the passes over micro-batches add up, or write a part of."""

from collections.abc import Mapping

import numpy as np

from shardwright.operators.communication.collectives import Communication
from shardwright.operators.info import Array

Parts = Mapping[int, Array]
_IN_PLACE = {"sum": np.add, "max": np.maximum, "min": np.minimum}


class Accumulators:
    """Values that are known after the last pass of a loop, by name and rank."""

    def __init__(self) -> None:
        self.values: dict[str, dict[int, Array]] = {}
        self._unwritten: set[str] = set()

    def allocate(
        self, name: str, shapes: Mapping[int, tuple[int, ...]], dtype: "np.dtype[np.generic]"
    ) -> dict[int, Array]:
        """Return the arrays of an accumulator before its first part is added."""
        self._unwritten.add(name)
        self.values[name] = {rank: np.empty(shape, dtype) for rank, shape in shapes.items()}
        return self.values[name]

    def add(
        self, name: str, operator: Communication, parts: Parts, number: int, passes: int
    ) -> bool:
        """Add the parts of a pass; return whether the accumulator is new.

        Parameters
        ----------
        name : str
            The accumulated value.
        operator : Communication
            Reduces, or concatenates the slices of a dimension.
        parts : mapping of int to array
            The part of each hosted rank.
        number, passes : int
            The pass, and how many there are.
        """
        if operator.reduces:
            return self._reduce(name, operator.attributes["reduction"], parts)
        return self._write(name, operator.attributes["dimension"], parts, number, passes)

    def _reduce(self, name: str, reduction: str, parts: Parts) -> bool:
        totals = self.values.get(name)
        if totals is None:
            self.values[name] = {rank: np.array(part) for rank, part in parts.items()}
            return True
        is_new = name in self._unwritten
        self._unwritten.discard(name)
        for rank, part in parts.items():
            if is_new:
                np.copyto(totals[rank], part)
                continue
            _IN_PLACE[reduction](totals[rank], part, out=totals[rank])
        return False

    def _write(self, name: str, dimension: int, parts: Parts, number: int, passes: int) -> bool:
        is_new = name not in self.values
        if is_new:
            self.values[name] = {
                rank: _room(part, dimension, passes) for rank, part in parts.items()
            }
        for rank, part in parts.items():
            size = part.shape[dimension]
            place = np.moveaxis(self.values[name][rank], dimension, 0)
            place[number * size : (number + 1) * size] = np.moveaxis(part, dimension, 0)
        return is_new


def _room(part: Array, dimension: int, passes: int) -> Array:
    shape = (*part.shape[:dimension], part.shape[dimension] * passes, *part.shape[dimension + 1 :])
    return np.empty(shape, part.dtype)
