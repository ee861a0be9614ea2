"""``shardwright certificates``: make certificates to try encrypted messages with."""

import argparse
from pathlib import Path

from shardwright.ir.values import POSITIVE
from shardwright.server.certificates import make_certificates
from shardwright.tools.main import add_number

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
            metavar="TEXT",
            help=f"password of the files with the key of the {side} (default none)",
        )


def run(arguments: argparse.Namespace) -> int:
    """Write the certificates, and print the files."""
    files = make_certificates(
        arguments.folder,
        arguments.host or _HOSTS,
        arguments.days,
        arguments.server_password,
        arguments.client_password,
    )
    for path in files:
        print(path)
    return 0
