"""The one writer of code: every text that enters an exported file passes through it.

Names in a plan come from files, modules and command lines, so any text may stand in them. A file is
made of templates, which stand in the program, and of what fills their fields: code that was made
here before, or data, which is written as a literal. So no text of a plan becomes code.
"""

import json
import keyword
import re
import textwrap
from collections.abc import Iterable, Mapping
from math import isfinite
from pathlib import Path
from typing import Final

from shardwright.ir.errors import PlanError

_WIDTH: Final = 98  # columns of a line, as the product's own
_OF_CODE: Final = (".py", ".toml", ".sh", ".mlir", ".yaml", ".json")
_WORD: Final = re.compile(r"[\w.,:|*()+-]+", re.ASCII)


class Code(str):
    """A piece of code; only the functions of this module make one."""

    __slots__ = ()


def code(template: str, *fields: object, **named: object) -> Code:
    r"""Fill the fields of a template: with code as it is, with all else as literals of Python.

    Parameters
    ----------
    template : str
        A literal of the program, as `str.format` has it; its fields say nothing but their names.
    *fields, **named : object
        Code, or data: texts, numbers, None, tuples, lists, and dictionaries of these.

    Raises
    ------
    TypeError
        If something is neither.

    Examples
    --------
    >>> code("{} = {}", identifier("x"), ("it's", 1))
    'x = ("it\'s", 1)'
    """
    made = {key: _written(value) for key, value in named.items()}
    return Code(template.format(*map(_written, fields), **made))


def fixed(text: str) -> Code:
    """Return a literal of the program as it is, without fields."""
    return Code(text)


def lines(parts: Iterable[Code]) -> Code:
    """Return pieces of code, each on lines of its own."""
    return Code("\n".join(map(_checked, parts)))


def listed(parts: Iterable[object], between: str = ", ") -> Code:
    """Return pieces of code, or literals, with a literal of the program between them."""
    return Code(between.join(map(_written, parts)))


def in_parentheses(parts: Iterable[object]) -> Code:
    """Return a tuple of pieces of code, or of literals."""
    items = list(parts)
    return code("({},)" if len(items) == 1 else "({})", listed(items))


def identifier(text: str) -> Code:
    """Return a name of Python, with dots between its parts.

    Raises
    ------
    PlanError
        If it is none.
    """
    parts = text.split(".")
    if not all(part.isidentifier() and not keyword.iskeyword(part) for part in parts):
        raise PlanError(
            f"`{prose(text)}` is no name in Python, and the code would have to name it",
            hint="rename the module, or export `torch`, where names are data",
        )
    return Code(text)


def word(text: str) -> Code:
    """Return a word, which is one argument, value or key wherever it stands in a line.

    Raises
    ------
    PlanError
        If it has other characters than letters, digits and some signs.
    """
    if not _WORD.fullmatch(text):
        raise PlanError(f"`{prose(text)}` is no word that can stand in a script")
    return Code(text)


def prose(text: str) -> Code:
    r"""Return text for a comment or a docstring, which it cannot end.

    It stays on its line: line breaks and other characters that are not printed become spaces,
    quotes apostrophes, and backslashes slashes.

    Examples
    --------
    >>> prose("for windows\nof rows")
    'for windows of rows'
    """
    kept = "".join(character if character.isprintable() else " " for character in text)
    return Code(kept.replace('"', "'").replace("\\", "/"))


def paragraph(text: str, first: str = "", rest: str = "", width: int = _WIDTH) -> Code:
    """Return prose in lines.

    Parameters
    ----------
    text : str
        The text.
    first, rest : str
        What the first line, and all others, begin with: literals of the program.
    width : int
        Columns of a line.
    """
    filled = textwrap.fill(
        prose(text), width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
    )
    return Code(filled)


def literal(text: str) -> Code:
    r"""Return the string in double quotes that Python, TOML and YAML read as the text.

    Examples
    --------
    >>> literal('of "rows"')
    '"of \\"rows\\""'
    """
    quoted = json.dumps(text, ensure_ascii=False)
    return Code("".join(c if c.isprintable() else _escaped(ord(c)) for c in quoted))


def document(value: object, indent: int | None = None) -> Code:
    """Return JSON."""
    return Code(json.dumps(value, indent=indent))


def own_module(path: Path) -> Code:
    """Return a module of this product, which becomes a part of an export as it is."""
    return Code(path.read_text(encoding="utf-8"))


def wrapped(line: Code) -> Code:
    """Return a line of a call; one that is long with its arguments on a line of their own.

    Examples
    --------
    >>> wrapped(code("x = f(1, 2)"))
    'x = f(1, 2)'
    """
    if len(line) <= _WIDTH:
        return line
    start, _, rest = line.partition("(")
    arguments, _, end = rest.rpartition(")")
    space = " " * (len(line) - len(line.lstrip()))
    return Code(f"{start}(\n{space}    {arguments}\n{space}){end}")


def checked_files(files: Mapping[str, Code | bytes]) -> dict[str, bytes]:
    """Return the bytes of files, whose texts were made here.

    Raises
    ------
    TypeError
        If one was not.
    """
    for name, content in files.items():
        if isinstance(content, bytes) and name.endswith(_OF_CODE):
            raise TypeError(f"`{name}` is written as bytes, expected code")
    return {
        name: content if isinstance(content, bytes) else _checked(content).encode()
        for name, content in files.items()
    }


def _checked(part: Code) -> Code:
    if not isinstance(part, Code):
        raise TypeError(f"a text of code was not made by the writer: {str(part)[:80]!r}")
    return part


def _written(value: object) -> str:
    """Return code as it is, and data as a literal of Python."""
    return value if isinstance(value, Code) else _data(value)


def _data(value: object) -> str:
    """Return data as a literal; numbers that are not finite have none, and are made of a text."""
    if isinstance(value, float) and not isfinite(value):
        return f"float({str(value)!r})"
    if isinstance(value, str):
        return str.__repr__(value)
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if type(value) in (tuple, list):
        inside = ", ".join(map(_data, value))  # type: ignore[call-overload]
        if isinstance(value, list):
            return f"[{inside}]"
        return f"({inside}{',' * (len(value) == 1)})"  # type: ignore[arg-type]
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_data(k)}: {_data(v)}' for k, v in value.items())}}}"
    raise TypeError(f"a {type(value).__name__} has no literal")


def _escaped(code: int) -> str:
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
