"""``shardwright export``: a plan as files of another system."""

import argparse
from pathlib import Path

from shardwright.api import read_plan
from shardwright.exports.table import EXPORTS, check_new, export, write_export
from shardwright.tools.reports.documents import print_document


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("plan", type=Path, metavar="PLAN", help="directory of a plan")
    text = "; ".join(f"{name}: {what}" for name, (_, what) in EXPORTS.items())
    parser.add_argument("--to", required=True, choices=tuple(EXPORTS), help=text)
    text = "folder of the files, which is new or empty"
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help=text)
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Write the files, and print their names and the notes."""
    check_new(arguments.out)
    exported = export(read_plan(arguments.plan), arguments.to)
    write_export(arguments.out, exported)
    if arguments.json:
        names = sorted(exported.files)
        document = {"folder": str(arguments.out), "files": names, "notes": list(exported.notes)}
        print_document(document)
        return 0
    print(f"{arguments.out}: {', '.join(sorted(exported.files))}")
    for note in exported.notes:
        print(f"note: {note}")
    return 0
