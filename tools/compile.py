"""``shardwright compile``: from a model to a plan."""

import argparse
import hashlib
import re
from pathlib import Path

from shardwright.compiler.page.page import check_page
from shardwright.compiler.plans.files import (
    check_replaceable,
    file_names,
    listed_ranks,
    planned_model,
)
from shardwright.cost_model.model_flops import batch_size
from shardwright.cost_model.pipelines.mixed import MixedCluster, any_cluster
from shardwright.cost_model.timeline import to_chrome_trace
from shardwright.ir.errors import NoPlanError
from shardwright.ir.files.writing import begins, check_file, write_file
from shardwright.models import with_batch, with_new_size
from shardwright.passes.manager import check_graphs
from shardwright.tools.answers.told import Told
from shardwright.tools.answers.trained import print_trained
from shardwright.tools.answers.training import Asked, add_training
from shardwright.tools.console.arguments import UsageError
from shardwright.tools.console.endings import ExitCode
from shardwright.tools.console.options import (
    HTML,
    add_compile_options,
    add_html,
    add_model,
    add_sequence,
    add_verbose,
    compile_model,
    graphs_folder,
    memory_limit,
    memory_limit_of_plan,
    take_batch,
)
from shardwright.tools.console.tables import print_line
from shardwright.tools.fit.choice import add_robust, choose_robust
from shardwright.tools.plan_files import read_plan_file
from shardwright.tools.reports.documents import (
    compile_document,
    no_plan_document,
    print_document,
    timeline_of,
)
from shardwright.tools.reports.report import FULL, SCREEN, VERBOSE, print_compilation

PAGE = "report.html"
_TRACE = "the trace"
_LONGEST_NAME = 80  # characters of a default folder
_is_trace = begins(b'{\n "displayTimeUnit": "ms",\n "traceEvents": ')


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_model(parser)
    add_compile_options(parser)
    add_sequence(parser)
    add_robust(parser)
    add_training(parser)
    output = parser.add_argument_group("output")
    output.add_argument(
        "--out", type=Path, metavar="DIR", help="folder of the plan (default plans/MODEL-SIZES-N)"
    )
    output.add_argument(
        "--ranks", metavar="LIST", help="ranks whose listings are written: `0,4-7` (default 0-15)"
    )
    output.add_argument(
        "--dump-ir", type=Path, metavar="DIR", help="write the graph after every pass: NN_PASS.ir"
    )
    output.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="write the timeline of a step, for chrome://tracing",
    )
    add_html(output, f"{PAGE} in the folder of the plan")
    extent = output.add_mutually_exclusive_group()
    add_verbose(extent)
    extent.add_argument("--full", action="store_true", help="print every row of every table")
    output.add_argument(
        "--trained", action="store_true", help="list what is trained, and what is not, and why"
    )
    output.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Compile, write the plan, and print the report."""
    arguments.model = with_new_size(arguments.model, "sequence", arguments.sequence)
    read_plan_file(arguments)
    asked = Asked.of(arguments)
    ranks = None if arguments.ranks is None else _ranks(arguments.ranks, arguments.devices)
    printed = next((f for f in ("full", "verbose", "trained") if getattr(arguments, f)), None)
    if arguments.json and printed is not None:
        flag = f"--{printed}"
        raise UsageError(
            f"`{flag}` is about the report, `--json` prints a document",
            hint="leave one of them out",
        )
    chosen = take_batch(arguments, arguments.model, arguments.devices)
    directory = _directory(arguments)
    page = directory / PAGE if arguments.html == HTML else arguments.html
    graphs, detail = graphs_folder(arguments.dump_ir)
    _check_files(arguments, directory, page, ranks)
    if graphs is not None:
        check_graphs(graphs)
    choose_robust(arguments)
    try:
        compilation = compile_model(arguments.model, arguments)
    except NoPlanError as error:
        if arguments.json:
            _print_no_plan(error, arguments)
        raise
    asked.check(arguments.model, batch_size(compilation.plan.model).tokens)
    limit = memory_limit_of_plan(arguments, compilation)
    timeline = timeline_of(compilation, limit)
    compilation.write(directory, ranks)
    if graphs is not None:
        compilation.compiled.passes.write(graphs, detail)
    if arguments.trace is not None:
        write_file(arguments.trace, to_chrome_trace(timeline).encode(), _TRACE, _is_trace)
    told = Told.of(compilation, compilation.cluster, timeline, limit, asked)
    if page is not None:
        compilation.write_page(page, timeline, told.sentences(chosen))
    if arguments.json:
        document = compile_document(compilation, limit, directory, timeline)
        print_document({**document, **told.training_document})
    else:
        extent = FULL if arguments.full else VERBOSE if arguments.verbose else SCREEN
        print_compilation(compilation, timeline, directory, extent, told.sentences(chosen))
        if arguments.trained:
            print_trained(compilation.plan.model)
        if page is not None:
            print_line("page", str(page))
    return ExitCode.INTERRUPTED if compilation.is_interrupted else 0


def _check_files(
    arguments: argparse.Namespace, directory: Path, page: Path | None, ranks: list[int] | None
) -> None:
    """Check the output files before a long search."""
    names = file_names(listed_ranks(arguments.devices, ranks))
    check_replaceable(directory, names)
    for flag, path in (("--trace", arguments.trace), ("--html", page)):
        if path is not None and path.name in names and path.parent.resolve() == directory.resolve():
            raise UsageError(
                f"`{flag}` names a file of the plan, `{path}`", hint="name another file"
            )
    if arguments.trace is not None:
        check_file(arguments.trace, _TRACE, _is_trace)
    if page is None:
        return
    if page.parent != directory or directory.exists():  # the folder of the plan will be made
        check_page(page)
    if arguments.trace is not None and arguments.trace.resolve() == page.resolve():
        raise UsageError(
            f"`--trace` and `--html` name the same file, `{page}`", hint="name two files"
        )


def _print_no_plan(error: NoPlanError, arguments: argparse.Namespace) -> None:
    cluster = any_cluster(arguments.cluster)
    parts = cluster.parts if isinstance(cluster, MixedCluster) else (cluster,)
    limit = min(memory_limit(arguments, part) for part in parts)
    model = with_batch(arguments.model, arguments.batch)
    document = no_plan_document(error, model, cluster, arguments.devices, limit, arguments)
    print_document(document)


def _directory(arguments: argparse.Namespace) -> Path:
    """Return the folder of the plan.

    Raises
    ------
    UsageError
        If no folder is named, and the default one has a plan of another model.
    """
    if arguments.out is not None:
        return arguments.out
    model = with_batch(arguments.model, arguments.batch)
    directory = default_directory(model, arguments.devices)
    other = planned_model(directory)
    if other not in (None, model):
        raise UsageError(
            f"the default folder `{directory}` has a plan of another model, `{other}`",
            hint="name a folder with `--out`",
        )
    return directory


def default_directory(model: str, devices: int) -> Path:
    """Return the default folder of a plan; each model with its sizes has its own.

    Examples
    --------
    >>> str(default_directory("gpt:layers=2,batch=8", 4))
    'plans/gpt-layers2-batch8-4'
    >>> str(default_directory("models/mine.py:network", 4))
    'plans/mine-network-4'
    """
    file, _, rest = model.rpartition(".py:")
    name, _, sizes = rest.partition(":")
    words = [Path(file).name, Path(name).name.removesuffix(".onnx"), *sizes.split(",")]
    plain = "-".join(re.sub(r"[^\w.-]", "_", word.replace("=", "")) for word in words if word)
    if len(plain) > _LONGEST_NAME:
        digest = hashlib.sha256(plain.encode()).hexdigest()
        plain = f"{plain[:_LONGEST_NAME]}-{digest[:8]}"
    return Path("plans") / f"{plain}-{devices}"


def _ranks(text: str, devices: int) -> list[int]:
    """Return the ranks in a list such as ``0,4-7``."""
    ranks: list[int] = []
    for item in text.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", item.strip())
        if not match:
            raise UsageError(f"`{item}` is not a rank", hint="write `0,4-7`")
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last:
            raise UsageError(f"the range `{item}` is empty", hint=f"write `{last}-{first}`")
        if last >= devices:
            raise UsageError(
                f"there is no rank {last}, the program has {devices}",
                hint=f"ranks are 0 to {devices - 1}",
            )
        ranks += range(first, last + 1)
    return ranks
