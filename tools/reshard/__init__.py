"""``shardwright reshard``: a checkpoint for another plan, as one file, or as an adapter of peft."""

import argparse
from pathlib import Path

from shardwright.api import read_plan
from shardwright.ir.files.writing import check_names, write_files
from shardwright.ir.units import bytes_text
from shardwright.runtime.checkpoints import check_program, open_checkpoint, reshard
from shardwright.tools.console.arguments import UsageError
from shardwright.tools.reports.documents import print_document
from shardwright.zoo.loading import pretrained

_ADAPTER = "the adapter"


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
    text = "write the adapters that this plan has trained, in the files of peft"
    parser.add_argument("--adapter", type=Path, metavar="PLAN", help=text)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help=text)
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Write the checkpoint, and print where it is."""
    ways = {
        "--to": arguments.to is not None,
        "--merge": arguments.merge,
        "--adapter": arguments.adapter is not None,
    }
    if sum(ways.values()) != 1:
        given = [name for name, is_given in ways.items() if is_given]
        raise UsageError(
            f"{_listed([*ways])}: expected one of them, got {_listed(given) or 'none'}",
            hint="leave the others out" if given else "add `--to PLAN`",
        )
    if arguments.adapter is not None:
        return _adapter(arguments)
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


def _listed(options: list[str]) -> str:
    return " and ".join(f"`{name}`" for name in options)


def _adapter(arguments: argparse.Namespace) -> int:
    """Write adapters in the files of peft, and print where they are."""
    plan, source = read_plan(arguments.adapter), open_checkpoint(arguments.checkpoint)
    check_program(source, plan.program)
    begins, alpha = pretrained(plan.document.model)
    trained = {
        p.name: source.region(p.name, tuple(slice(0, size) for size in p.value.type.shape))
        for p in plan.model.parameters
        if p.trainable
    }
    files = begins.adapter_files(trained, alpha)
    check_names(arguments.out, files, _ADAPTER, lambda _: False)
    write_files(arguments.out, files, _ADAPTER)
    size = sum(map(len, files.values()))
    if arguments.json:
        document = {
            "adapter": str(arguments.out),
            "step": source.manifest.progress.step,
            "tensors": len(trained),
            "bytes": size,
        }
        print_document(document)
        return 0
    step = source.manifest.progress.step
    print(f"{arguments.out}: step {step}, {len(trained)} tensors for peft, {bytes_text(size)}")
    return 0
