"""``shardwright run``: train on a plan."""

import argparse
import hashlib
import math
import signal
import statistics
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from shardwright.api import run as train
from shardwright.api import seed_of_run
from shardwright.batches import samples_for
from shardwright.compiler.plans.files import read_plan
from shardwright.compiler.plans.plan import Plan
from shardwright.ir.errors import ExecutionError
from shardwright.ir.mesh import Mesh
from shardwright.ir.text import to_text
from shardwright.ir.units import ROWS, bytes_text, seconds_text
from shardwright.ir.values import NOT_NEGATIVE_INTEGER, POSITIVE_INTEGER, SEED
from shardwright.runtime import (
    Communicator,
    LocalCommunicator,
    MpiCommunicator,
    StepRecord,
    check_capacity,
)
from shardwright.runtime.agreement import check_equal, differing_process, in_all, told_once
from shardwright.runtime.checkpoints import Writing
from shardwright.runtime.flat.rank_timeline import (
    RunTimeline,
    check_timeline_file,
    figures,
    write_timeline,
)
from shardwright.tools.console.arguments import UsageError, add_number, width
from shardwright.tools.console.endings import ExitCode, say
from shardwright.tools.console.progress import counting
from shardwright.tools.console.tables import print_table, styled
from shardwright.tools.reports.documents import print_document, run_document


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("plan", type=Path, metavar="PLAN", help="directory of a plan")
    add_backend(parser)
    _add_fast(parser)
    add_number(parser, "--steps", POSITIVE_INTEGER, "steps to train (default 20)", "N", 20)
    parser.add_argument(
        "--data",
        type=Path,
        metavar="PATH",
        help="a folder with the files of MNIST or CIFAR-10, or a text (default: built-in "
        "data that fits)",
    )
    add_number(parser, "--seed", SEED, "seed of the initial values (default the plan's)", "N")
    parser.add_argument(
        "--logs",
        type=Path,
        metavar="DIR",
        help="folder of the logs `rank.N/stdout` (default PLAN/logs)",
    )
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="PATH",
        help="start from a file of `--save`; or continue from a checkpoint, or the newest in a "
        "folder of `--checkpoints`",
    )
    parser.add_argument(
        "--save",
        type=Path,
        metavar="FILE",
        help="write a checkpoint of whole tensors at the end and at an interrupt",
    )
    parser.add_argument(
        "--checkpoints",
        type=Path,
        metavar="DIR",
        help="write checkpoints there at the end and at an interrupt, every rank its slices",
    )
    text = f"how many of these stay, the newest (default {Writing.keep}; 0: all)"
    add_number(parser, "--keep", NOT_NEGATIVE_INTEGER, text, "N")
    text = "write the checkpoint after every N steps, too"
    add_number(parser, "--save-every", POSITIVE_INTEGER, text, "N")
    parser.add_argument(
        "--timeline",
        type=Path,
        metavar="FILE",
        help="write what the ranks did when in the last steps, for chrome://tracing or Perfetto",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def _add_fast(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--fast",
        action="store_true",
        help="with `--backend mpi`: let reductions add in MPI's own order; faster, and the last "
        "digits depend on the number of processes",
    )


def add_backend(parser: argparse.ArgumentParser) -> None:
    """Add the option that chooses in which processes the ranks run."""
    parser.add_argument(
        "--backend",
        choices=("local", "mpi"),
        default="local",
        help="local: all ranks in this process (default); mpi: one process per rank, under mpiexec",
    )


def run(arguments: argparse.Namespace) -> int:
    """Train, and print the losses."""
    saves = arguments.save is not None or arguments.checkpoints is not None
    _check(arguments, saves)
    plan = agreed_plan(arguments.backend, lambda: read_plan(arguments.plan))
    records: list[StepRecord] = []
    with (
        communicator_of(arguments.backend, plan.mesh, fast=arguments.fast) as communicator,
        _heard_later(lambda: saves and bool(records)) as interrupted,
    ):
        speaks = communicator.ranks[0] == 0
        timeline = None if arguments.timeline is None else RunTimeline()
        if speaks and arguments.timeline is not None:
            check_timeline_file(arguments.timeline)
        check_capacity(plan.program, communicator.ranks)
        seed = seed_of_run(plan, arguments.seed, arguments.resume)
        if arguments.backend == "mpi":
            facts = {"--seed": seed, "--steps": arguments.steps, "--fast": arguments.fast}
            check_equal("options", facts, ExecutionError)
        samples = samples_for(plan.document.inputs, arguments.data, seed)
        steps = train(
            plan,
            arguments.steps,
            data=samples,
            communicator=communicator,
            log_directory=_logs(arguments),
            seed=seed,
            resume=arguments.resume,
            save=arguments.save,
            save_every=arguments.save_every,
            checkpoints=arguments.checkpoints,
            keep=Writing.keep if arguments.keep is None else arguments.keep,
            stop=interrupted,
            timeline=timeline,
        )
        with counting("training", arguments.steps if speaks else 0) as advance:
            for record in steps:
                records.append(record)
                advance(f"loss {record.loss:.4f}")
        if timeline is not None:
            write_timeline(arguments.timeline, timeline, communicator)
    if speaks and len(records) < arguments.steps:
        place = arguments.save or arguments.checkpoints
        say(f"interrupted after step {records[-1].step}, its state is in {place}")
    elif speaks:
        _tell(arguments, plan, records, samples.description)
        if timeline is not None and not arguments.json:
            print(f"timeline in {arguments.timeline}: {figures(timeline)}", flush=True)
    return 0 if len(records) == arguments.steps else ExitCode.INTERRUPTED


def _check(arguments: argparse.Namespace, saves: bool) -> None:
    """Refuse options that have no effect.

    Raises
    ------
    UsageError
        If there is one.
    """
    if arguments.save_every is not None and not saves:
        raise UsageError(
            "`--save-every` has no effect without `--save` or `--checkpoints`",
            hint="add `--save FILE`",
        )
    if arguments.keep is not None and arguments.checkpoints is None:
        raise UsageError(
            "`--keep` has no effect without `--checkpoints`", hint="add `--checkpoints DIR`"
        )
    if arguments.fast and arguments.backend == "local":
        raise UsageError(
            "`--fast` has no effect with `--backend local`", hint="add `--backend mpi`"
        )


@contextmanager
def _heard_later(can_wait: Callable[[], bool]) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether the user has interrupted.

    An interrupt waits for the end of a step; the second one, or one before any step, is raised.
    """
    heard: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        if heard or not can_wait():
            raise KeyboardInterrupt
        heard.append(number)

    # A signal that somebody else handles, or ignores, is left alone.
    ends = {signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
    own = {signal.SIGINT: signal.default_int_handler, **ends}
    taken = {number: before for number, before in own.items() if signal.getsignal(number) is before}
    for number in taken:
        signal.signal(number, hear)
    try:
        yield lambda: bool(heard)
    finally:
        for number, before in taken.items():
            signal.signal(number, before)


def agreed_plan(backend: str, read: Callable[[], Plan]) -> Plan:
    """Return the plan that is read; several processes must read the same.

    Raises
    ------
    ShardwrightError
        In the first process, if one of them cannot read it, or reads another one.
    """
    if backend == "local":
        return read()
    with told_once():
        plan = in_all(read)
        texts = plan.document.to_text(), to_text(plan.program)
        process = differing_process(hashlib.sha256(repr(texts).encode()).digest())
        if process is not None:
            raise ExecutionError(
                f"process {process} has read another plan than process 0",
                hint="give all processes the same folder, or copies of it",
            )
    return plan


@contextmanager
def communicator_of(backend: str, mesh: Mesh, *, fast: bool = False) -> Iterator[Communicator]:
    """Yield the communicator of a backend, which hosts ranks of a mesh."""
    if backend == "local":
        yield LocalCommunicator(mesh)
        return
    with MpiCommunicator(mesh, deterministic=not fast) as communicator:
        yield communicator


def _tell(arguments: argparse.Namespace, plan: Plan, records: list[StepRecord], data: str) -> None:
    if arguments.json:
        place = arguments.save or arguments.checkpoints
        print_document(run_document(plan, records, data, _logs(arguments), place))
        return
    seconds = statistics.median(record.seconds for record in records)
    title = f"{plan.document.model} on {plan.mesh.size} ranks, training on {data}"
    for line in textwrap.wrap(title, width(), break_on_hyphens=False):
        print(styled(line, "bold"))
    print()
    every = -(-len(records) // ROWS)
    groups = [records[i : i + every] for i in range(0, len(records), every)]
    means = [statistics.fmean(record.loss for record in group) for group in groups]
    highest = max((mean for mean in means if math.isfinite(mean)), default=0.0)
    rows = [_row(group, mean, highest) for group, mean in zip(groups, means, strict=True)]
    print_table(
        "", ("steps", "mean loss" if every > 1 else "loss", "", "time of a step"), rows, (0, 1, 3)
    )
    peak = max(record.peak_bytes for record in records)
    host = max(record.host_peak_bytes for record in records)
    beside = f" and {bytes_text(host)} of the host" if host else ""
    print(
        f"a step takes {seconds_text(seconds)}; peak memory of a rank {bytes_text(peak)}{beside}; "
        f"logs in {_logs(arguments)}"
    )
    sys.stdout.flush()


def _logs(arguments: argparse.Namespace) -> Path:
    return arguments.logs or arguments.plan / "logs"


def _row(group: Sequence[StepRecord], loss: float, highest: float) -> tuple[str, ...]:
    """Return the row of some steps, with a bar proportional to their loss."""
    first, last = group[0].step, group[-1].step
    # The highest loss has a bar of 40 columns.
    bar = "█" * round(40 * loss / highest) if math.isfinite(loss) and highest > 0 else ""
    seconds = statistics.median(record.seconds for record in group)
    steps = str(last) if first == last else f"{first}-{last}"
    return steps, f"{loss:.4f}", bar, seconds_text(seconds)
