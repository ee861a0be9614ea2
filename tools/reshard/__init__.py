"""``shardwright reshard``: cut a checkpoint anew for another plan, or merge it to one file."""

import argparse
from pathlib import Path

from shardwright.api import read_plan
from shardwright.ir.units import bytes_text
from shardwright.runtime.checkpoints import open_checkpoint, reshard
from shardwright.tools.documents import print_document
from shardwright.tools.main import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "checkpoint",
        type=Path,
        metavar="CHECKPOINT",
        help="a checkpoint of `run --checkpoints`, or a folder of them, of which the newest is "
        "taken",
    )
    parser.add_argument("--to", type=Path, metavar="PLAN", help="directory of the plan")
    text = "merge all slices: one file of whole tensors, `rank.0.safetensors`"
    parser.add_argument("--merge", action="store_true", help=text)
    text = "folder of the new checkpoint, which is called `step-N` as before"
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help=text)
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Write the checkpoint, and print where it is."""
    if (arguments.to is None) == (not arguments.merge):
        found = "neither" if arguments.to is None else "both"
        raise UsageError(
            f"`--to` and `--merge`: expected one of them, got {found}",
            hint="add `--to PLAN`" if arguments.to is None else "leave one out",
        )
    program = None if arguments.to is None else read_plan(arguments.to).program
    source = open_checkpoint(arguments.checkpoint)
    path = reshard(source, program, arguments.out)
    made = open_checkpoint(path).manifest
    size = sum(file.bytes for file in made.files.values())
    if arguments.json:
        document = {
            "checkpoint": str(path),
            "step": made.progress.step,
            "ranks": made.ranks,
            "tensors": len(made.tensors),
            "bytes": size,
        }
        print_document(document)
        return 0
    print(
        f"{path}: step {made.progress.step}, {len(made.tensors)} tensors for {made.ranks} "
        f"rank{'s' * (made.ranks > 1)}, {bytes_text(size)}"
    )
    return 0
