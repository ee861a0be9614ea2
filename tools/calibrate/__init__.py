"""``shardwright calibrate``: a cluster file of what was measured."""

import argparse
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shardwright.communication.processes import processes
from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.cluster import cluster as cluster_named
from shardwright.ir.files.writing import begins, check_file, write_file
from shardwright.ir.units import seconds_text
from shardwright.ir.values import POSITIVE_INTEGER
from shardwright.tools.calibrate import description
from shardwright.tools.calibrate.csv_file import of_csv
from shardwright.tools.calibrate.kernels import MODELS, machine, measured_operators
from shardwright.tools.calibrate.links import (
    Measured,
    mean_over_mpi,
    measured_over_mpi,
    of_nccl_tests,
    skew_over_mpi,
)
from shardwright.tools.calibrate.rings import rings_over_mpi
from shardwright.tools.console.arguments import UsageError, add_number

_WHAT = "the cluster file"
_STEPS = 30  # of each model, unless `--steps` says otherwise; the fastest of them counts
_is_ours = begins(description.MARK.encode())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="the cluster file, in YAML"
    )
    parser.add_argument("--name", metavar="NAME", help="name of the cluster (default the file's)")
    text = f"steps of each measured model (default {_STEPS})"
    add_number(parser, "--steps", POSITIVE_INTEGER, text, "N")
    parser.add_argument(
        "--model", action="append", metavar="MODEL", help="measure this model instead of the usual"
    )
    parser.add_argument(
        "--fast",
        action="store_true",
        help="measure MPI's own reductions, which `launch --fast` and `run --fast` use",
    )
    logs = parser.add_argument_group("measurements from elsewhere, instead of this machine")
    logs.add_argument("--cluster", metavar="NAME|FILE", help="the devices by their data sheets")
    logs.add_argument(
        "--nccl",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a log of nccl-tests, of the innermost level",
    )
    logs.add_argument(
        "--csv", type=Path, metavar="FILE", help="operators: lines `operator,amount,seconds`"
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure, or read measurements, and write the cluster file."""
    check_file(arguments.out, _WHAT, _is_ours)
    if arguments.out.suffix not in (".yaml", ".yml"):  # `--cluster` reads others otherwise
        raise UsageError(
            f"`--out` is `{arguments.out}`, the cluster file is YAML",
            hint=f"name it `{arguments.out.with_suffix('.yaml')}`",
        )
    name = arguments.name or arguments.out.stem
    if arguments.nccl or arguments.csv is not None:
        content, notes = _from_elsewhere(name, arguments)
    else:
        _refuse_base(arguments)
        found = _of_this_machine(name, arguments)
        if found is None:  # another process writes
            return 0
        content, notes = found
    text = description.as_text(content, notes)
    Cluster.model_validate(content)
    write_file(arguments.out, text.encode(), _WHAT, _is_ours)
    _print(arguments.out, content)
    return 0


def _refuse_base(arguments: argparse.Namespace) -> None:
    if arguments.cluster is not None:
        raise UsageError(
            "`--cluster` has no effect, this machine is measured",
            hint="leave it out, or give `--nccl` or `--csv`",
        )


def _from_elsewhere(
    name: str, arguments: argparse.Namespace
) -> tuple[dict[str, Any], Sequence[str]]:
    """Return what logs say of a cluster."""
    if arguments.cluster is None:
        raise UsageError(
            "`--nccl` and `--csv` need the data sheet of the devices",
            hint="name it with `--cluster`",
        )
    for option in ("model", "fast", "steps"):
        if getattr(arguments, option):
            raise UsageError(
                f"`--{option}` has no effect, nothing is measured here", hint="leave it out"
            )
    base = cluster_named(arguments.cluster)
    collectives = [item for path in arguments.nccl for item in of_nccl_tests(path)]
    for item in collectives:
        if item.ranks != base.levels[0].size:
            raise UsageError(
                f"the log of {item.kind} is of {item.ranks} ranks, the level "
                f"`{base.levels[0].name}` of {base.name} has {base.levels[0].size}",
                hint="run nccl-tests on one whole group of the innermost level",
            )
    operators = of_csv(arguments.csv) if arguments.csv is not None else {}
    sources = [*arguments.nccl, *([arguments.csv] if arguments.csv is not None else [])]
    read = ", ".join(path.name for path in sources)
    notes = [f"Devices and links: {base.name}, by its data sheet. Measured: {read}."]
    return description.of_base(name, base, operators, collectives), notes


def _of_this_machine(
    name: str, arguments: argparse.Namespace
) -> tuple[dict[str, Any], Sequence[str]] | None:
    """Measure this machine; None in all processes but the first."""
    group = processes()
    count = 1 if group is None else group.size
    if count == 1 and arguments.fast:
        raise UsageError(
            "`--fast` has no effect in one process, which measures no reductions",
            hint="leave it out, or start it with `mpiexec -n N`",
        )
    steps = arguments.steps or _STEPS
    collectives, skew = list[Measured](), 0.0
    if count > 1:
        collectives = measured_over_mpi(steps, deterministic=not arguments.fast)
    models = arguments.model or MODELS
    if count > 1:
        operators = measured_operators(models, steps, mean_over_mpi)
        operators |= rings_over_mpi(steps)
        skew = skew_over_mpi(steps)
    else:
        operators = measured_operators(models, steps)
    peaks = machine()
    if group is not None and group.rank:
        return None
    reductions = "MPI's own" if arguments.fast else "in the order of the ranks"
    ran = f"{count} processes, reductions {reductions}" if count > 1 else "1 process"
    notes = [
        f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, {ran}.",
        "peak_flops: a product of 512 x 512 x 512; memory_bandwidth: a copy of 128 MiB; "
        "launch_seconds: the median of the operators'.",
    ]
    return description.of_machine(name, peaks, operators, collectives, count, skew), notes


def _print(path: Path, content: Mapping[str, Any]) -> None:
    device, level = content["device"], content["levels"][0]
    rates = device.get("efficiency", {}).get("operators", {})
    told = [f"{len(rates)} operators measured"] if rates else []
    if "efficiency" in level:
        bandwidth = level["bandwidth"] * level["efficiency"]["bandwidth"]["value"]
        told.append(
            f"links of {bandwidth / 1e9:.3g} GB/s and {seconds_text(level['latency'])} of latency"
        )
    print(f"{path}: {', '.join(told)}; use it as `--cluster {path}`")
