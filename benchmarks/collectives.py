"""All-reduces and all-gathers of a program against those of mpi4py, in the same processes.

    python benchmarks/collectives.py --processes 2

Ours are what a step of one rank calls; mpi4py's write into buffers that are made once. Both take
turns of some calls each, in another order every round, and a ratio is that of two turns of one
round, so that the machine's other load meets both. Where the buffers of a process lie in memory may
favour either, so the processes are started several times. A rank that waits uses its processor,
too: CPU seconds are those of all ranks.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
from launched import launched

from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.types import TensorType
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.info import operator_info
from shardwright.runtime import MpiCommunicator

SIZES = (2**16, 2**18, 2**20, 2**22)  # bytes
SECONDS = 0.02  # of a turn


def operator(name: str, size: int) -> Communication:
    """Return a collective on a tensor of so many bytes."""
    attributes = {"axes": ("x",)} | ({"dimension": 0} if name == "all_gather" else {})
    found = operator_info(name, (TensorType("float32", (size // 4,)),), attributes)
    assert isinstance(found, Communication)
    return found


def pair(name: str, size: int, communicator: MpiCommunicator, world: Any) -> dict[str, Callable]:
    """Return our call, and that of mpi4py."""
    info, part = operator(name, size), np.ones(size // 4, np.float32)
    rows = world.size if name == "all_gather" else 1
    result = np.empty(rows * part.size, np.float32)
    call = world.Allgather if name == "all_gather" else world.Allreduce
    ours = communicator.bound(info, ("x",), part.shape)
    return {
        "ours": lambda: ours(part),
        "mpi4py": lambda: call(part, result),
    }


def turn(call: Callable[[], object], count: int, world: Any) -> tuple[float, float]:
    """Return the wall seconds and the CPU seconds of some calls, of all processes."""
    world.Barrier()
    begin, cpu = time.perf_counter(), time.process_time()
    for _ in range(count):
        call()
    spent = np.array([time.perf_counter() - begin, time.process_time() - cpu])
    wall, busy = world.allreduce(spent) / count
    return float(wall), float(busy)


def work(rounds: int) -> None:
    """Run as one of the processes; the first one prints what it found."""
    mpi = import_module("mpi4py.MPI")
    world = mpi.COMM_WORLD
    communicator = MpiCommunicator(Mesh((MeshAxis("x", world.size),)), deterministic=False)
    found = {}
    for name in ("all_reduce", "all_gather"):
        for size in SIZES:
            calls = pair(name, size, communicator, world)
            wall = max(turn(call, 5, world)[0] for call in calls.values()) / world.size
            count = int(world.bcast(max(3, round(SECONDS / wall))))
            ratios: list[tuple[float, float]] = []
            for number in range(rounds):
                order = list(calls) if number % 2 else list(calls)[::-1]
                spent = {key: turn(calls[key], count, world) for key in order}
                ratios.append(
                    tuple(a / b for a, b in zip(*(spent[key] for key in calls), strict=True))
                )
            found[f"{name} {size}"] = ratios
    if world.rank == 0:
        print(json.dumps(found))


def main() -> None:
    """Compare the collectives, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--processes", type=int, nargs="*", default=[2])
    parser.add_argument("--starts", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=11, help="of each start")
    options = parser.parse_args()
    if options.worker:
        work(options.rounds)
        return
    print("| processes | collective | KiB | ratio of CPU: median (quartiles) | of wall: median |")
    print("|---|---|---|---|---|")
    for processes in options.processes:
        arguments = (__file__, processes, "--rounds", options.rounds)
        runs = [launched(*arguments) for _ in range(options.starts)]
        for key in runs[0]:
            name, size = key.split()
            walls, busy = zip(*(ratio for run in runs for ratio in run[key]), strict=True)
            low, middle, high = statistics.quantiles(busy, n=4)
            shown = f"{middle:.3f} ({low:.3f} to {high:.3f})"
            row = (processes, name, int(size) // 1024, shown, f"{statistics.median(walls):.3f}")
            print(f"| {' | '.join(map(str, row))} |", flush=True)


if __name__ == "__main__":
    main()
