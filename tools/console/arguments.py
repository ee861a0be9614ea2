"""Parsers of command lines, whose errors are those of the product.

It needs little, so that help is fast.
"""

import argparse
import re
import shutil
from collections.abc import Callable
from typing import Any, NoReturn

from shardwright.ir.errors import ShardwrightError
from shardwright.ir.values import Range, check_choice, number_in, suggestion

_WIDTH, _HELP_COLUMN = 100, 30


def width() -> int:
    """Return the number of columns of the terminal, or of ``COLUMNS``; 100 without either."""
    return shutil.get_terminal_size(fallback=(_WIDTH, 25)).columns


class UsageError(ShardwrightError):
    """The command line cannot be understood."""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help with aligned texts, at most as wide as the terminal."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=_HELP_COLUMN, width=min(width(), _WIDTH))


class Parser(argparse.ArgumentParser):
    """A parser whose errors are errors of the product."""

    def error(self, message: str) -> NoReturn:
        """Raise a `UsageError`; argparse would print the usage and exit."""
        choice = re.fullmatch(
            r"argument (.*): invalid choice: '(.*)' \(choose from (.*)\)", message
        )
        if choice:
            check_choice(choice[1], choice[2], choice[3].replace("'", "").split(", "))
        unknown = re.fullmatch(r"unrecognized arguments: (--\S+).*", message)
        near = unknown and suggestion(unknown[1].partition("=")[0], self._option_string_actions)
        raise UsageError(message, hint=near or f"see `{self.prog} --help`")


def add_number(
    group: argparse.ArgumentParser | argparse._ArgumentGroup,
    flag: str,
    allowed: Range,
    text: str,
    metavar: str,
    default: float | None = None,
    **others: Any,
) -> None:
    """Add an option that is a number in a range."""
    group.add_argument(
        flag, type=number(flag, allowed), default=default, metavar=metavar, help=text, **others
    )


def number(flag: str, allowed: Range) -> Callable[[str], Any]:
    """Return the function that reads the argument of a flag, and refuses it out of range."""

    def read(text: str) -> object:
        value = number_in(text)
        allowed.check(flag, value)
        return value if allowed.whole else float(value)

    return read
