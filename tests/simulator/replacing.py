"""What stands for other things while a block runs."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(values: Mapping[tuple[Any, str], Any]) -> Iterator[None]:
    """Let attributes of modules have other values during the block."""
    before = {(module, name): getattr(module, name) for module, name in values}
    try:
        for (module, name), value in values.items():
            setattr(module, name, value)
        yield
    finally:
        for (module, name), value in before.items():
            setattr(module, name, value)
