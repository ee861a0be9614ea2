"""Runs on every rank under mpiexec: trains pipelines over MPI and locally, and compares the bits.

The programs are the ``.ir`` files of a directory. Prints a JSON list of what differs, from rank 0.
"""

import json
import sys
from pathlib import Path

import numpy as np

from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh
from shardwright.ir.text import parse
from shardwright.runtime import (
    Executor,
    LocalCommunicator,
    MpiCommunicator,
    assemble,
    initialize,
    load_checkpoint,
    save_checkpoint,
    train,
)
from shardwright.runtime.agreement import gathered


def inputs_of(graph: Graph, seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        v.name: random.normal(size=v.type.shape)
        if v.type.is_float
        else random.integers(0, 5, v.type.shape).astype(v.type.dtype)
        for v in graph.inputs
    }


def differences(path: Path, mpi: MpiCommunicator) -> list[str]:
    graph = parse(path.read_text())
    local = LocalCommunicator(graph.mesh)
    batches = [inputs_of(graph, i) for i in range(2)]
    alone = initialize(graph, 0, local, float_dtype="float64")
    together = initialize(graph, 0, mpi, float_dtype="float64")
    one = list(train(Executor(graph, local, float_dtype="float64"), alone, batches))
    logs = path.with_suffix("")
    executor = Executor(graph, mpi, float_dtype="float64", in_place=True)
    other = list(train(executor, together, batches, log_directory=logs))
    wrong = [] if [r.loss for r in one] == [r.loss for r in other] else ["losses"]
    if other[0].peak_bytes > one[0].peak_bytes:
        wrong.append(f"peak {other[0].peak_bytes}, {one[0].peak_bytes} locally")
    if list(together) != [parameter.name for parameter in graph.parameters]:
        wrong.append("the order of the state")
    file = path.with_suffix(".npz")
    save_checkpoint(file, graph, together, mpi)
    loaded = load_checkpoint(file, graph, mpi, "float64")
    for parameter in graph.parameters:
        name = parameter.name
        expected = assemble(graph, name, alone[name])
        for state in (together, loaded):
            found = assemble(graph, name, mpi.collect(state[name]))
            if not np.array_equal(found, expected):
                wrong.append(name)
    return [f"{path.stem} on rank {mpi.ranks[0]}: {what}" for what in wrong]


def main(directory: Path) -> None:
    paths = sorted(directory.glob("*.ir"))
    mesh = parse(paths[0].read_text()).mesh or Mesh(())
    wrong = []
    with MpiCommunicator(mesh) as mpi:
        for path in paths:
            mpi.mesh = parse(path.read_text()).mesh or Mesh(())
            mpi._groups.clear()  # of the mesh before
            wrong += differences(path, mpi)
        found = gathered("outcome", wrong)
        if mpi.ranks[0] == 0:
            print(json.dumps([case for cases in found for case in cases]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
