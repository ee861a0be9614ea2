"""Measuring the operators whose ranks pass parts round, which no program of one device has.

A ring of all processes works and sends as it does in a run. All of that is taken for work: what it
sends beside is hidden by as much, since the cost model takes the longer of the two.
"""

from collections.abc import Callable
from itertools import product

import numpy as np

from shardwright.cost_model.efficiency.rings import ring_work
from shardwright.ir.attributes import Attributes
from shardwright.ir.layout import Strategy
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.optional import optional
from shardwright.ir.types import TensorType
from shardwright.operators.communication.rings import RingOperator
from shardwright.operators.info import operator_info
from shardwright.runtime import MpiCommunicator
from shardwright.tools.calibrate.fitting import Sample
from shardwright.tools.calibrate.links import least_of_slowest

_SIZES = ((4, 2, 16, 32), (4, 4, 32, 16), (8, 4, 16, 32), (8, 4, 32, 64), (2, 4, 64, 32))
"""Samples, heads, tokens on a rank, and features; not those of models that are compared."""
_TENSORS = {
    "ring_attention": 3,
    "ring_attention_gradient": 5,
    "balanced_attention": 3,
    "balanced_attention_gradient": 4,
}  # operands of the shape of the queries
_OPERATORS = [(name, causal) for name in _TENSORS for causal in (False, True)]
_FEW = 20  # least number of times that a ring is measured


def rings_over_mpi(repeats: int) -> dict[str, list[Sample]]:
    """Return the times of attention on a ring of all processes, and of its gradient, by operator.

    Parameters
    ----------
    repeats : int
        Number of measurements, of which the least counts: each is that of the slowest rank.
    """
    mpi = optional("mpi4py.MPI", extra="mpi", need="measuring rings")
    world = mpi.COMM_WORLD
    mesh = Mesh((MeshAxis("x", world.size),))
    found: dict[str, list[Sample]] = {}
    with MpiCommunicator(mesh) as communicator:
        for size, (name, causal) in product(_SIZES, _OPERATORS):
            info = _ring(name, size, world.size, causal=causal)
            call = _call(info, communicator)
            least = least_of_slowest(world, mpi.MAX, call, max(repeats, _FEW), ())
            found.setdefault(name, []).append(_sample(info, mesh, least))
    return found


def _ring(name: str, size: tuple[int, ...], ranks: int, *, causal: bool) -> RingOperator:
    """Return an operator on so many ranks, each of which has tokens of a size."""
    samples, heads, tokens, features = size
    shape = samples, heads, tokens * ranks, features
    tensor, rows = TensorType("float32", shape), TensorType("float32", shape[:3])
    read = [tensor] * _TENSORS[name] + [rows] * (name == "ring_attention_gradient")
    attributes: Attributes = {"axes": ("x",), "causal": causal, "balanced": causal}
    info = operator_info(name, read, attributes)
    assert isinstance(info, RingOperator)
    return info


def _call(info: RingOperator, communicator: MpiCommunicator) -> Callable[[], object]:
    """Return what does the work of this rank."""
    mesh, strategy, random = communicator.mesh, _strategy(), np.random.default_rng(0)
    (rank,) = communicator.ranks
    view = info.rule.view(strategy, mesh, rank)
    parts = [random.standard_normal(shape).astype(np.float32) for shape in view.operand_shapes]

    def run() -> object:
        turns = info.turns(view, rank, (mesh.size,), *parts)
        return communicator.take_turns(("x",), {rank: turns})

    return run


def _strategy() -> Strategy:
    return Strategy.of({"s": ("x",)})


def _sample(info: RingOperator, mesh: Mesh, seconds: float) -> Sample:
    """Return the work of a rank: its rounds, those that only send among them, and theirs."""
    rounds = ring_work(info, info.rule.operand_layouts(_strategy()), mesh).rounds
    flops, moved = sum(turn.flops for turn in rounds), sum(turn.moved_bytes for turn in rounds)
    return Sample(float(len(rounds)), flops, seconds, moved)
