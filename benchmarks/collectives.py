"""All-reduces and all-gathers of a program against those of mpi4py, in the same processes.

    python benchmarks/collectives.py --processes 2

Ours are what a step of one rank calls; mpi4py's write into buffers that are made once. They take
turns of some calls each, in another order every round, and a ratio is that of two turns of one
round, so that the machine's other load meets both. The addresses of the buffers may favour either,
so the processes are started several times, and make the buffers in another order each time. The
control is mpi4py's call into a second buffer that is made once: its ratio would be 1 if addresses
and noise had no effect.

A start counts once, by the median of its rounds. The interval holds the median of all starts that
could be made with a probability of at least 95 %. A rank that waits uses its processor, too: CPU
seconds are those of all ranks.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
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


def calls_of(
    name: str, size: int, communicator: MpiCommunicator, world: Any, start: int
) -> dict[str, Callable]:
    """Return our call, that of mpi4py, and once more that of mpi4py, with another buffer."""
    info, part = operator(name, size), np.ones(size // 4, np.float32)
    rows = world.size if name == "all_gather" else 1
    call = world.Allgather if name == "all_gather" else world.Allreduce
    ours = communicator.bound(info, ("x",), part.shape)

    def into_one_buffer() -> Callable[[], object]:
        result = np.empty(rows * part.size, np.float32)
        call(part, result)
        return lambda: call(part, result)

    makes = {
        "ours": lambda: lambda: ours(part),
        "mpi4py": into_one_buffer,
        "control": into_one_buffer,
    }
    made = {}
    for key in np.random.default_rng(start).permutation(list(makes)):
        made[key] = makes[key]()
        made[key]()
    return made


def turn(call: Callable[[], object], count: int, world: Any) -> tuple[float, float]:
    """Return the wall seconds and the CPU seconds of some calls, of all processes."""
    world.Barrier()
    begin, cpu = time.perf_counter(), time.process_time()
    for _ in range(count):
        call()
    spent = np.array([time.perf_counter() - begin, time.process_time() - cpu])
    wall, busy = world.allreduce(spent) / count
    return float(wall), float(busy)


def work(rounds: int, sizes: Sequence[int], start: int) -> None:
    """Run as one of the processes; the first one prints what it found."""
    mpi = import_module("mpi4py.MPI")
    world = mpi.COMM_WORLD
    communicator = MpiCommunicator(Mesh((MeshAxis("x", world.size),)), deterministic=False)
    found = {}
    for name in ("all_reduce", "all_gather"):
        for size in sizes:
            calls = calls_of(name, size, communicator, world, start)
            wall = max(turn(call, 5, world)[0] for call in calls.values()) / world.size
            count = int(world.bcast(max(3, round(SECONDS / wall))))
            spent = []
            for number in range(rounds):
                order = list(calls)[number % 3 :] + list(calls)[: number % 3]
                order = order[:: 1 if number // 3 % 2 else -1]
                spent.append({key: turn(calls[key], count, world) for key in order})
            found[f"{name} {size}"] = [
                statistics.median(turns[key][clock] / turns["mpi4py"][clock] for turns in spent)
                for key, clock in (("ours", 1), ("control", 1), ("ours", 0))
            ]
    if world.rank == 0:
        print(json.dumps(found))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return an interval that holds the median of the distribution, at 95 % or more.

    The number of values below the median is binomial; the least and the greatest value, if there
    are too few for 95 %.
    """
    ordered, rank, tail = sorted(values), 0, 0.0
    while tail + math.comb(len(values), rank) / 2 ** len(values) <= 0.025:
        tail += math.comb(len(values), rank) / 2 ** len(values)
        rank += 1
    rank = max(rank, 1)
    return ordered[rank - 1], ordered[-rank]


def told(ratios: Sequence[float]) -> tuple[str, str, str]:
    """Return the median, the quartiles and the interval of the median, as texts."""
    low, middle, high = statistics.quantiles(ratios, n=4)
    least, greatest = interval(ratios)
    return f"{middle:.3f}", f"{low:.3f} to {high:.3f}", f"{least:.3f} to {greatest:.3f}"


def main() -> None:
    """Compare the collectives, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--processes", type=int, nargs="*", default=[2])
    parser.add_argument("--starts", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=12, help="of each start")
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="in bytes")
    parser.add_argument("--start", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.rounds, options.sizes, options.start)
        return
    clocks = ("ours: CPU", "quartiles", "95 %", "control: CPU", "quartiles", "95 %", "ours: wall")
    print(f"| processes | collective | KiB | {' | '.join(clocks)} |")
    print("|---" * (3 + len(clocks)) + "|")
    for processes in options.processes:
        arguments = (__file__, processes, "--rounds", options.rounds, "--sizes", *options.sizes)
        runs = [launched(*arguments, "--start", start) for start in range(options.starts)]
        for key in runs[0]:
            name, size = key.split()
            ours, control, wall = zip(*(run[key] for run in runs), strict=True)
            row = [processes, name, int(size) // 1024, *told(ours), *told(control)]
            print(f"| {' | '.join(map(str, row))} | {statistics.median(wall):.3f} |", flush=True)


if __name__ == "__main__":
    main()
