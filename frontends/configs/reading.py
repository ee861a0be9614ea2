"""What a file of another system says, and helpers to read it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from shardwright.frontends.configs.architecture import Architecture
from shardwright.ir.errors import ModelError

_SHOWN = 60  # names of fields in a note


@dataclass
class Reading:
    """What a file says of a model, its plan and its training.

    Parameters
    ----------
    where : str
        The file.
    model : str
        A model of the zoo; empty where the file describes none.
    sizes : dict of str to object
        Its sizes.
    plan : dict of str to object
        The keys of a named plan.
    options : dict of str to object
        Options of a compilation.
    devices : int or None
        Number of devices.
    no_effect, software : list of str
        Fields that change neither step nor memory, and those of which a software profile tells.
    notes : list of str
        What else has to be said.
    assumed : dict of str to str
        What has to be said of a size that the user does not give.
    architecture : Architecture or None
        The decoder that the file describes, where it is no model of the zoo with sizes.
    fields : mapping or None
        The fields of an architecture that is no model of the zoo.
    profile : str
        The software profile of the system that the file is of; empty where there are several.
    """

    where: str
    model: str = ""
    sizes: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    devices: int | None = None
    no_effect: list[str] = field(default_factory=list)
    software: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    assumed: dict[str, str] = field(default_factory=dict)
    architecture: Architecture | None = None
    fields: Mapping[str, Any] | None = None
    profile: str = ""

    @property
    def sizes_text(self) -> str:
        """The sizes of the model as text."""
        return ",".join(f"{name}={_text(value)}" for name, value in self.sizes.items())

    @property
    def plan_text(self) -> str:
        """The named plan as text."""
        words = (name if value is True else f"{name}={value}" for name, value in self.plan.items())
        return ",".join(words)

    def told(self, sizes: Collection[str] = ()) -> list[str]:
        """Return the sentences that a user is told, who gives some sizes."""
        profile = f" {self.profile}" if self.profile else ""
        kinds = {
            "without effect on step or memory": self.no_effect,
            f"left to `--software{profile}`": self.software,
        }
        return [
            *self.notes,
            *(note for size, note in self.assumed.items() if size not in sizes),
            *(f"{why}: {_few(names)}" for why, names in kinds.items() if names),
        ]

    def error(self, what: str, hint: str | None = None) -> ModelError:
        """Return an error about the file."""
        return ModelError(what, where=self.where, hint=hint)

    def refused(self, name: str, value: object, why: str) -> ModelError:
        """Return the error of a field that is not supported."""
        return self.error(f"`{name}` is `{_text(value)}`: {why}")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _few(names: Collection[str]) -> str:
    text = ", ".join(sorted(set(names)))
    return text if len(names) <= _SHOWN else f"{len(names)}, {text[:400]}..."


@dataclass(frozen=True)
class Several:
    """Different values of one field, of which a script takes one when it runs."""

    values: tuple[object, ...]

    def __str__(self) -> str:
        return " or ".join(map(str, self.values))


class Fields:
    """The fields of a file, each of which is taken once.

    Parameters
    ----------
    reading : Reading
        What is read.
    values : mapping of str to object
        The fields; null is as if a field were not there.
    prefix : str
        What the names of fields begin with.
    """

    def __init__(self, reading: Reading, values: Mapping[str, Any], prefix: str = "") -> None:
        self.reading, self.prefix = reading, prefix
        self.left = {name: value for name, value in values.items() if value is not None}

    def take(self, name: str, default: Any = None) -> Any:
        """Return the value of a field.

        Raises
        ------
        ModelError
            If it has several.
        """
        value = self.left.pop(name, None)
        if isinstance(value, Several):
            one, other, *_ = value.values
            raise self.reading.error(
                f"`{self.prefix}{name}` is `{one}` and `{other}`: the script decides when it runs",
                "keep one of them",
            )
        return default if value is None else value

    def count(self, name: str, default: int | None = None) -> int:
        """Return a positive whole number.

        Raises
        ------
        ModelError
            If it is none, or not there and without a default.
        """
        value = self.take(name, default)
        if value is None:
            raise self.reading.error(f"there is no `{self.prefix}{name}`", "add it")
        if isinstance(value, str) and value.isdecimal():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.reading.error(
                f"`{self.prefix}{name}` is `{value}`, expected an integer of at least 1"
            )
        return value

    def whole(self, name: str, default: int) -> int:
        """Return a whole number, which may be 0.

        Raises
        ------
        ModelError
            If it is none.
        """
        value = self.take(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.reading.error(
                f"`{self.prefix}{name}` is `{value}`, expected an integer of at least 0"
            )
        return value

    def number(self, name: str, default: float) -> float:
        """Return a number.

        Raises
        ------
        ModelError
            If it is none.
        """
        value = self.take(name, default)
        try:
            if isinstance(value, bool):
                raise ValueError
            return float(value)
        except (TypeError, ValueError):
            raise self.reading.error(f"`{name}` is `{value}`, expected a number") from None

    def positive(self, name: str, default: float) -> float:
        """Return a finite number over 0.

        Raises
        ------
        ModelError
            If it is none.
        """
        value = self.number(name, default)
        if not 0 < value < inf:
            raise self.reading.error(f"`{name}` is `{value:g}`, expected a number over 0")
        return value

    def numbers(self, name: str) -> list[int] | None:
        """Return a list of whole numbers; None where there is none.

        Raises
        ------
        ModelError
            If it is no such list.
        """
        value = self.take(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, int) for item in value):
            raise self.reading.error(f"`{name}` is `{value}`, expected a list of integers")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a truth value.

        Raises
        ------
        ModelError
            If it is none.
        """
        value = self.take(name, default)
        if not isinstance(value, bool):
            raise self.reading.error(f"`{name}` is `{value}`, expected true or false")
        return value

    def names(self, name: str) -> list[str]:
        """Return a list of names; empty where there is none.

        Raises
        ------
        ModelError
            If it is no such list.
        """
        value = self.take(name, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.reading.error(f"`{name}` is `{value}`, expected a list of names")
        return value

    def only(self, name: str, allowed: Collection[object], why: str, default: Any = None) -> Any:
        """Return a field that has to have one of some values.

        Raises
        ------
        ModelError
            If it has another one.
        """
        value = self.take(name, default)
        if all(value != item for item in allowed):  # lists and tables have no hash
            raise self.reading.refused(f"{self.prefix}{name}", value, why)
        return value

    def drop(self, names: Collection[str], prefixes: tuple[str, ...] = ()) -> None:
        """Note the fields that change neither step nor memory."""
        found = [n for n in self.left if n in names or (prefixes and n.startswith(prefixes))]
        self.reading.no_effect += found
        for name in found:
            del self.left[name]

    def end(self, what: str) -> None:
        """Refuse what is left.

        Raises
        ------
        ModelError
            If a field was not taken.
        """
        if self.left:
            name, value = next(iter(self.left.items()))
            raise self.reading.error(
                f"`{name}` (`{_text(value)}`) is not supported: {what}",
                "remove it where it changes neither the model nor its training",
            )
