"""What equal layers have in common is made once, and is then one object for all of them."""

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Interner:
    """Things by what they are made of; equal keys give the same object."""

    def __init__(self) -> None:
        self._made: dict[object, Any] = {}

    def intern(self, key: object, make: Callable[[], T]) -> T:
        """Return what belongs to a key, made if it is asked for the first time."""
        if key not in self._made:
            self._made[key] = make()
        found: T = self._made[key]
        return found
