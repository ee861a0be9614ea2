"""Registries: classes and functions by name, which files from outside the package can add to.

Operators, passes, searches and cost profiles each have one. A file that is read again replaces what
it registered before; two files cannot register one name.
"""

import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, cast

from shardwright.ir.errors import OptionError, ShardwrightError
from shardwright.ir.values import suggestion

NAME = re.compile(r"[a-z][a-z0-9_]*")
"""The names that can be registered."""

Item = TypeVar("Item", bound=type[Any] | Callable[..., Any])
Own = TypeVar("Own", bound=type[Any] | Callable[..., Any])


class Registry(Generic[Item]):
    """Classes or functions by name.

    Parameters
    ----------
    kind : str
        The word for one entry in messages: ``pass``, ``operator``.
    error : type of ShardwrightError
        Raised where a name is unknown or taken.
    listed : bool
        Whether the message about an unknown name lists all names where none is near.
    base : type, optional
        The class that every entry derives from.
    """

    def __init__(
        self,
        kind: str,
        error: type[ShardwrightError] = OptionError,
        listed: bool = True,
        base: type | None = None,
    ) -> None:
        self.kind, self.error, self.listed, self.base = kind, error, listed, base
        self._items: dict[str, Item] = {}
        self._origins: dict[str, tuple[str, str]] = {}

    def add(self, name: str, item: Item) -> bool:
        """Register `item` under `name`; return whether it replaces what its file had registered.

        Raises
        ------
        ShardwrightError
            If something else has that name.
        """
        origin = _origin(item)
        owner = self._origins.setdefault(name, origin)
        if owner != origin:
            raise self.error(
                f"the {self.kind} `{name}` is registered already, by `{owner[1]}` of {owner[0]}",
                hint="choose another name",
            )
        replaced = name in self._items
        self._items[name] = item
        return replaced

    def register(self, item: Item) -> bool:
        """Register a class under its attribute `name`; see `add`.

        Raises
        ------
        ShardwrightError
            If it is not derived from `base`, lacks a method or a name, or its name is taken.
        """
        where = f"class {item.__qualname__}"
        if self.base is not None and not (isinstance(item, type) and issubclass(item, self.base)):
            whole = f"{self.base.__module__}.{self.base.__qualname__}"
            raise self.error(f"it is no {self.kind}", where, f"derive it from `{whole}`")
        missing = sorted(getattr(item, "__abstractmethods__", ()))
        if missing:
            methods = ", ".join(f"`{name}`" for name in missing)
            raise self.error(f"the {self.kind} has no {methods}", where, "define what is missing")
        name = getattr(item, "name", None)
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise self.error(
                f"the name of the {self.kind} is {name!r}, expected lower case such as `my_name`",
                where,
                'write `name = "my_name"` in the class',
            )
        return self.add(name, item)

    def registered(self, item: Own) -> Own:
        """Register a class under its attribute `name`, as `register`; a decorator."""
        self.register(cast(Item, item))
        return item

    def under(self, name: str) -> Callable[[Own], Own]:
        """Register a function under a name, as `add`; a decorator."""

        def register(item: Own) -> Own:
            self.add(name, cast(Item, item))
            return item

        return register

    def __getitem__(self, name: str) -> Item:
        """Return the entry called `name`.

        Raises
        ------
        ShardwrightError
            If there is none; suggests the nearest name, or lists all.
        """
        if name not in self._items:
            near = suggestion(name, self)
            if self.listed:
                hint = near or f"expected one of {', '.join(sorted(self))}"
            else:
                plugin = "load the plugin that registers it, with `--plugin FILE`"
                hint = f"{near} Or {plugin}" if near else plugin
            raise self.error(f"unknown {self.kind} `{name}`", hint=hint)
        return self._items[name]

    def __contains__(self, name: object) -> bool:
        return name in self._items

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names in the order of registration.

        Those of entries with ``is_listed = False`` are left out: a part of the package asks for
        them, and nobody is told of them.
        """
        items = self._items.items()
        return (name for name, item in items if getattr(item, "is_listed", True))

    def __len__(self) -> int:
        return sum(1 for _ in self)


@contextmanager
def explained(item: object, what: str, error: type[ShardwrightError]) -> Iterator[None]:
    """Raise what the code of an object from outside the package raises as an error with its place.

    Errors of the package's own objects pass through.
    """
    try:
        yield
    except (ShardwrightError, MemoryError):
        raise
    except Exception as cause:
        if type(item).__module__.startswith("shardwright."):
            raise
        place = traceback.extract_tb(cause.__traceback__)[-1]
        where = f"{place.filename}, line {place.lineno}"
        raise error(f"{what} fails: {type(cause).__name__}: {cause}", where) from cause


def _origin(item: type[Any] | Callable[..., Any]) -> tuple[str, str]:
    """Return the file and the name in it of a class or function."""
    module = sys.modules.get(item.__module__)
    return str(getattr(module, "__file__", item.__module__)), item.__qualname__
