"""The only ways in which text of a plan enters a file of code.

Names in a plan come from files, modules and command lines, so any text may stand in them. In code
they are data: `prose` for comments and docstrings, `literal` for strings.
"""

import json


def prose(text: str) -> str:
    r"""Return text for a comment or a docstring, which it cannot end.

    It stays on its line: line breaks and other characters that are not printed become spaces,
    quotes apostrophes, and backslashes slashes.

    Examples
    --------
    >>> prose("for windows\nof rows")
    'for windows of rows'
    """
    kept = (character if character.isprintable() else " " for character in text)
    return "".join(kept).replace('"', "'").replace("\\", "/")


def literal(text: str) -> str:
    r"""Return the string in double quotes that Python, TOML and YAML read as the text.

    Examples
    --------
    >>> literal('of "rows"')
    '"of \\"rows\\""'
    """
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(c if c.isprintable() else _escaped(ord(c)) for c in quoted)


def _escaped(code: int) -> str:
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
