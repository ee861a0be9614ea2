"""Checkpoints for another plan: slices are cut and joined anew, in blocks of bounded size."""

import json
from collections.abc import Iterator
from pathlib import Path

from shardwright.ir.errors import OutputError
from shardwright.ir.files.aside import aside
from shardwright.ir.files.folders import make_folder
from shardwright.ir.files.writing import check_folder, failing_as
from shardwright.ir.graph import Graph, Parameter, Value
from shardwright.ir.types import TensorType, numpy_dtype
from shardwright.operators.info import Array
from shardwright.runtime.checkpoints.reading import RANDOM, Checkpoint, check_program
from shardwright.runtime.checkpoints.slices import Piece, blocks_of, is_by_rank, pieces_of
from shardwright.runtime.checkpoints.tensor_file import write_tensors
from shardwright.runtime.checkpoints.writing import Writing, complete, described
from shardwright.runtime.communicator import ONE_DEVICE

BLOCK = 64 << 20  # bytes of a tensor in memory at a time
_WHAT = "the checkpoint"


def reshard(source: Checkpoint, graph: Graph | None, directory: Path, block: int = BLOCK) -> Path:
    """Write a checkpoint for another plan, and return its path: ``DIRECTORY/step-N``.

    Tensors have the same bits, position and step are the same. At most one block of a tensor is in
    memory.

    Parameters
    ----------
    source : Checkpoint
        The checkpoint.
    graph : Graph, optional
        The program of the plan; without one all tensors are merged in one file.
    directory : Path
        The folder of the new checkpoint.
    block : int
        Bytes in memory at a time.

    Raises
    ------
    PlanError
        If the source is damaged or of another program, or its ranks have tensors of their own that
        differ and the target has another number of ranks.
    OutputError
        If the folder cannot be written to, or has a checkpoint of the step.
    """
    if graph is not None:
        check_program(source, graph)
    graph = whole(source) if graph is None else graph
    progress = source.manifest.progress
    target = directory / f"step-{progress.step}"
    check_folder(directory, _WHAT)
    if target.exists():
        what = "the checkpoint cannot be written: something is there"
        raise OutputError(what, str(target), "name another folder")
    how = Writing(directory, source.manifest.run)
    with failing_as(_WHAT, target):
        make_folder(directory)
        with aside(target, Path.mkdir) as stage:
            _fill(source, graph, stage, how, block)
    return target


def _fill(source: Checkpoint, graph: Graph, aside: Path, how: Writing, block: int) -> None:
    mesh, pieces = graph.mesh or ONE_DEVICE, pieces_of(graph)
    dtypes = {name: tensor.dtype for name, tensor in source.manifest.tensors.items()}
    files = {}
    for rank in range(mesh.size):
        own = [piece for each in pieces.values() for piece in each if piece.rank == rank]
        tensors = [
            (p.name, numpy_dtype(dtypes[p.name]), p.shape, _blocks(source, graph, p, block))
            for p in own
        ]
        random = source.random_state(rank)
        notes = {} if random is None else {RANDOM: json.dumps(random)}
        name = f"rank.{rank}.safetensors"
        files[name] = write_tensors(aside / name, tensors, notes)
    tensors_of = described(graph, pieces, dtypes)
    complete(aside, how, graph, source.manifest.progress, tensors_of, files)


def _blocks(source: Checkpoint, graph: Graph, piece: Piece, limit: int) -> Iterator[Array]:
    """Yield the elements of a piece in order."""
    saved, mesh = source.tensor(piece.name), graph.mesh or ONE_DEVICE
    alone = saved.by_rank and is_by_rank(graph.value(piece.name), mesh)
    same = alone and source.manifest.ranks == mesh.size
    for part in blocks_of(piece.region, numpy_dtype(saved.dtype).itemsize, limit):
        if saved.by_rank and not same:
            yield source.shared(piece.name, part)
        else:
            yield source.region(piece.name, part, piece.rank)


def whole(source: Checkpoint) -> Graph:
    """Return a program of one device with the parameters of a checkpoint, and no operators."""
    parameters = [
        Parameter(Value(name, TensorType(saved.dtype, saved.shape)))
        for name, saved in source.manifest.tensors.items()
    ]
    return Graph(source.manifest.program, (), tuple(parameters), (), ())
