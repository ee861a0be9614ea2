"""Interning: equal layers share tables, options and layouts by reference."""

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Interner:
    """One object for all equal keys.

    A key says what the object is made of. A part that is itself shared by reference stands in the
    key as its `solver.problem.Identity`.
    """

    def __init__(self) -> None:
        self._objects: dict[object, Any] = {}

    def intern(self, key: object, make: Callable[[], T]) -> T:
        """Return the object of a key; `make` it at the first call."""
        if key not in self._objects:
            self._objects[key] = make()
        interned: T = self._objects[key]
        return interned
