"""The program of a row, compiled once at a small depth, of which its work is kept.

A stage has at most three blocks and a pipeline the least stages that stand for all; the rest
follows (`shardwright.cost_model.efficiency.program_work`). The work is cached in a folder, as long
as no file of the package changes.
"""

import hashlib
import math
import os
import pickle
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import shardwright
from benchmarks.measurements.rows import Row
from shardwright.api import compile
from shardwright.cost_model.cluster import Cluster, cluster
from shardwright.cost_model.efficiency.program_work import ProgramWork, Repetition, program_work
from shardwright.cost_model.efficiency.software import software
from shardwright.dataflow.placement import even_sizes
from shardwright.ir.errors import ClusterError
from shardwright.ir.graph import Graph
from shardwright.operators.models.optimizer import Optimizer

_BLOCKS, _STAGES, _PASSES = 3, 3, 2  # that stand for more
CACHE = Path(".cache") / "measurements"


@cache
def _package() -> str:
    """Return a hash of all files of the package: programs follow from its code and its figures."""
    found = hashlib.sha256()
    for folder, folders, files in os.walk(Path(shardwright.__file__).parent, followlinks=True):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            found.update(f"{name}\n".encode())
            found.update((Path(folder) / name).read_bytes())
    return found.hexdigest()


@dataclass(frozen=True)
class Small:
    """A row at a small depth: what is compiled of it."""

    model: str
    plan: str
    devices: int
    batch: int
    precision: str
    reduce_type: str
    accumulate_type: str
    cluster: str
    software: str

    @property
    def key(self) -> str:
        """A name for a file, another one after every change of the package or its figures."""
        return hashlib.sha256(f"{self!r} {_package()}".encode()).hexdigest()[:24]

    def program(self) -> Graph:
        """Compile it."""
        compiled = compile(
            self.model,
            self.devices,
            cluster=cluster(self.cluster).for_programs_of(software(self.software)),
            plan=self.plan,
            batch=self.batch,
            precision=self.precision,
            reduce_type=self.reduce_type,
            accumulate_type=self.accumulate_type,
            optimizer=Optimizer("adam", {}),
            memory_limit=math.inf,
            objective="serial",
        )
        return compiled.plan.program


def repetition(row: Row, described: Cluster) -> Repetition:
    """Return how often the parts of a row's program run."""
    plan = row.plan
    sizes = tuple(even_sizes(row.layers, plan.pipeline * plan.chunks))
    level = plan.stage_level(described, row.devices)
    return Repetition(sizes, row.passes, plan.pipeline, plan.chunks, level)


def small(row: Row, described: Cluster) -> Small:
    """Return a row at the least depth that stands for it."""
    blocks = min(row.layers // (row.plan.pipeline * row.plan.chunks), _BLOCKS)
    stages = _stages(row, described)
    return at(row, blocks * stages, stages, min(row.passes, _PASSES))


def at(row: Row, layers: int, stages: int, passes: int) -> Small:
    """Return a row with other numbers of layers, stages and micro-batches."""
    plan, data = row.plan, row.plan.data or 1
    least = replace(plan, pipeline=stages, chunks=1, schedule=None)
    sizes = dict(row.sizes)
    tied = f",tied={'false' if stages > 1 else 'true'}" if row.family == "gpt" else ""
    text = ",".join(f"{name}={value}" for name, value in {"layers": layers, **sizes}.items())
    return Small(
        f"{row.family}:{text}{tied}",
        least.text,
        row.devices // plan.pipeline * stages,
        data * (plan.micro_batch or 1) * passes,
        row.precision,
        row.reduce_type,
        row.accumulate_type,
        row.cluster,
        row.software,
    )


def _stages(row: Row, described: Cluster) -> int:
    """Return the least stages that stand for all: the first, a middle one and the last."""
    total = row.plan.pipeline * row.plan.chunks
    each = row.devices // row.plan.pipeline
    for stages in range(min(_STAGES, total), total + 1):
        try:
            described.check_groups(each * stages, stages)
        except ClusterError:
            continue
        return stages
    return total


def work_of(row: Row, folder: Path = CACHE) -> ProgramWork:
    """Return the work of a row's program, of the cache if it is there."""
    described = cluster(row.cluster)
    wanted = small(row, described)
    path = folder / f"{wanted.key}.pickle"
    if path.exists():
        found = pickle.loads(path.read_bytes())
        assert isinstance(found, ProgramWork)
        return found
    made = program_work(wanted.program(), described)
    folder.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(made))
    return made
