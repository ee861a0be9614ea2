"""Checks of values from users: options, arguments, settings.

Every error names the option, the value found and the values expected. A function that is `checked`
takes arguments of the types of its annotations alone.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, wraps
from math import inf
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from shardwright.ir.errors import OptionError

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Range:
    """A range of numbers that an option accepts.

    Parameters
    ----------
    whole : bool
        Whether only integers are allowed.
    least, above, below : float, optional
        Bounds; `least` itself is allowed, `above` and `below` are not.
    infinite : bool
        Whether infinity is allowed.

    Examples
    --------
    >>> print(Range(least=0, below=1).expected)
    a number of at least 0 and below 1
    >>> print(Range(whole=True, least=1).expected)
    an integer of at least 1
    """

    whole: bool = False
    least: float | None = None
    above: float | None = None
    below: float | None = None
    infinite: bool = False

    @property
    def expected(self) -> str:
        """The range in words."""
        bounds = {"of at least": self.least, "above": self.above, "below": self.below}
        words = [f"{word} {bound:g}" for word, bound in bounds.items() if bound is not None]
        return " ".join(("an integer" if self.whole else "a number", " and ".join(words))).strip()

    def __contains__(self, value: object) -> bool:
        kind = Integral if self.whole else Real
        if isinstance(value, bool) or not isinstance(value, kind):
            return False
        number: Any = value
        if number != number or (abs(number) == inf and not self.infinite):
            return False
        return (
            (self.least is None or number >= self.least)
            and (self.above is None or number > self.above)
            and (self.below is None or number < self.below)
        )

    def check(self, name: str, value: object, of: str = "") -> None:
        """Check that a value is in the range.

        Parameters
        ----------
        name : str
            The option.
        value : object
            Its value.
        of : str
            What it is an option of, after the name in the message: ``of the plan``.

        Raises
        ------
        OptionError
            If it is not.
        """
        if value not in self:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            fits = is_number and (isinstance(value, int) or not self.whole)
            error = wrong_value(name, value, self.expected, of=of)
            raise error if fits else of_type(error)


POSITIVE_INTEGER = Range(whole=True, least=1)
POSITIVE = Range(above=0)
NOT_NEGATIVE = Range(least=0)
NOT_NEGATIVE_INTEGER = Range(whole=True, least=0)
SEED = NOT_NEGATIVE_INTEGER
SHARE = Range(least=0, below=1)


def wrong_value(
    name: str, value: object, expected: str, hint: str | None = None, of: str = ""
) -> OptionError:
    """Return the error for an option, `of` something, with a value that is not allowed."""
    shown = repr(value)
    if isinstance(value, str):
        shown = f"the text `{value}`"
    elif not isinstance(value, int | float | tuple | list | Mapping | None):
        shown = f"of type {type(value).__name__}"
    return OptionError(f"{_named(name, of)} is {shown}, expected {expected}", hint=hint)


def of_type(error: OptionError) -> OptionError:
    """Return an error, marked as that of a value of another type."""
    error.as_python = TypeError
    return error


def _named(name: str, of: str) -> str:
    return f"`{name}` {of}".strip()


def check_choice(name: str, value: object, choices: Collection[str], of: str = "") -> None:
    """Check that a value of an option, `of` something, is a choice; else suggest the nearest.

    Raises
    ------
    OptionError
        If it is none of them.
    """
    if isinstance(value, str) and value in choices:
        return
    if not isinstance(value, str):
        raise of_type(wrong_value(name, value, in_words(choices), of=of))
    expected = in_words(choices)
    hint = suggestion(value, choices)
    raise OptionError(f"{_named(name, of)} is `{value}`, expected {expected}", hint=hint)


def check_flag(name: str, value: object, of: str = "") -> None:
    """Check that a value of an option, `of` something, is True or False.

    Raises
    ------
    OptionError
        If it is something else.
    """
    if not isinstance(value, bool):
        raise of_type(wrong_value(name, value, "True or False", of=of))


def check_split_counts(operator: str, counts: object) -> None:
    """Refuse anything but a number of slices for each dimension of each tensor.

    Raises
    ------
    OptionError
        If it is something else.
    """
    if isinstance(counts, tuple | list) and all(isinstance(c, tuple | list) for c in counts):
        slices = [count for tensor in counts for count in tensor]
        if all(count in POSITIVE_INTEGER for count in slices):
            return
    expected = "a number of slices for each dimension of each tensor"
    error = wrong_value(f"strategy of {operator}", counts, expected, "write `((2, 4), (4, 1))`")
    raise of_type(error)


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that refuses arguments of other types than its annotations: a decorator.

    Items of tuples, lists and sets are checked, and keys and values of mappings. The check takes
    microseconds, so that functions of inner loops have none.

    Raises
    ------
    OptionError
        If an argument has another type.
    """
    signature = inspect.signature(function)

    @wraps(function)
    def with_check(*arguments: P.args, **named: P.kwargs) -> R:
        hints = _hints(function)
        for name, value in signature.bind(*arguments, **named).arguments.items():
            if name in hints:
                check_type(name, value, hints[name])
        return function(*arguments, **named)

    return with_check


@cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    # When a function is called, the names in its annotations are defined.
    return get_type_hints(function)


def check_fields(described: Any) -> None:
    """Check that the fields of an object of a dataclass have the types of their annotations.

    Raises
    ------
    OptionError
        If one has another type.
    """
    for name, hint in get_type_hints(type(described)).items():
        check_type(name, getattr(described, name), hint)


def check_type(name: str, value: object, hint: Any) -> None:
    """Check that a value has the type of an annotation.

    Raises
    ------
    OptionError
        If it has another.
    """
    if not _has_type(value, hint):
        raise of_type(wrong_value(name, value, _type_text(hint)))


def _has_type(value: Any, hint: Any) -> bool:
    """Return whether a value has the type of an annotation; True where that cannot be told."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, UnionType):
        return any(_has_type(value, one) for one in inner)
    if kind is Literal:
        return value in inner
    if kind in (int, float):
        number = Integral if kind is int else Real
        return isinstance(value, number) and not isinstance(value, bool)
    if kind is Any or not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return True
    is_text = isinstance(value, str | bytes) and kind in (Iterable, Sequence)
    return isinstance(value, kind) and not is_text and _have_types(value, inner)


def _have_types(values: Any, inner: tuple[Any, ...]) -> bool:
    """Return whether the items of a collection have the types in the brackets of an annotation."""
    if isinstance(values, Mapping) and len(inner) == 2:
        return all(_has_type(k, inner[0]) and _has_type(v, inner[1]) for k, v in values.items())
    if isinstance(values, tuple) and inner and inner[-1] is not Ellipsis and len(inner) > 1:
        return len(values) == len(inner) and all(map(_has_type, values, inner))
    if isinstance(values, tuple | list | set | frozenset) and inner:
        return all(_has_type(item, inner[0]) for item in values)
    return True


def _type_text(hint: Any) -> str:
    """Return an annotation in words: ``a path or None``."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, UnionType):
        parts = [one for one in inner if one is not str or Path not in inner]
        return in_words(list(dict.fromkeys(map(_type_text, parts))))
    if kind is Literal:
        return in_words([str(value) for value in inner])
    if kind is not Mapping and inner and issubclass(kind, Iterable):
        return f"a sequence of which each item is {_type_text(inner[0])}"
    return _WORDS.get(kind) or f"a `{getattr(kind, '__name__', kind)}`"


_WORDS: Mapping[Any, str] = {
    NoneType: "None",
    str: "a text",
    bool: "True or False",
    int: "an integer",
    float: "a number",
    Path: "a path",
    Mapping: "a mapping",
    Callable: "a function",
}


class GivenTwiceError(ValueError):
    """A file, or a text of settings, gives a key twice: the last would hide the others."""


def given_once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return a mapping of pairs, as `json.loads` takes it for `object_pairs_hook`.

    Raises
    ------
    GivenTwiceError
        If a key is given twice.
    """
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise GivenTwiceError(f"`{key}` is given twice")
        found[key] = value
    return found


def check_names(what: str, names: Iterable[str], known: Collection[str]) -> None:
    """Check that names are known; else suggest the nearest.

    Parameters
    ----------
    what : str
        Start of the message: "`compile` has no option".
    names : iterable of str
        The names that are given.
    known : collection of str
        The known names.

    Raises
    ------
    OptionError
        If a name is unknown.
    """
    for name in names:
        if name not in known:
            near = suggestion(name, known) or f"expected {in_words(known)}"
            raise OptionError(f"{what} `{name}`", hint=near)


def number_in(text: str) -> float | str:
    """Return the number that a text is; the text itself if it is none."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def suggestion(name: object, known: Collection[str]) -> str | None:
    """Return a hint with the nearest of the known names; None if none is near."""
    near = get_close_matches(name, known, 1, 0.7) if isinstance(name, str) else []
    return f"did you mean `{near[0]}`?" if near else None


def in_words(names: Collection[str]) -> str:
    """Return names as a choice: ``a, b or c``."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last
