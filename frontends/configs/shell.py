"""Flags in a shell script: its assignments, arrays and continued lines, without running it."""

import re
import shlex
from collections.abc import Iterator, Mapping

from shardwright.frontends.configs.reading import Reading, Several
from shardwright.ir.files.reading import DEEPEST, MOST_DIGITS

_ASSIGNED = re.compile(r"^\s*(?:export\s+|local\s+)?([A-Za-z_]\w*)(\+?)=(?!\()(.*)$")
_VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^}]*))?\}|\$(\w+)")
_SUM = re.compile(r"\$\(\(\s*([^()]*?)\s*\)\)")
# Characters of a script with its variables written out. Published scripts have some 10,000; half
# would refuse none of them, and twice as many take twice the memory before a script is refused.
_LONGEST = 10_000_000
_MOST = 2**18  # characters as it is written: they are read one by one, a million in four seconds


class _Variables(dict[str, str]):
    """The variables of a script, and how long what was written out of them is."""

    def __init__(self, reading: Reading) -> None:
        self._reading, self._written = reading, 0

    def _spend(self, characters: int) -> None:
        """Count what is written out.

        Raises
        ------
        ModelError
            If it is too much.
        """
        self._written += characters
        if self._written > _LONGEST:
            raise self._reading.error(
                f"it has more than {_LONGEST:,} characters, its variables written out"
            )

    def substitute(self, match: re.Match[str]) -> str:
        """Return what stands for a variable."""
        text = self.get(match[1] or match[3], match[2] or match[0])
        self._spend(len(text))
        return text


def flags_of(reading: Reading, text: str) -> dict[str, object]:
    """Return the flags in a text: a command line, or a script with one.

    Raises
    ------
    ModelError
        If the text cannot be read.
    """
    if len(text) > _MOST:
        raise reading.error(f"it has {len(text):,} characters, expected at most {_MOST:,}")
    lines = _joined(text)
    variables = _Variables(reading)
    found: dict[str, object] = {}
    for line in lines:
        match = _ASSIGNED.match(line)
        if match and not match[2]:
            value = _expanded(_unquoted(match[3]), variables)
            variables[match[1]] = value
            if not value.lstrip().startswith("--"):
                continue
            line = value
        for name, given in _flags(_words(reading, line), variables):
            known = found.setdefault(name, given)
            if known != given:
                values = known.values if isinstance(known, Several) else (known,)
                found[name] = Several((*values, given))
    return found


def _joined(text: str) -> list[str]:
    """Return the lines without comments and continuations."""
    kept = []
    for line in text.splitlines():
        bare = re.sub(r"(^|\s)#.*$", "", line)
        kept.append(bare.rstrip())
    joined = re.sub(r"\\\s*\n", " ", "\n".join(kept))
    joined = re.sub(r'="([^"]*)"', lambda m: '="' + m[1].replace("\n", " ") + '"', joined)
    return [line for line in joined.splitlines() if line.strip()]


def _unquoted(text: str) -> str:
    return text.strip().strip("\"'").strip()


def _words(reading: Reading, line: str) -> list[str]:
    line = re.sub(r"^\s*\w+\+?=\(|\)\s*$", " ", line)
    try:
        words = shlex.split(line)
    except ValueError as error:
        if "--" not in line:
            return []
        raise reading.error(f"the line `{line.strip()}` cannot be read: {error}") from None
    return [part for word in words for part in (word.split() if "--" in word else [word])]


def _flags(words: list[str], variables: _Variables) -> Iterator[tuple[str, str | bool]]:
    """Yield the flags among words, each with its value, or true."""
    i = 0
    while i < len(words):
        word = words[i]
        i += 1
        if not re.match(r"--[A-Za-z]", word):
            continue
        name, equals, value = word[2:].partition("=")
        values = [value] if equals else []
        while not equals and i < len(words) and _is_value(words[i]):
            values.append(words[i])
            i += 1
        text = _unquoted(_expanded(" ".join(values), variables))
        given: str | bool = text if values else True
        yield name.replace("_", "-"), given


def _is_value(word: str) -> bool:
    """Return whether a word belongs to the flag before it: no flag, no script to run, no end."""
    ends = (")", "\\", "|", "&&", ";", "2>&1", ">")
    return not word.endswith(".py") and not word.startswith("--") and word not in ends


def _expanded(text: str, variables: _Variables) -> str:
    """Return a text with the variables that are known, and products of whole numbers."""
    for _ in range(DEEPEST):
        before = text
        text = _VARIABLE.sub(variables.substitute, text)
        text = _SUM.sub(lambda m: _computed(m[1], variables), text)
        if text == before:
            break
    return text


def _computed(text: str, variables: Mapping[str, str]) -> str:
    """Return the value of a product or quotient of whole numbers; the text itself otherwise."""
    parts = re.split(r"\s*([*/])\s*", text)
    numbers = [variables.get(part, part) for part in parts[::2]]
    if not all(number.isdecimal() and len(number) <= MOST_DIGITS for number in numbers):
        return f"$(({text}))"
    value = int(numbers[0])
    for sign, number in zip(parts[1::2], numbers[1:], strict=True):
        if sign == "/" and int(number) == 0:
            return f"$(({text}))"
        value = value * int(number) if sign == "*" else value // int(number)
        if value >= 10**MOST_DIGITS:
            return f"$(({text}))"
    return str(value)
