"""``shardwright check``: compare a parallel PyTorch program with one device."""

import argparse
from dataclasses import asdict
from pathlib import Path

from shardwright.ir.errors import ModelError
from shardwright.ir.optional import optional
from shardwright.ir.values import NOT_NEGATIVE
from shardwright.tools.console.arguments import add_number
from shardwright.tools.reports.documents import print_document

_WHAT = {
    "loss": "the loss",
    "gradient": "the gradient of `{}`",
    "update": "`{}` after the step",
    "wait": "what `{}` returns",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    text = "a file with MESH, `inputs`, `reference` and `parallel`: see docs/check.md"
    parser.add_argument("program", type=Path, metavar="FILE", help=text)
    text = "seconds to search for changes that mend a program that is wrong (default 60; 0: none)"
    add_number(parser, "--time-limit", NOT_NEGATIVE, text, "S", 60.0)
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Check the program, print what is wrong, and return 1 if something is."""
    path: Path = arguments.program
    if not path.is_file():
        raise ModelError("no such file", str(path))
    judge = optional("shardwright.tools.check.judge", extra="torch", need="checking a program")
    answer = judge.check(path, arguments.time_limit)
    if arguments.json:
        print_document({"agrees": not answer.faults, **asdict(answer)})
        return 1 if answer.faults else 0
    for fault in answer.faults:
        place = f"{path}:{fault.line}" if fault.line else str(path)
        what = _WHAT[fault.what].format(fault.value)
        print(
            f"{place}: {what} on rank {fault.rank} is {fault.found}"
            + (f"; {fault.mend}" if fault.mend else "")
        )
    for mend in answer.mends:
        print(f"tried, and it mends it: {path}, {mend}")
    if any(fault.what != "wait" for fault in answer.faults) and not answer.mends:
        print(
            "no change of one line was found that mends it"
            + ("" if answer.searched else " (not all were tried)")
        )
    if not answer.faults:
        print(
            f"{path}: on {answer.ranks} ranks the loss and {answer.compared} gradients are those "
            "of one device, at these sizes and two random starts"
        )
    return 1 if answer.faults else 0
