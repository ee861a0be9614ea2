"""What a pass is: a frozen dataclass, whose fields are its options.

Knows no pass. `shardwright.passes.pipeline` knows all of them, and their text form.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from inspect import cleandoc
from types import UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from shardwright.dataflow.properties import PROPERTIES, Property
from shardwright.ir.errors import OptionError, PassError
from shardwright.ir.graph import Graph
from shardwright.ir.registry import NAME, Registry
from shardwright.ir.values import Range, check_choice, check_flag, in_words, wrong_value


@dataclass(frozen=True)
class Spelled:
    """How the text of a pipeline spells an option that is an object of its own.

    It annotates the field: ``cluster: Annotated[Cluster, Spelled(...)]``.

    Parameters
    ----------
    expected : str
        What the text has to be: ``the name of a cluster``.
    read : callable
        Makes the object of a literal (text, a number, a mapping); raises for a wrong one.
    spell : callable
        Returns the literal of an object.
    literals : tuple of type
        The types of literals that `read` takes.
    """

    expected: str
    read: Callable[[Any], Any]
    spell: Callable[[Any], Any]
    literals: tuple[type, ...] = (str,)


@dataclass(frozen=True)
class Option:
    """An option of a pass: one of its fields.

    Parameters
    ----------
    name : str
        The name of the field.
    kind : type
        Its type.
    default : object
        Its default; ``MISSING`` if it has none.
    mark : Range or Spelled, optional
        Its allowed numbers, or its spelling.
    meaning : str
        What the docstring says of it.
    """

    name: str
    kind: Any
    default: object
    mark: Range | Spelled | None
    meaning: str

    @property
    def required(self) -> bool:
        """Whether there is no default."""
        return self.default is MISSING

    @property
    def expected(self) -> str:
        """What the value has to be, in words."""
        if isinstance(self.mark, Spelled | Range):
            return self.mark.expected
        if get_origin(self.kind) is Literal:
            return in_words(get_args(self.kind))
        return _EXPECTED.get(get_origin(self.kind) or self.kind, str(self.kind))

    def checked(self, value: object) -> object:
        """Return a value as the field holds it.

        Raises
        ------
        OptionError
            If it is not allowed.
        """
        kind = get_origin(self.kind) or self.kind
        if isinstance(self.mark, Spelled):
            return value if _is_instance(value, self.kind) else self._read(self.mark, value)
        if kind is Literal:
            check_choice(self.name, value, get_args(self.kind))
        elif kind is bool:
            check_flag(self.name, value)
        elif kind in (int, float):
            allowed = self.mark or Range(whole=kind is int)
            allowed.check(self.name, value)
            return kind(value)
        elif not _is_instance(value, self.kind):
            raise wrong_value(self.name, value, self.expected)
        return value

    def _read(self, spelled: Spelled, value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, spelled.literals):
            raise wrong_value(self.name, value, spelled.expected)
        return spelled.read(value)

    def literal(self, value: object) -> object:
        """Return the literal that spells a value in text."""
        return self.mark.spell(value) if isinstance(self.mark, Spelled) else value


_EXPECTED = {
    bool: "True or False",
    int: "an integer",
    float: "a number",
    str: "a text",
    dict: "a mapping",
    Mapping: "a mapping",
    tuple: "a tuple",
}


def _is_instance(value: object, kind: Any) -> bool:
    if isinstance(kind, UnionType) or get_origin(kind) is Union:
        return any(_is_instance(value, item) for item in get_args(kind))
    plain = get_origin(kind) or kind
    return isinstance(value, plain) if isinstance(plain, type) else True


class Pass(ABC):
    """A pass: a frozen dataclass, whose fields are its options.

    The docstring of a pass tells in its first line what the pass does, shows a program before and
    after it, and describes each option. See docs/passes.md for all of them.

    Attributes
    ----------
    name : str
        Its name in text, as of a function: ``insert_mirrors``.
    requires : tuple of Property
        Properties of every graph before the pass.
    ensures : tuple of Property
        Properties of the graph after it.
    """

    name: ClassVar[str]
    requires: ClassVar[tuple[Property, ...]] = ()
    ensures: ClassVar[tuple[Property, ...]] = ()

    def __post_init__(self) -> None:
        try:
            for option in options_of(type(self)):
                self._set(option.name, option.checked(getattr(self, option.name)))
            self.check()
        except OptionError as error:
            where = error.where or f"pass `{self.name}`"
            raise OptionError(error.what, where, error.hint) from None

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def check(self) -> None:  # noqa: B027 (most passes have nothing to check)
        """Check the options together; the type of each is checked already.

        Raises
        ------
        OptionError
            If a value is not allowed.
        """

    @abstractmethod
    def run(self, graph: Graph) -> Graph:
        """Return the transformed program; `graph` itself if nothing changes."""


AnyPass = TypeVar("AnyPass", bound=Pass)
PASSES: Registry[type[Pass]] = Registry("pass", PassError)
"""All passes by name, in the order of registration."""


def register_pass(kind: type[AnyPass]) -> type[AnyPass]:
    """Make a pass known by its name: to pipelines in text, ``shardwright opt`` and the docs.

    Raises
    ------
    PassError
        If the class is no pass, or another pass has its name.

    Examples
    --------
    >>> @register_pass
    ... @dataclass(frozen=True)
    ... class Nothing(Pass):
    ...     '''Leave the program as it is.'''
    ...
    ...     name = "nothing"
    ...
    ...     def run(self, graph: Graph) -> Graph:
    ...         return graph
    """
    where = f"class {getattr(kind, '__qualname__', kind)}"
    if not (isinstance(kind, type) and issubclass(kind, Pass)):
        raise PassError("a pass is a subclass of `shardwright.passes.base.Pass`", where)
    if not is_dataclass(kind) or not kind.__dataclass_params__.frozen:
        hint = "write `@dataclass(frozen=True)` between `@register_pass` and the class"
        raise PassError("a pass is a frozen dataclass", where, hint)
    name = getattr(kind, "name", None)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise PassError("a pass has a name in lower case", where, 'write `name = "my_pass"`')
    if not isinstance(kind.requires, tuple) or not isinstance(kind.ensures, tuple):
        raise PassError(f"pass `{name}` requires or ensures no tuple", where, "write `(LOWERED,)`")
    for item in (*kind.requires, *kind.ensures):
        if not isinstance(item, Property):
            hint = "import properties from `shardwright.dataflow.properties`"
            raise PassError(f"pass `{name}` names the property {item!r}", where, hint)
        if item not in PROPERTIES:
            known = f"expected some of {', '.join(known.name for known in PROPERTIES)}"
            what = f"pass `{name}` requires or ensures the unknown property `{item.name}`"
            raise PassError(what, where, known)
    PASSES.register(kind)
    return kind


@cache
def options_of(kind: type[Pass]) -> tuple[Option, ...]:
    """Return the options of a pass, in the order of its fields."""
    hints = get_type_hints(kind, include_extras=True)
    meanings = _meanings(kind.__doc__ or "")
    options = []
    for item in fields(kind):  # type: ignore[arg-type]
        hint, mark = hints[item.name], None
        if get_origin(hint) is Annotated:
            hint, *marks = get_args(hint)
            mark = next((m for m in marks if isinstance(m, Range | Spelled)), None)
        default = item.default
        if item.default_factory is not MISSING:
            default = item.default_factory()
        options.append(Option(item.name, hint, default, mark, meanings.get(item.name, "")))
    return tuple(options)


def _meanings(docstring: str) -> dict[str, str]:
    """Return the text of each name in the section `Parameters` of a docstring."""
    _, _, section = cleandoc(docstring).partition("Parameters\n----------\n")
    section = re.split(r"\n\n?\w+\n-+\n", section)[0]
    meanings: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        if line and not line[0].isspace():
            name = line.partition(" :")[0]
        elif name and line.strip():
            meanings[name] = f"{meanings.get(name, '')} {line.strip()}".strip()
    return meanings


def summary_of(kind: type[Pass]) -> str:
    """Return the first line of the docstring of a pass."""
    return cleandoc(kind.__doc__ or "").partition("\n")[0].replace("``", "`")
