"""Measuring collectives over MPI, and reading those of nccl-tests.

A collective takes a number of latencies, and its bytes by a bandwidth, as the cost model counts
them (`cost_model.collectives`); both are fitted to all sizes and kinds.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import log2
from pathlib import Path
from typing import Any

import numpy as np

from shardwright.cost_model.cluster import Cluster, Device, Level
from shardwright.cost_model.collectives import collective_model
from shardwright.cost_model.redistribution.moves import is_packed
from shardwright.ir.attributes import Attribute
from shardwright.ir.errors import ClusterError
from shardwright.ir.files.reading import read_text
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.optional import optional
from shardwright.ir.types import TensorType
from shardwright.operators.communication.collectives import Communication, priced_as
from shardwright.operators.info import Array, operator_info
from shardwright.runtime import MpiCommunicator
from shardwright.runtime.messages import decoded, encoded, gathered_from_all
from shardwright.tools.calibrate.fitting import Sample
from shardwright.tools.calibrate.kernels import ROUNDS, least_seconds, work_between

_FINE = range(9, 18)  # where the algorithms and protocols of a library change
SIZES = (*(n * 2**power for power in _FINE for n in (1, 1.5)), 2**18, 2**20, 2**22)
"""Bytes of the operand of a rank."""
_ATTRIBUTES: Mapping[str, Sequence[Mapping[str, Attribute]]] = {
    "all_reduce": [{}],
    "all_gather": [{"dimension": 0}, {"dimension": 1}],
    "reduce_scatter": [{"dimension": 0}, {"dimension": 1}],
    "all_to_all": [
        {"split_dimension": 0, "concat_dimension": 1},
        {"split_dimension": 1, "concat_dimension": 0},
    ],
    "broadcast": [{"root": 0}],
    "neighbor_exchange": [{}],
}  # along the first dimension or another, where parts are copied
_ROWS = 4  # of a part, for each rank: parts along the second dimension are copied in runs
_CHAIN = 20  # collectives, with work between them
_FEW = 10  # least number of times that a collective is measured in a round
_NCCL_KINDS = {
    "all_reduce_perf": "all_reduce",
    "all_gather_perf": "all_gather",
    "reduce_scatter_perf": "reduce_scatter",
    "broadcast_perf": "broadcast",
    "alltoall_perf": "all_to_all",
}
_STARTING = re.compile(rf"\b({'|'.join(_NCCL_KINDS)})\b")
_LINE = re.compile(
    r"^\s*(?P<size>\d+)\s+\d+\s+\w+\s+\S+\s+-?\d+\s+(?P<time>[\d.]+)\s+[\d.]+\s+[\d.]+"
)


@dataclass(frozen=True)
class Measured:
    """One measured collective.

    Parameters
    ----------
    kind : str
        One of `collectives.KINDS`.
    ranks : int
        Number of ranks.
    nbytes : float
        Bytes, as the cost model counts them.
    seconds : float
        The time.
    is_packed : bool
        Whether it includes copies of parts (`redistribution.moves.is_packed`).
    """

    kind: str
    ranks: int
    nbytes: float
    seconds: float
    is_packed: bool = False

    @property
    def message(self) -> tuple[float, float]:
        """The bytes and the seconds of one of its messages."""
        sample = self.sample
        return sample.amount / sample.fixed, self.seconds / sample.fixed

    @property
    def sample(self) -> Sample:
        """The latencies and bytes that it counts, by the fastest algorithm for large messages."""
        unit = Cluster(
            name="unit",
            device=Device(
                name="unit",
                peak_flops={"float32": 1.0},
                memory_bandwidth=1.0,
                memory_bytes=1,
                launch_seconds=0.0,
            ),
            levels=(Level(name="level", size=self.ranks, bandwidth=1.0, latency=1.0),),
        )
        axis = MeshAxis("x", self.ranks)
        widest = min(collective_model(self.kind, (axis,), unit), key=lambda a: a.seconds_per_byte)
        amount = widest.seconds_per_byte * self.nbytes
        return Sample(widest.latency_seconds, amount, self.seconds)


def measured_over_mpi(repeats: int, *, deterministic: bool = True) -> list[Measured]:
    """Return collectives of all processes of MPI; the same in every process.

    Parameters
    ----------
    repeats : int
        Number of measurements, of which the least counts: each is that of the slowest rank.
    deterministic : bool
        Whether reductions add in the order of the ranks, as a run does by default.
    """
    mpi = optional("mpi4py.MPI", extra="mpi", need="measuring collectives")
    world, axis = mpi.COMM_WORLD, MeshAxis("x", mpi.COMM_WORLD.size)
    communicator = MpiCommunicator(Mesh((axis,)), deterministic=deterministic)
    measured = list[tuple[Measured, Array, Callable[[], object]]]()
    for operator, size in product(_ATTRIBUTES, SIZES):
        kind = priced_as(operator)
        for attributes in _ATTRIBUTES[operator]:
            rows = _ROWS * world.size
            columns = max(int(size) // 4 // rows // world.size, 1) * world.size
            part = np.ones((rows, columns), np.float32)
            info = operator_info(
                operator, (TensorType("float32", part.shape),), {"axes": ("x",), **attributes}
            )
            assert isinstance(info, Communication)
            whole = part.nbytes * world.size if kind == "all_gather" else part.nbytes
            what = Measured(kind, world.size, whole, np.inf, is_packed(operator, attributes))
            measured.append((what, part, _call(communicator, info, part)))
    repeats = max(-(-repeats // ROUNDS), _FEW)
    for _ in range(ROUNDS):
        for i, (what, part, call) in enumerate(measured):
            least = least_of_slowest(world, mpi.MAX, call, repeats, (part,))
            measured[i] = replace(what, seconds=min(what.seconds, least)), part, call
    return [what for what, _, _ in measured]


def skew_over_mpi(repeats: int) -> float:
    """Return the seconds for which two ranks wait for the later one; the same in every process.

    Ranks that work between collectives never come at the same moment: a core that others share is
    slow now and then. In a chain of both, a link takes longer than its work and its collective by
    themselves.

    Parameters
    ----------
    repeats : int
        Number of chains, of which the fastest counts.
    """
    mpi = optional("mpi4py.MPI", extra="mpi", need="measuring collectives")
    world, axis = mpi.COMM_WORLD, MeshAxis("x", mpi.COMM_WORLD.size)
    part = np.ones((_ROWS, _ROWS), np.float32)
    info = operator_info("all_gather", (TensorType("float32", part.shape),), {"axes": ("x",)})
    assert isinstance(info, Communication)
    gather = _call(MpiCommunicator(Mesh((axis,))), info, part)
    work = work_between((part,))

    def chain() -> None:
        for _ in range(_CHAIN):
            work()
            gather()

    chained = least_of_slowest(world, mpi.MAX, chain, repeats, ()) / _CHAIN
    gathered = least_of_slowest(world, mpi.MAX, gather, repeats, (part,))
    world.Barrier()
    worked = mean_over_mpi({"work": least_seconds(work, repeats)})["work"]
    return max(chained - gathered - worked, 0.0) / log2(world.size)


def _call(communicator: MpiCommunicator, info: Communication, part: Array) -> Callable[[], object]:
    """Return what runs a collective as a program does: all-reduces start, and are awaited."""
    if not communicator.starts(info, ("x",)):
        return partial(communicator.bound(info, ("x",), part.shape), part)
    reduce = communicator.reducer(info, ("x",))
    return lambda: reduce(part.copy()).Wait()


def least_of_slowest(
    world: Any, most: Any, call: Callable[[], object], repeats: int, operands: Sequence[Array]
) -> float:
    """Return the least time of a call in the slowest rank, all of which begin together.

    Caches are as in a step: see `work_between`.
    """
    taken, between = [], work_between(operands)
    for _ in range(repeats + 1):
        between()
        world.Barrier()
        begin = time.perf_counter()
        call()
        own, slowest = np.array([time.perf_counter() - begin]), np.empty(1)
        world.Allreduce(own, slowest, op=most)
        taken.append(slowest[0])
    return float(min(taken[1:]))


def mean_over_mpi(least: dict[str, float]) -> dict[str, float]:
    """Return the mean of the times that all processes of MPI have measured by the same names."""
    mpi = optional("mpi4py.MPI", extra="mpi", need="measuring several processes")
    messages = gathered_from_all(mpi.COMM_WORLD, encoded(least))
    everywhere = [decoded(message) for message in messages]
    return {name: sum(own[name] for own in everywhere) / len(everywhere) for name in least}


def of_nccl_tests(path: Path) -> list[Measured]:
    """Return the out-of-place times of a log of nccl-tests.

    Parameters
    ----------
    path : Path
        What a program such as ``all_reduce_perf`` printed.

    Raises
    ------
    ClusterError
        If it cannot be read, or does not say which collective ran on which ranks.
    """
    try:
        lines = read_text(path).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ClusterError(f"cannot read the log `{path}`: {reason}") from error
    kind = next((_NCCL_KINDS[m[1]] for m in map(_STARTING.search, lines) if m), None)
    ranks = sum(1 for line in lines if re.match(r"#\s+Rank\s+\d+", line))
    matches = [match for match in map(_LINE.match, lines) if match]
    if kind is None:
        raise ClusterError(
            "a log of nccl-tests names its collective, this one does not",
            str(path),
            "write the name of its program, such as `# all_reduce_perf`, into its first line",
        )
    if ranks < 2 or not matches:
        found = f"{ranks} lines `# Rank` and {len(matches)} lines of times"
        raise ClusterError(
            f"a log of nccl-tests has a line for each of 2 ranks or more, and times, found {found}",
            str(path),
        )
    sized = ((float(match["size"]), float(match["time"]) * 1e-6) for match in matches)
    return [Measured(kind, ranks, size, seconds) for size, seconds in sized if size and seconds]
