"""Runs on every rank under mpiexec: compares MPI with the local communicator, bit for bit.

Prints a JSON list of the cases that differ, from rank 0.
"""

import json
import sys
from itertools import chain, product
from pathlib import Path

import numpy as np

from shardwright.ir.attributes import Attribute
from shardwright.ir.errors import ExecutionError
from shardwright.ir.layout import Strategy
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.text import parse
from shardwright.ir.types import Ragged, TensorType, numpy_dtype
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.communication.rings import RingOperator, Turns
from shardwright.operators.info import Array, operator_info
from shardwright.runtime import (
    Executor,
    LocalCommunicator,
    MpiCommunicator,
    initialize,
    load_checkpoint,
    save_checkpoint,
    train,
)
from shardwright.runtime.agreement import gathered
from tests.random_micro_batches import random_steps

MESH = Mesh((MeshAxis("x", 2), MeshAxis("y", 2)))
OPERATORS: list[tuple[str, dict[str, Attribute]]] = [
    ("all_reduce", {}),
    ("all_reduce", {"reduction": "max"}),
    ("all_gather", {"dimension": 1}),
    ("reduce_scatter", {"dimension": 1}),
    ("reduce_scatter", {"dimension": 0, "reduction": "min"}),
    ("all_to_all", {"split_dimension": 0, "concat_dimension": 1}),
    ("broadcast", {"root": 1}),
    ("neighbor_exchange", {"shift": 1}),
    ("neighbor_exchange", {"shift": -1, "wrap": False}),
    ("send_receive", {"pairs": ((1, 0),)}),
    ("reduce", {"root": 1}),
    ("reduce", {"root": 1, "reduction": "prod"}),
    ("all_reduce", {"reduction": "prod"}),
    ("collective_gather", {"dimension": 1, "root": 1}),
    ("collective_scatter", {"dimension": 1}),
    ("barrier", {}),
    ("local_slice", {"dimension": 0}),  # stands for any other: parts are gathered
]
DTYPES = ("float64", "float32", "bfloat16")
AXES: list[tuple[str, ...]] = [("x",), ("y",), ("x", "y"), ("y", "x")]
TRAINING = """graph g on x=2 y=2 {
  input a: f32[8@x, 4]
  parameter w: f32[4@y, 2] {initializer='normal(1.0)'}
  full: f32[4, 2]* = all_gather(w) {axes=('y',), dimension=0}
  m: f32[4, 2]* = mirror(full) {axes=('x',)}
  y: f32[8@x, 2] = matmul(a, m)
  square: f32[8@x, 2] = mul(y, y)
  part: f32[] +x = reduce_sum(square)
  loss: f32[]* = all_reduce(part) {axes=('x',)}
  g: f32[4, 2] +x = contract_leading(a, y)
  whole: f32[4, 2]* = all_reduce(g) {axes=('x',)}
  own: f32[4@y, 2] = local_slice(whole) {axes=('y',), dimension=0}
  move: f32[4@y, 2] = scale(own) {factor=-0.01}
  next: f32[4@y, 2] = add(w, move)
  update w = next
  return loss
}"""


def _parts(dtype: str) -> dict[int, Array]:
    random = np.random.default_rng(3)
    return {rank: (random.normal(size=(4, 8)) * 10).astype(dtype) for rank in range(4)}


def exchanges(mpi: MpiCommunicator, tolerance: float, dtypes: tuple[str, ...]) -> list[str]:
    """Return the exchanges in which a rank gets something else than it does locally."""
    cases = [(*case, axes) for case in OPERATORS for axes in AXES]
    for axes in AXES:
        members = MESH.extent(axes)
        halo = {"slices": members, "stride": 1, "before": 1, "span": 3}
        even, windows = {"size": 4 * members, "windows": 4 * members}, 6 * members
        cases.append(("halo_exchange", {"dimension": 0, **halo, **even}, axes))
        summed = {"dimension": 1, "size": windows, "windows": windows}
        cases.append(("halo_sum", {**halo, **summed}, axes))
    for groups in (((0, 3), (2, 1)), ((2, 0, 3), (1,))):
        several: dict[str, Attribute] = {"groups": groups}
        even = {**several, "group_size": 2}
        cases += [("all_reduce", {"reduction": r, **several}, ()) for r in ("sum", "prod")]
        cases += [(name, several, ()) for name in ("broadcast", "reduce", "barrier")]
        cases.append(("neighbor_exchange", several, ()))
        if len(groups[1]) > 1:
            moves = ("all_gather", "reduce_scatter", "collective_gather", "collective_scatter")
            cases += [(name, even, ()) for name in moves]
            cases.append(("all_to_all", {**even, "concat_dimension": 1}, ()))
            cases.append(("all_to_all_v", {**even, "counts": ((1, 3), (3, 1))}, ()))
            cases.append(("send_receive", {**even, "pairs": ((1, 0), (0, 1))}, ()))
    counts = ((0, 1, 2, 1), (3, 0, 0, 1), (0, 3, 1, 0), (1, 0, 1, 2))
    uneven = ((0, 1, 2, 1), (0, 0, 0, 0), (0, 3, 0, 0), (1, 0, 0, 2))
    cases += [("all_to_all_v", {"counts": found}, ("x", "y")) for found in (counts, uneven)]
    cases.append(("collective_permute", {"previous": ("x", "y"), "dimension": 0}, ("y", "x")))
    local, rank, wrong = LocalCommunicator(MESH), mpi.ranks[0], []
    for dtype in dtypes:
        parts = _parts(dtype)
        for name, attributes, axes in cases:
            operator = operator_info(
                name, [TensorType(dtype, (4, 8))], {**attributes, "axes": axes}
            )
            assert isinstance(operator, Communication)
            expected = local.exchange(operator, axes, parts)[rank]
            found = mpi.exchange(operator, axes, {rank: parts[rank]})[rank]
            same = found.shape == expected.shape and found.dtype == expected.dtype
            if not same or not np.allclose(found, expected, rtol=tolerance, atol=tolerance):
                wrong.append(f"{name} {attributes} over {axes} in {dtype} on rank {rank}")
    return wrong


def rows(mpi: MpiCommunicator) -> list[str]:
    """Return the exchanges of rows of experts in which a rank gets something else than locally."""
    local, rank, wrong = LocalCommunicator(MESH), mpi.ranks[0], []
    random = np.random.default_rng(5)
    routings = {"some": 0.3, "none": 0.0, "all": 1.0}
    for axes, (split, concat), dtype in product(AXES, ((0, 1), (1, 0)), DTYPES):
        kind = TensorType(dtype, (8, 12, 5), ragged=Ragged(0, (1,), 2))
        how = {"axes": axes, "split_dimension": split, "concat_dimension": concat}
        operator = operator_info("all_to_all", [kind], how)
        assert isinstance(operator, Communication)
        for routing, share in routings.items():
            masks = [random.random((8, 12, 1)) < share for _ in range(4)]
            if routing == "some":  # one rank has nothing to send, and one expert no rows
                masks[1][:], masks[2][3] = False, False
            parts = {
                r: (mask * random.normal(size=(8, 12, 5))).astype(numpy_dtype(dtype))
                for r, mask in enumerate(masks)
            }
            expected = local.exchange(operator, axes, parts)[rank]
            found = mpi.exchange(operator, axes, {rank: parts[rank]})[rank]
            if found.dtype != expected.dtype or not np.array_equal(found, expected):
                wrong.append(f"{routing} {how} in {dtype} on rank {rank}")
    return wrong


def rings(mpi: MpiCommunicator) -> list[str]:
    """Return the rings in which a rank gets something else than it does locally."""
    local, wrong = LocalCommunicator(MESH), []
    for axes, causal in product(AXES, (False, True)):
        attributes = {"axes": axes, "causal": causal, "balanced": causal}
        shapes = [(1, 2, 7, 3)] * 2 + [(1, 2, 7, 5), (1, 2, 7, 5), (1, 2, 7)]
        q, k, v, dy, sums = (TensorType("float64", shape) for shape in shapes)
        for name, read in (("", [q, k, v]), ("_gradient", [dy, q, k, v, dy, sums])):
            info = operator_info(f"ring_attention{name}", read, attributes)
            assert isinstance(info, RingOperator)
            turns = _turns(info, axes)
            expected = local.take_turns(axes, turns)
            found = mpi.take_turns(axes, _turns(info, axes))
            for rank, results in found.items():
                pairs = zip(results, expected[rank], strict=True)
                if not all(np.array_equal(a, b) for a, b in pairs):
                    wrong.append(f"{info.name} over {axes} on rank {rank}")
    return wrong


def _turns(info: RingOperator, axes: tuple[str, ...]) -> dict[int, Turns]:
    """Return the work of all ranks, on slices of random tensors."""
    strategy, random = Strategy.of({"s": axes}), np.random.default_rng(5)
    whole = [random.standard_normal(kind.shape) for kind in info.operand_types]
    layouts = info.rule.operand_layouts(strategy)
    extents = [MESH.sizes[axis] for axis in axes]
    found = {}
    for rank in range(MESH.size):
        regions = (x.slices(w.shape, MESH, rank) for x, w in zip(layouts, whole, strict=True))
        parts = [w[region] for w, region in zip(whole, regions, strict=True)]
        view = info.rule.view(strategy, MESH, rank)
        found[rank] = info.turns(view, MESH.index(rank, axes), extents, *parts)
    return found


def training(mpi: MpiCommunicator, directory: Path) -> list[str]:
    """Return what differs between a local training run and one over MPI."""
    graph = parse(TRAINING)
    batches = [{"a": np.random.default_rng(i).normal(size=(8, 4))} for i in range(4)]
    local = LocalCommunicator(graph.mesh)
    alone, together = initialize(graph, 0, local), initialize(graph, 0, mpi)
    expected = [record.loss for record in train(Executor(graph, local), alone, batches)]
    runs = train(Executor(graph, mpi), together, batches, log_directory=directory)
    wrong = [] if [record.loss for record in runs] == expected else ["losses"]
    rank = mpi.ranks[0]
    if not np.array_equal(alone["w"][rank], together["w"][rank]):
        wrong.append(f"w on rank {rank}")
    save_checkpoint(directory / "state.npz", graph, together, mpi)
    loaded = load_checkpoint(directory / "state.npz", graph, mpi)
    if not np.array_equal(loaded["w"][rank], alone["w"][rank]):
        wrong.append(f"checkpoint of w on rank {rank}")
    return wrong


def micro_batches(rank: int) -> list[str]:
    """Return the random plans of which a rank computes something else than it does locally."""
    wrong = []
    for seed, _, step in chain(random_steps(12, 2), random_steps(8, 4)):
        graph, random = step.program, np.random.default_rng(seed)
        batches = [{v.name: random.normal(size=v.type.shape) for v in graph.inputs}] * 2
        found = []
        for communicator in (LocalCommunicator(graph.mesh), MpiCommunicator(graph.mesh)):
            executor = Executor(graph, communicator, in_place=True)
            state = initialize(graph, 0, communicator)
            steps = [executor.step(batch, state) for batch in batches]
            values = [part for s in steps for part in s.outputs.values()] + list(state.values())
            found.append([parts[rank] for parts in values])
        if executor.loop is None or not all(map(np.array_equal, *found)):
            wrong.append(f"seed {seed} on rank {rank}")
    return wrong


def main(task: str, directory: Path) -> None:
    with MpiCommunicator(MESH, deterministic=task != "native") as mpi:
        if task == "fail":
            if mpi.ranks[0] == 2:
                raise ExecutionError("planted")
            mpi.collect({mpi.ranks[0]: np.zeros(1)})
        elif task == "native":
            wrong = exchanges(mpi, 1e-12, ("float64",))
        elif task == "training":
            wrong = training(mpi, directory)
        elif task == "micro_batches":
            wrong = micro_batches(mpi.ranks[0])
        elif task == "rows":
            wrong = rows(mpi)
        elif task == "rings":
            wrong = rings(mpi)
        else:
            wrong = exchanges(mpi, 0.0, ("float32", "float64", "float16", "int32"))
        found = gathered("outcome", wrong)
        if mpi.ranks[0] == 0:
            print(json.dumps([case for cases in found for case in cases]))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
