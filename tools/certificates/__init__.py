"""``shardwright certificates``: make certificates to try encrypted messages with."""

import argparse
import os
from getpass import getpass
from pathlib import Path

from shardwright.ir.values import POSITIVE
from shardwright.server.certificates import make_certificates
from shardwright.tools.console.arguments import UsageError, add_number

_HOSTS = ("localhost", "127.0.0.1")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="where to write them")
    parser.add_argument(
        "--host",
        action="append",
        metavar="HOST",
        help="name or address of a host with a scheduler or a server; may be repeated (default "
        "localhost and 127.0.0.1)",
    )
    add_number(parser, "--days", POSITIVE, "days until they expire (default 365)", "N", 365.0)
    for side in ("server", "client"):
        parser.add_argument(
            f"--{side}_password",
            default="",
            metavar="WHERE",
            help=f"where the password of the files with the key of the {side} is: `prompt`, "
            "`env:VARIABLE` or `file:PATH` (default none)",
        )


def run(arguments: argparse.Namespace) -> int:
    """Write the certificates, and print the files."""
    files = make_certificates(
        arguments.folder,
        arguments.host or _HOSTS,
        arguments.days,
        _password("--server_password", arguments.server_password),
        _password("--client_password", arguments.client_password),
    )
    for path in files:
        print(path)
    return 0


def _password(flag: str, where: str) -> str:
    """Return a password, which is no argument: other users of the host can read those.

    Raises
    ------
    UsageError
        If there is none where the argument says.
    """
    kind, _, name = where.partition(":")
    if not where:
        return ""
    if where == "prompt":
        found = getpass(f"password of {flag}: ")
    elif kind == "env" and name:
        found = os.environ.get(name, "")
    elif kind == "file" and name:
        try:
            found = Path(name).read_text("utf-8").partition("\n")[0]
        except (OSError, UnicodeError) as error:
            raise UsageError(f"`{flag}` cannot be read from `{name}`: {error}") from None
    else:
        raise UsageError(
            f"`{flag}` is no place of a password",  # which may be what was given: it is not shown
            hint="write `prompt`, `env:VARIABLE` or `file:PATH`: other users can read arguments",
        )
    if not found:
        raise UsageError(f"`{flag} {where}`: there is no password", hint="or leave the option out")
    return found
