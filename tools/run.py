"""``shardwright run``: train on a plan."""

import argparse
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shardwright.api import run as train
from shardwright.batches import samples_for
from shardwright.ir.mesh import Mesh
from shardwright.ir.units import bytes_text, seconds_text
from shardwright.passes.plan import Plan, read_plan
from shardwright.runtime import Communicator, LocalCommunicator, MpiCommunicator, StepRecord
from shardwright.tools.documents import print_document
from shardwright.tools.options import positive
from shardwright.tools.progress import counting
from shardwright.tools.tables import print_table

_ROWS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("plan", type=Path, metavar="PLAN", help="directory of a plan")
    parser.add_argument(
        "--backend",
        choices=("local", "mpi"),
        default="local",
        help="all ranks in this process, or one process a rank, started by mpiexec (local)",
    )
    parser.add_argument("--steps", type=positive, default=20, metavar="N", help="(20)")
    parser.add_argument(
        "--data", type=Path, metavar="PATH", help="a folder of MNIST's files, or a text"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="of initial values (the plan's)")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="for `rank.N/stdout` (PLAN/logs)")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="begin from a checkpoint")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write a checkpoint at the end")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Train, and print the losses."""
    plan = read_plan(arguments.plan)
    seed = plan.document.seed if arguments.seed is None else arguments.seed
    samples = samples_for(plan.document.inputs, arguments.data, seed)
    with _communicator(arguments.backend, plan.mesh) as communicator:
        speaks = communicator.ranks[0] == 0
        steps = train(
            plan,
            arguments.steps,
            data=samples,
            communicator=communicator,
            log_directory=arguments.logs or arguments.plan / "logs",
            seed=seed,
            resume=arguments.resume,
            save=arguments.save,
        )
        records = []
        with counting("training", arguments.steps if speaks else 0) as advance:
            for record in steps:
                records.append(record)
                advance(f"loss {record.loss:.4f}")
    if speaks:
        _tell(arguments, plan, records, samples.description)
    return 0


@contextmanager
def _communicator(backend: str, mesh: Mesh) -> Iterator[Communicator]:
    if backend == "local":
        yield LocalCommunicator(mesh)
        return
    with MpiCommunicator(mesh) as communicator:
        yield communicator


def _tell(arguments: argparse.Namespace, plan: Plan, records: list[StepRecord], data: str) -> None:
    seconds = statistics.median(record.seconds for record in records)
    if arguments.json:
        losses = [record.loss for record in records]
        print_document({"losses": losses, "seconds_per_step": seconds})
        return
    every = -(-len(records) // _ROWS)
    shown = [r for r in records if r.step % every == 0 or r.step in (1, len(records))]
    rows = [(str(r.step), f"{r.loss:.6f}", seconds_text(r.seconds)) for r in shown]
    print(f"{plan.document.model} on {plan.mesh.size} ranks, learning the {data}\n")
    print_table("", ("step", "loss", "time"), rows, right=(0, 1, 2))
    peak = max(record.peak_bytes for record in records)
    print(
        f"a step takes {seconds_text(seconds)}, a rank holds up to {bytes_text(peak)}, logs are in "
        f"{arguments.logs or arguments.plan / 'logs'}"
    )
    sys.stdout.flush()
