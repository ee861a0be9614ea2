"""``shardwright compile``: from a model to a plan."""

import argparse
import re
from pathlib import Path

from shardwright.api import Compilation
from shardwright.cost_model.timeline import simulate, to_chrome_trace
from shardwright.passes.plan_files import check_replaceable
from shardwright.tools.documents import compile_document, print_document
from shardwright.tools.main import UsageError
from shardwright.tools.options import (
    add_compile_options,
    add_model,
    compile_model,
    dumping,
)
from shardwright.tools.report import BRIEF, FULL, USUAL, print_compilation


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_model(parser)
    add_compile_options(parser)
    output = parser.add_argument_group("what is written")
    output.add_argument(
        "--out", type=Path, metavar="DIR", help="folder of the plan (plans/MODEL-N)"
    )
    output.add_argument("--ranks", metavar="LIST", help="write listings of these: `0,4-7` (0-15)")
    output.add_argument(
        "--dump-ir", type=Path, metavar="DIR", help="write the graph after every pass: NN_PASS.ir"
    )
    output.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="write the timeline of a step, for chrome://tracing",
    )
    extent = output.add_mutually_exclusive_group()
    extent.add_argument("--full", action="store_true", help="print every row of every table")
    extent.add_argument("--brief", action="store_true", help="print what matters most")
    output.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Compile, write the plan, and tell about it."""
    ranks = None if arguments.ranks is None else _ranks(arguments.ranks)
    if arguments.out is not None:
        check_replaceable(arguments.out)  # before a search that may take long
    if arguments.trace is not None and not arguments.trace.parent.is_dir():
        raise UsageError(
            f"the trace cannot be written: there is no folder `{arguments.trace.parent}`"
        )
    with dumping(arguments.dump_ir) as dump:
        compilation = compile_model(arguments.model, arguments, **dump)
        directory = compilation.write(arguments.out or default_directory(compilation), ranks)
    timeline = simulate(compilation.plan.program, compilation.cluster)
    if arguments.trace is not None:
        arguments.trace.write_text(to_chrome_trace(timeline))
    if arguments.json:
        print_document(compile_document(compilation))
    else:
        extent = FULL if arguments.full else BRIEF if arguments.brief else USUAL
        print_compilation(compilation, timeline, directory, extent)
    return 0


def default_directory(compilation: Compilation) -> Path:
    """Return where a plan is written unless a person says so."""
    document = compilation.plan.document
    name = document.model.rpartition(".py:")[2].partition(":")[0]
    plain = re.sub(r"[^\w.-]", "_", name)
    return Path("plans") / f"{plain}-{document.devices}"


def _ranks(text: str) -> list[int]:
    """Return the ranks in a list such as ``0,4-7``."""
    ranks: list[int] = []
    for item in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", item.strip())
        if not match:
            raise UsageError(f"`{item}` is no rank", hint="write `0,4-7`")
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last:
            raise UsageError(f"`{item}` holds no rank", hint=f"write `{last}-{first}`")
        ranks += range(first, last + 1)
    return ranks
