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
            return self._reduce(name, operator, parts)
        return self._write(name, operator, parts, number, passes)

    def _reduce(self, name: str, operator: Communication, parts: Parts) -> bool:
        totals = self.values.get(name)
        if totals is None:
            self.values[name] = {rank: begun(operator, part, 1) for rank, part in parts.items()}
            return True
        is_new = name in self._unwritten
        self._unwritten.discard(name)
        for rank, part in parts.items():
            if is_new:
                np.copyto(totals[rank], part)
            else:
                add_part(operator, totals[rank], part, 0)
        return False

    def _write(
        self, name: str, operator: Communication, parts: Parts, number: int, passes: int
    ) -> bool:
        is_new = name not in self.values
        if is_new:
            self.values[name] = {rank: begun(operator, p, passes) for rank, p in parts.items()}
        for rank, part in parts.items():
            add_part(operator, self.values[name][rank], part, number)
        return is_new


def begun(operator: Communication, part: Array, passes: int) -> Array:
    """Return an accumulator: with the first part of a sum, or with room for all that it joins."""
    if operator.reduces:
        return np.array(part)
    dimension = operator.attributes["dimension"]
    shape = list(part.shape)
    shape[dimension] *= passes
    return np.empty(shape, part.dtype)


def add_part(operator: Communication, total: Array, part: Array, number: int) -> None:
    """Add a part to an accumulator, or write it to the place of its pass."""
    if operator.reduces:
        _IN_PLACE[operator.attributes["reduction"]](total, part, out=total)
        return
    dimension = operator.attributes["dimension"]
    size = part.shape[dimension]
    place = np.moveaxis(total, dimension, 0)
    place[number * size : (number + 1) * size] = np.moveaxis(part, dimension, 0)
